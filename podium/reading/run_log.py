"""What the events of a log say about its run. What a log does not say is None, never a guess."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.bert.rules import TARGET_ACCURACY
from podium.reading.lines import Event, Oddity

FEWEST_SAMPLES = 1_000
"""An epoch_num below it cannot be a number of samples at which anybody evaluates."""
MOST_TIMES = 20
"""By which train_samples may exceed the last epoch_num of a successful run that is no number of steps."""
FAIR_SHARE = 0.1
"""Of train_samples, which may be what was planned, that a run to the target takes at least."""


@dataclass(frozen=True)
class Evaluation:
    """One logged accuracy."""

    time_ms: float
    samples: float | None
    """Trained on until then; None where epoch_num counts neither samples nor steps."""
    accuracy: float
    line: int

    @property
    def passes(self) -> bool:
        return TARGET_ACCURACY <= self.accuracy < 1.0


@dataclass(frozen=True)
class RunLog:
    """A log as it was read."""

    path: Path
    events: tuple[Event, ...]
    oddities: tuple[Oddity, ...]

    @cached_property
    def by_key(self) -> Mapping[str, Sequence[Event]]:
        """The events of each key, in the log's order."""
        found: dict[str, list[Event]] = {}
        for event in self.events:
            found.setdefault(event.key, []).append(event)
        return found

    def first(self, key: str) -> Event | None:
        events = self.by_key.get(key)
        return events[0] if events else None

    def all(self, key: str) -> Sequence[Event]:
        return self.by_key.get(key, ())

    def text(self, key: str) -> str | None:
        """The value of the key's first event, if it is a text."""
        event = self.first(key)
        return event.value if event is not None and isinstance(event.value, str) else None

    def number(self, key: str) -> float | None:
        """The value of the key's first event, if it is a number or a list of one."""
        event = self.first(key)
        return None if event is None else as_number(event.value)

    @cached_property
    def run_start_ms(self) -> float | None:
        return _time(self.first("run_start"))

    @cached_property
    def run_stop_ms(self) -> float | None:
        return _time(self.first("run_stop"))

    @property
    def seconds(self) -> float | None:
        """From run_start to run_stop."""
        if self.run_start_ms is None or self.run_stop_ms is None:
            return None
        return (self.run_stop_ms - self.run_start_ms) / 1e3

    @property
    def status(self) -> str | None:
        """Of run_stop, as spelled: success or aborted."""
        stop = self.first("run_stop")
        status = stop.metadata.get("status") if stop is not None else None
        return status if isinstance(status, str) else None

    @cached_property
    def evaluations(self) -> tuple[Evaluation, ...]:
        """Every eval_accuracy that is a number, in the log's order."""
        samples_of = 1.0 if self.epochs_are_samples else self.global_batch_size if self.epochs_are_steps else None
        found = []
        for event in self.all("eval_accuracy"):
            accuracy = as_number(event.value)
            if accuracy is not None:
                count = as_number(event.metadata.get("epoch_num"))
                samples = None if count is None or samples_of is None else count * samples_of
                found.append(Evaluation(event.time_ms, samples, accuracy, event.line))
        return tuple(found)

    @cached_property
    def passing(self) -> Evaluation | None:
        """The first evaluation that reaches the target."""
        return next((evaluation for evaluation in self.evaluations if evaluation.passes), None)

    @cached_property
    def epochs_are_samples(self) -> bool:
        """Whether evaluations count in samples: see `epoch_doubt`."""
        return not self.epoch_doubt

    @cached_property
    def epoch_doubt(self) -> str:
        """Why the evaluations' epoch_num cannot be numbers of samples, or "".

        They can where each is a number, none is below a thousand or below the global batch, they grow from evaluation
        to evaluation, and the last one of a successful run is not both within the steps that were planned and far below
        train_samples: then it counts steps.
        """
        if None in self._epochs:
            return "is missing or no number in an evaluation"
        numbers = [count for count in self._epochs if count is not None]
        least = max(FEWEST_SAMPLES, self.global_batch_size or 0)
        if len(numbers) > 1 and len(set(numbers)) == 1:
            return f"is {numbers[0]:g} in all evaluations"
        if numbers and min(numbers) < least:
            return f"is {min(numbers):g} in an evaluation, too few to be samples"
        if any(after <= before for before, after in pairwise(numbers)):
            return "does not grow from evaluation to evaluation"
        return self._steps(numbers[-1]) if numbers and self.status == "success" else ""

    @cached_property
    def epochs_are_steps(self) -> bool:
        """Whether epoch_num, which does not count samples, counts steps of the global batch.

        It does where whole numbers grow from evaluation to evaluation, the last one is within the steps that were
        planned, and so many batches are no more than train_samples but a fair share of them.
        """
        planned, trained = self.number("opt_learning_rate_training_steps"), self.train_samples
        numbers = [count for count in self._epochs if count is not None and count == int(count)]
        if self.epochs_are_samples or not numbers or len(numbers) < len(self._epochs):
            return False
        if planned is None or trained is None or not self.global_batch_size:
            return False
        grows = all(before < after for before, after in pairwise(numbers))
        samples = numbers[-1] * self.global_batch_size
        return grows and numbers[-1] <= planned and FAIR_SHARE * trained <= samples <= trained

    @cached_property
    def _epochs(self) -> tuple[float | None, ...]:
        return tuple(as_number(event.metadata.get("epoch_num")) for event in self.all("eval_accuracy"))

    def _steps(self, last: float) -> str:
        """Why the last epoch_num of a successful run is a number of steps, or ""."""
        steps, trained = self.number("opt_learning_rate_training_steps"), self.train_samples
        if steps is None or trained is None or last > steps or last * MOST_TIMES >= trained:
            return ""
        return f"is {last:g} in the last evaluation, within {steps:g} steps for {trained:,.0f} samples"

    @property
    def samples_to_target(self) -> float | None:
        """`samples_to` the target of today."""
        return self.samples_to(TARGET_ACCURACY)

    def samples_to(self, target: float) -> float | None:
        """Samples trained on when an accuracy was first reached, for a run that says success.

        By the epoch_num of the evaluation that reached it where it counts samples or steps, else by train_samples; None
        where the target was not reached.
        """
        reached = next((one for one in self.evaluations if target <= one.accuracy < 1.0), None)
        if reached is None or self.status != "success":
            return None
        return reached.samples if reached.samples is not None else self.train_samples

    @property
    def samples_trained(self) -> float | None:
        """Samples trained on until run_stop, for a run that says success; a few go on after the target.

        By the last evaluation before it, as the official RCP checker counts, else by train_samples.
        """
        stop = self.first("run_stop")
        if stop is None or self.status != "success":
            return None
        before = [one.samples for one in self.evaluations if one.line < stop.line and one.samples is not None]
        return max(before) if before else self.train_samples

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        """Every logged seed that is an integer."""
        numbers = (as_number(event.value) for event in self.all("seed"))
        return tuple(int(number) for number in numbers if number is not None and number == int(number))

    @cached_property
    def global_batch_size(self) -> float | None:
        return self.number("global_batch_size")

    @property
    def train_samples(self) -> float | None:
        return self.number("train_samples")

    @property
    def eval_samples(self) -> float | None:
        return self.number("eval_samples")

    @property
    def benchmark(self) -> str | None:
        return self.text("submission_benchmark")

    @property
    def division(self) -> str | None:
        return self.text("submission_division")

    @property
    def org(self) -> str | None:
        return self.text("submission_org")

    @property
    def platform(self) -> str | None:
        return self.text("submission_platform")


def as_number(value: Any) -> float | None:
    """A finite number, or the only element of a list of one; None for anything else."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value


def _time(event: Event | None) -> float | None:
    return None if event is None else event.time_ms
