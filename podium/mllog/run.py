"""One run as read from the events of its log. A value that the log does not contain is None, never a guess.

What a comparison needs of a run is small, and is cached by the hash of the log's bytes.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from mlperf_logging.mllog import constants

from benchmarks.bert.rules import TARGET_ACCURACY
from podium.core.text import one_line
from podium.mllog.lines import Event, Oddity

FEWEST_SAMPLES = 1_000  # an epoch_num below it is not a number of samples: evaluations do not come so early
MOST_TIMES = 20  # by which train_samples may exceed the last epoch_num of a successful run that is no number of steps
FAIR_SHARE = 0.1  # of train_samples, which may be what was planned, that a run to the target takes at least
MOST_SAMPLES = 1e15  # upper bound on plausible sample counts
EARLY_TARGET = 0.712  # the accuracy to reach in round 0.7, BERT's first; those after it have TARGET_ACCURACY
# The end of 2020: after round 0.7, which was published in July, and before any run of 1.0.
EARLY_UNTIL_MS = 1_609_459_200_000
# From the first init_start to init_stop, by the division that the log names, in the rulesets from 1.0.0.
SETUP_MINUTES: Mapping[str, int] = MappingProxyType({"closed": 30, "open": 240})
HYPERPARAMETERS = (
    "gradient_accumulation_steps",
    "opt_name",
    "opt_base_learning_rate",
    "opt_learning_rate_training_steps",
    "opt_learning_rate_warmup_steps",
    "num_warmup_steps",
    "start_warmup_step",
    "opt_learning_rate_decay_from",
    "opt_lamb_beta_1",
    "opt_lamb_beta_2",
    "opt_lamb_weight_decay_rate",
    "opt_lamb_epsilon",
    "opt_epsilon",
)


class Evaluation(NamedTuple):
    """One logged accuracy, whatever number it is."""

    time_ms: float
    samples: float | None  # trained on until then; None where epoch_num counts neither samples nor steps
    accuracy: float
    line: int

    @property
    def passes(self) -> bool:
        return TARGET_ACCURACY <= self.accuracy < 1.0


class Point(NamedTuple):
    """An evaluation with plausible values, by the run's clock."""

    seconds: float  # since run_start; below 0 and beyond the end of the run where the log says so
    samples: float | None  # trained on until then; None where epoch_num does not count samples
    accuracy: float


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a log says of its run: plausible numbers and printable texts only, small enough to be cached."""

    digest: str = ""  # SHA-256 of the log's bytes; empty where it was not asked for
    start_ms: float | None  # run_start, since 1970
    stop_ms: float | None
    status: str | None  # of run_stop: success or aborted; any other as it is spelled, in quotation marks
    init_seconds: float | None  # from the first init_start to run_start: outside of the time that is scored
    setup_seconds: float | None  # from the first init_start to init_stop, which the rules limit
    # In evaluation between run_start and run_stop; None where eval_start and eval_stop do not say.
    evaluating_seconds: float | None
    evaluations: tuple[Evaluation, ...]  # every eval_accuracy that is a number, in the order of the log
    # Samples trained on when the target was first reached, of a run that says success. By the epoch_num of that
    # evaluation where it counts samples or steps, else by train_samples.
    samples: float | None
    # Samples until run_stop, of a run that says success: more than `samples` where it continued after the target. By
    # the last evaluation before run_stop, as the official RCP checker counts, else by train_samples.
    trained: float | None
    train_samples: float | None
    eval_samples: float | None
    global_batch_size: float | None
    hyperparameters: Mapping[str, Any]  # those of HYPERPARAMETERS that are logged as numbers or short texts
    tensors: int  # tensors whose initialisation is logged: 398 of BERT-large, in the rounds that require it
    seeds: tuple[int, ...]  # every logged seed that is an integer
    benchmark: str | None
    division: str | None
    org: str | None
    platform: str | None
    oddities: tuple[Oddity, ...]

    @property
    def target(self) -> float:
        """The accuracy to reach: that of the rounds of its time."""
        return _target_at(self.start_ms)

    @property
    def elapsed_seconds(self) -> float | None:
        """From run_start to run_stop as logged: not above 0 where the times are wrong."""
        return None if self.start_ms is None or self.stop_ms is None else (self.stop_ms - self.start_ms) / 1e3

    @property
    def seconds(self) -> float | None:
        """From run_start to run_stop; None where that is no time that a run can take."""
        return self.elapsed_seconds if self.elapsed_seconds is not None and self.elapsed_seconds > 0 else None

    @property
    def succeeded(self) -> bool:
        """Whether the run says that it reached the target, and how long it took."""
        return self.status == constants.SUCCESS and self.seconds is not None

    @property
    def refused(self) -> str | None:
        """Why MLPerf counts a run that says success as one that did not converge; None where it does not."""
        most = SETUP_MINUTES.get(self.division or "")
        if most is not None and self.setup_seconds is not None and self.setup_seconds >= most * 60:
            return f"needed {self.setup_seconds / 60:.1f} minutes from init_start to init_stop, of {most} allowed"
        if self.division == "closed" and self.points and self._reached is None:
            return f"says success, but no evaluation reaches {self.target}"
        return None

    @property
    def converged(self) -> bool:
        """Whether it reached the target, and MLPerf counts that."""
        return self.succeeded and self.refused is None

    @cached_property
    def passing(self) -> Evaluation | None:
        """The first evaluation that reaches the target of today's rules."""
        return next((evaluation for evaluation in self.evaluations if evaluation.passes), None)

    @cached_property
    def points(self) -> tuple[Point, ...]:
        """The evaluations whose accuracy lies between 0 and 1, of a run whose start is known."""
        if self.start_ms is None:
            return ()
        return tuple(
            Point((one.time_ms - self.start_ms) / 1e3, _count(one.samples), one.accuracy)
            for one in self.evaluations
            if 0 <= one.accuracy <= 1
        )

    @cached_property
    def rate(self) -> float | None:
        """Sequences a second from run_start to run_stop, evaluation included."""
        if not self.converged or self.samples is None or self.trained is None or self.seconds is None:
            return None
        return self.trained / self.seconds

    @cached_property
    def training_rate(self) -> float | None:
        """As `rate`, without the time in evaluation."""
        if self.rate is None or self.trained is None or self.seconds is None or self.evaluating_seconds is None:
            return None
        training = self.seconds - self.evaluating_seconds
        return self.trained / training if training > 0 else None

    @cached_property
    def steady_rate(self) -> float | None:
        """Sequences a second between the first evaluation and the one that reached the target, evaluation included."""
        points = self._counted
        if len(points) < 2 or points[-1].seconds <= points[0].seconds:
            return None
        return (_samples(points[-1]) - _samples(points[0])) / (points[-1].seconds - points[0].seconds)

    @property
    def startup_seconds(self) -> float | None:
        """By how much the first evaluation came later than `steady_rate` would have it; below 0 where the first steps
        were faster."""
        if not self.steady_rate:
            return None
        return self._counted[0].seconds - _samples(self._counted[0]) / self.steady_rate

    @property
    def closing_seconds(self) -> float | None:
        """From the evaluation that reached the target to run_stop."""
        point = self._reached
        return None if point is None or self.seconds is None or not self.converged else self.seconds - point.seconds

    @property
    def _reached(self) -> Point | None:
        """The first point that reaches the target."""
        return next((point for point in self.points if self.target <= point.accuracy < 1.0), None)

    @cached_property
    def _counted(self) -> tuple[Point, ...]:
        """The evaluations up to the target, of a run that reached it and counts samples in each."""
        if self._reached is None or not self.converged or any(one.samples is None for one in self.points):
            return ()
        return self.points[: self.points.index(self._reached) + 1]


def run_from_json(values: Mapping[str, Any]) -> Run:
    """The run that `dataclasses.asdict` made these values of. TypeError or ValueError for anything else."""
    return Run(
        **{
            **values,
            "evaluations": tuple(Evaluation(*evaluation) for evaluation in values["evaluations"]),
            "seeds": tuple(values["seeds"]),
            "oddities": tuple(Oddity(*oddity) for oddity in values["oddities"]),
        }
    )


@dataclass(frozen=True)
class Log:
    """The events of a log, in its order and by their keys."""

    path: Path
    events: tuple[Event, ...]

    @property
    def name(self) -> str:
        """Of the file."""
        return self.path.name

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

    def first_ms(self, *keys: str) -> float | None:
        """The time of the first event of each of the keys, the earliest of them."""
        return min((event.time_ms for key in keys if (event := self.first(key)) is not None), default=None)

    @property
    def stop_status(self) -> str | None:
        """The status of run_stop, as spelled."""
        stop = self.first(constants.RUN_STOP)
        status = stop.metadata.get("status") if stop is not None else None
        return status if isinstance(status, str) else None

    @property
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
        least = max(FEWEST_SAMPLES, self.number(constants.GLOBAL_BATCH_SIZE) or 0)
        if len(numbers) > 1 and len(set(numbers)) == 1:
            return f"is {numbers[0]:g} in all evaluations"
        if numbers and min(numbers) < least:
            return f"is {min(numbers):g} in an evaluation, too few to be samples"
        if any(after <= before for before, after in pairwise(numbers)):
            return "does not grow from evaluation to evaluation"
        return self._steps(numbers[-1]) if numbers and self.stop_status == constants.SUCCESS else ""

    @cached_property
    def epochs_are_steps(self) -> bool:
        """Whether epoch_num, which does not count samples, counts steps of the global batch.

        It does where whole numbers grow from evaluation to evaluation, the last one is within the steps that were
        planned, and so many batches are no more than train_samples but a fair share of them.
        """
        planned, trained = self.number(constants.OPT_LR_TRAINING_STEPS), self.number(constants.TRAIN_SAMPLES)
        batch = self.number(constants.GLOBAL_BATCH_SIZE)
        numbers = [count for count in self._epochs if count is not None and count == int(count)]
        if self.epochs_are_samples or not numbers or len(numbers) < len(self._epochs):
            return False
        if planned is None or trained is None or not batch:
            return False
        grows = all(before < after for before, after in pairwise(numbers))
        return grows and numbers[-1] <= planned and FAIR_SHARE * trained <= numbers[-1] * batch <= trained

    @cached_property
    def _epochs(self) -> tuple[float | None, ...]:
        return tuple(as_number(event.metadata.get("epoch_num")) for event in self.all(constants.EVAL_ACCURACY))

    def _steps(self, last: float) -> str:
        """Why the last epoch_num of a successful run is a number of steps, or ""."""
        steps, trained = self.number(constants.OPT_LR_TRAINING_STEPS), self.number(constants.TRAIN_SAMPLES)
        if steps is None or trained is None or last > steps or last * MOST_TIMES >= trained:
            return ""
        return f"is {last:g} in the last evaluation, within {steps:g} steps for {trained:,.0f} samples"


@dataclass(frozen=True, kw_only=True)
class RunLog(Run, Log):
    """A run together with its log, for whatever depends on single lines and on values as they were written."""

    def run(self, digest: str) -> Run:
        """The run alone, whose log has bytes of that digest."""
        return Run(**{field.name: getattr(self, field.name) for field in fields(Run)} | {"digest": digest})


def run_log(path: Path, events: Sequence[Event], oddities: Sequence[Oddity]) -> RunLog:
    """What the events of a log say of its run."""
    log = Log(path, tuple(events))
    start, stop = log.first_ms(constants.RUN_START), log.first_ms(constants.RUN_STOP)
    evaluations, trained = tuple(_evaluations(log)), _count(log.number(constants.TRAIN_SAMPLES))
    seeds = [as_number(event.value) for event in log.all(constants.SEED)]
    return RunLog(
        path=path,
        events=log.events,
        start_ms=start,
        stop_ms=stop,
        status=_status(log.stop_status),
        init_seconds=_between(log.first_ms(constants.INIT_START), start),
        setup_seconds=_between(log.first_ms(constants.INIT_START), log.first_ms(constants.INIT_STOP)),
        evaluating_seconds=None if start is None or stop is None else _evaluating(log, start, stop),
        evaluations=evaluations,
        samples=_to_target(evaluations, _target_at(start), trained) if log.stop_status == constants.SUCCESS else None,
        trained=_to_stop(log, evaluations, trained) if log.stop_status == constants.SUCCESS else None,
        train_samples=trained,
        eval_samples=_count(log.number(constants.EVAL_SAMPLES)),
        global_batch_size=_count(log.number(constants.GLOBAL_BATCH_SIZE)),
        hyperparameters=_hyperparameters(log),
        tensors=len(log.all(constants.WEIGHTS_INITIALIZATION)),
        seeds=tuple(int(seed) for seed in seeds if seed is not None and seed == int(seed)),
        benchmark=_text(log, constants.SUBMISSION_BENCHMARK),
        division=_text(log, constants.SUBMISSION_DIVISION),
        org=_text(log, constants.SUBMISSION_ORG),
        platform=_text(log, constants.SUBMISSION_PLATFORM),
        oddities=tuple(oddities),
    )


def as_number(value: Any) -> float | None:
    """A finite number, or the only element of a list of one; None for anything else."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:  # of an integer that is greater than any float
        return None


def _target_at(start_ms: float | None) -> float:
    """The accuracy that a run which started then had to reach."""
    return EARLY_TARGET if start_ms is not None and start_ms < EARLY_UNTIL_MS else TARGET_ACCURACY


def _evaluations(log: Log) -> Iterator[Evaluation]:
    batch = log.number(constants.GLOBAL_BATCH_SIZE)
    samples_of = 1.0 if log.epochs_are_samples else batch if log.epochs_are_steps else None
    for event in log.all(constants.EVAL_ACCURACY):
        accuracy, count = as_number(event.value), as_number(event.metadata.get("epoch_num"))
        if accuracy is not None:
            samples = None if count is None or samples_of is None else as_number(count * samples_of)
            yield Evaluation(event.time_ms, samples, accuracy, event.line)


def _to_target(evaluations: Sequence[Evaluation], target: float, trained: float | None) -> float | None:
    reached = next((one for one in evaluations if target <= one.accuracy < 1.0), None)
    if reached is None:
        return None
    return trained if reached.samples is None else _count(reached.samples)


def _to_stop(log: Log, evaluations: Sequence[Evaluation], trained: float | None) -> float | None:
    stop = log.first(constants.RUN_STOP)
    assert stop is not None, "a log with a status has a run_stop"
    before = [one.samples for one in evaluations if one.line < stop.line and one.samples is not None]
    return _count(max(before)) if before else trained


def _samples(point: Point) -> float:
    assert point.samples is not None
    return point.samples


def _count(number: float | None) -> float | None:
    """A number of samples; None for what can be none."""
    return number if number is not None and 0 < number <= MOST_SAMPLES else None


def _text(log: Log, key: str) -> str | None:
    text = log.text(key)
    return None if text is None else one_line(text)


def _status(status: str | None) -> str | None:
    """As spelled; what only looks like one of MLPerf's is not made one by being made readable."""
    return status if status in (None, constants.SUCCESS, constants.ABORTED) else one_line(repr(status))


def _between(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None or second < first else (second - first) / 1e3


def _evaluating(log: Log, start: float, stop: float) -> float | None:
    """Seconds of the run in which at least one evaluation was under way.

    By the times, not by the order of the lines, since ranks log with clocks of their own. None without any, and where
    starts and stops do not go together.
    """
    starts, stops = (
        [min(max(event.time_ms, start), stop) for event in log.all(key)]
        for key in (constants.EVAL_START, constants.EVAL_STOP)
    )
    if not starts or len(starts) != len(stops):
        return None
    total, under_way, since = 0.0, 0, 0.0
    edges = [(time, 1) for time in starts] + [(time, -1) for time in stops]
    for time, change in sorted(edges, key=lambda edge: (edge[0], -edge[1])):  # of equal times the starts first
        if under_way == 0:
            since = time
        under_way += change
        if under_way < 0:
            return None
        if under_way == 0:
            total += time - since
    return total / 1e3


def _hyperparameters(log: Log) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key in HYPERPARAMETERS:
        event = log.first(key)
        if event is not None:
            value = one_line(event.value)[:40] if isinstance(event.value, str) else as_number(event.value)
            if value is not None:
                found[key] = value
    return found
