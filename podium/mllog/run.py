"""One run as read from the events of its log. A value that the log does not contain is None, never a guess.

`Run` is small enough to be cached by the hash of the log's bytes; `RunLog` has the events too.
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
from podium.mllog.lines import Anomaly, Event

MIN_SAMPLES = 1_000  # lower bound on an epoch_num that counts samples: no run evaluates earlier
# Ratio of train_samples to the last epoch_num of a successful run, from which on epoch_num counts steps, not samples.
MAX_SAMPLES_PER_EPOCH_NUM = 20
# Lower bound on samples to the target, as a share of train_samples, which may be the planned number.
MIN_TRAINED_SHARE = 0.1
MAX_SAMPLES = 1e15  # upper bound on plausible sample counts
EARLY_TARGET = 0.712  # the accuracy to reach in round 0.7, BERT's first; those after it have TARGET_ACCURACY
# End of 2020: after round 0.7, published in July, and before any run of round 1.0.
EARLY_UNTIL_MS = 1_609_459_200_000
# Limit from the first init_start to init_stop, by division, in the rulesets from 1.0.0.
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
    """One logged accuracy, not checked for plausibility."""

    time_ms: float
    samples: float | None  # trained on until then; None where epoch_num counts neither samples nor steps
    accuracy: float
    line: int

    @property
    def passes(self) -> bool:
        """Whether the accuracy is at least today's target and below 1."""
        return TARGET_ACCURACY <= self.accuracy < 1.0


class Point(NamedTuple):
    """An evaluation with plausible values, its time relative to run_start."""

    seconds: float  # since run_start; negative or beyond the end of the run if logged so
    samples: float | None  # trained on until then; None where epoch_num does not count samples
    accuracy: float


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run as logged: plausible numbers and printable texts only, small enough to be cached."""

    digest: str = ""  # SHA-256 of the log's bytes; empty where not computed
    start_ms: float | None  # run_start, since 1970
    stop_ms: float | None
    status: str | None  # of run_stop: success or aborted; any other value in quotation marks
    init_seconds: float | None  # from the first init_start to run_start, which the score does not include
    setup_seconds: float | None  # from the first init_start to init_stop, limited by the rules: SETUP_MINUTES
    # In evaluation between run_start and run_stop; None where eval_start and eval_stop are missing or do not match.
    evaluating_seconds: float | None
    evaluations: tuple[Evaluation, ...]  # every eval_accuracy that is a number, in log order
    # Samples trained on when the target was first reached, of a run with status success: the epoch_num of that
    # evaluation where it counts samples or steps, else train_samples.
    samples: float | None
    # Samples until run_stop, of a run with status success; more than `samples` if it continued after the target. Of
    # the last evaluation before run_stop, as the official RCP checker counts, else train_samples.
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
    anomalies: tuple[Anomaly, ...]

    @property
    def target(self) -> float:
        """The target accuracy of the rounds at the time of the run."""
        return _target_at(self.start_ms)

    @property
    def elapsed_seconds(self) -> float | None:
        """From run_start to run_stop as logged; 0 or negative where the times are wrong."""
        return None if self.start_ms is None or self.stop_ms is None else (self.stop_ms - self.start_ms) / 1e3

    @property
    def seconds(self) -> float | None:
        """From run_start to run_stop; None unless that is positive."""
        return self.elapsed_seconds if self.elapsed_seconds is not None and self.elapsed_seconds > 0 else None

    @property
    def succeeded(self) -> bool:
        """Whether the log has status success and a valid time."""
        return self.status == constants.SUCCESS and self.seconds is not None

    @property
    def rejection_reason(self) -> str | None:
        """Why MLPerf counts a run with status success as not converged, as a sentence fragment; None if it does not."""
        limit = SETUP_MINUTES.get(self.division or "")
        if limit is not None and self.setup_seconds is not None and self.setup_seconds >= limit * 60:
            return f"needed {self.setup_seconds / 60:.1f} minutes from init_start to init_stop, of {limit} allowed"
        if self.division == "closed" and self.points and self._target_point is None:
            return f"has status success, but no evaluation reaches {self.target}"
        return None

    @property
    def converged(self) -> bool:
        """Whether the run reached the target, and MLPerf counts it."""
        return self.succeeded and self.rejection_reason is None

    @cached_property
    def passing(self) -> Evaluation | None:
        """The first evaluation that reaches the target of the current rules."""
        return next((evaluation for evaluation in self.evaluations if evaluation.passes), None)

    @cached_property
    def points(self) -> tuple[Point, ...]:
        """Evaluations with an accuracy from 0 to 1; empty if run_start is not logged."""
        if self.start_ms is None:
            return ()
        return tuple(
            Point((one.time_ms - self.start_ms) / 1e3, _plausible_samples(one.samples), one.accuracy)
            for one in self.evaluations
            if 0 <= one.accuracy <= 1
        )

    @cached_property
    def rate(self) -> float | None:
        """Sequences/s from run_start to run_stop, evaluation included; None unless converged."""
        if not self.converged or self.samples is None or self.trained is None or self.seconds is None:
            return None
        return self.trained / self.seconds

    @cached_property
    def training_rate(self) -> float | None:
        """Sequences/s as `rate`, without the time in evaluation."""
        if self.rate is None or self.trained is None or self.seconds is None or self.evaluating_seconds is None:
            return None
        training = self.seconds - self.evaluating_seconds
        return self.trained / training if training > 0 else None

    @cached_property
    def steady_rate(self) -> float | None:
        """Sequences/s from the first evaluation to the one that reached the target, evaluation included."""
        points = self._points_to_target
        if len(points) < 2 or points[-1].seconds <= points[0].seconds:
            return None
        return (_known_samples(points[-1]) - _known_samples(points[0])) / (points[-1].seconds - points[0].seconds)

    @property
    def startup_seconds(self) -> float | None:
        """Seconds by which the first evaluation is later than `steady_rate` predicts; negative if the first steps were
        faster."""
        if not self.steady_rate:
            return None
        return self._points_to_target[0].seconds - _known_samples(self._points_to_target[0]) / self.steady_rate

    @property
    def closing_seconds(self) -> float | None:
        """Seconds from the evaluation that reached the target to run_stop."""
        point = self._target_point
        return None if point is None or self.seconds is None or not self.converged else self.seconds - point.seconds

    @property
    def _target_point(self) -> Point | None:
        """The first point that reaches the target."""
        return next((point for point in self.points if self.target <= point.accuracy < 1.0), None)

    @cached_property
    def _points_to_target(self) -> tuple[Point, ...]:
        """Points up to the target; empty unless the run converged and every point has samples."""
        if self._target_point is None or not self.converged or any(one.samples is None for one in self.points):
            return ()
        return self.points[: self.points.index(self._target_point) + 1]


def run_from_json(values: Mapping[str, Any]) -> Run:
    """Rebuild a run from the output of `dataclasses.asdict`. TypeError, ValueError or KeyError for anything else."""
    return Run(
        **{
            **values,
            "evaluations": tuple(Evaluation(*evaluation) for evaluation in values["evaluations"]),
            "seeds": tuple(values["seeds"]),
            "anomalies": tuple(Anomaly(*anomaly) for anomaly in values["anomalies"]),
        }
    )


@dataclass(frozen=True)
class Log:
    """The events of a log, in order and by key."""

    path: Path
    events: tuple[Event, ...]

    @property
    def name(self) -> str:
        """File name."""
        return self.path.name

    @cached_property
    def by_key(self) -> Mapping[str, Sequence[Event]]:
        """The events of each key, in log order."""
        found: dict[str, list[Event]] = {}
        for event in self.events:
            found.setdefault(event.key, []).append(event)
        return found

    def first(self, key: str) -> Event | None:
        """Return the first event of a key, or None."""
        events = self.by_key.get(key)
        return events[0] if events else None

    def all(self, key: str) -> Sequence[Event]:
        """Return all events of a key, in log order."""
        return self.by_key.get(key, ())

    def text(self, key: str) -> str | None:
        """Return the value of the key's first event if it is a string, else None."""
        event = self.first(key)
        return event.value if event is not None and isinstance(event.value, str) else None

    def number(self, key: str) -> float | None:
        """Return the value of the key's first event if it is a number or a list of one, else None."""
        event = self.first(key)
        return None if event is None else as_number(event.value)

    def first_ms(self, *keys: str) -> float | None:
        """Return the earliest of the times of each key's first event, or None."""
        return min((event.time_ms for key in keys if (event := self.first(key)) is not None), default=None)

    @property
    def stop_status(self) -> str | None:
        """The status of the first run_stop, as logged."""
        stop = self.first(constants.RUN_STOP)
        status = stop.metadata.get("status") if stop is not None else None
        return status if isinstance(status, str) else None

    @property
    def epochs_are_samples(self) -> bool:
        """Whether epoch_num of evaluations counts samples: see `epoch_doubt`."""
        return not self.epoch_doubt

    @cached_property
    def epoch_doubt(self) -> str:
        """Why the evaluations' epoch_num does not count samples, as a sentence fragment; "" where it does.

        It counts samples if each is a number, none is below MIN_SAMPLES or the global batch size, they increase, and
        the last one of a successful run is not both within the planned steps and far below train_samples: such a
        number counts steps.
        """
        if None in self._epoch_numbers:
            return "is missing or not a number in an evaluation"
        numbers = [count for count in self._epoch_numbers if count is not None]
        least = max(MIN_SAMPLES, self.number(constants.GLOBAL_BATCH_SIZE) or 0)
        if len(numbers) > 1 and len(set(numbers)) == 1:
            return f"is {numbers[0]:g} in all evaluations"
        if numbers and min(numbers) < least:
            return f"is {min(numbers):g} in an evaluation, too few to be samples"
        if any(after <= before for before, after in pairwise(numbers)):
            return "does not increase from evaluation to evaluation"
        return self._explain_steps(numbers[-1]) if numbers and self.stop_status == constants.SUCCESS else ""

    @cached_property
    def epochs_are_steps(self) -> bool:
        """Whether epoch_num counts steps of the global batch, not samples.

        It does if whole numbers increase from evaluation to evaluation, the last one is within the planned steps, and
        that number of batches is between MIN_TRAINED_SHARE and all of train_samples.
        """
        planned, trained = self.number(constants.OPT_LR_TRAINING_STEPS), self.number(constants.TRAIN_SAMPLES)
        batch = self.number(constants.GLOBAL_BATCH_SIZE)
        numbers = [count for count in self._epoch_numbers if count is not None and count == int(count)]
        if self.epochs_are_samples or not numbers or len(numbers) < len(self._epoch_numbers):
            return False
        if planned is None or trained is None or not batch:
            return False
        increases = all(before < after for before, after in pairwise(numbers))
        return increases and numbers[-1] <= planned and MIN_TRAINED_SHARE * trained <= numbers[-1] * batch <= trained

    @cached_property
    def _epoch_numbers(self) -> tuple[float | None, ...]:
        return tuple(as_number(event.metadata.get("epoch_num")) for event in self.all(constants.EVAL_ACCURACY))

    def _explain_steps(self, last: float) -> str:
        """Why the last epoch_num of a successful run is a number of steps, as a sentence fragment, or ""."""
        steps, trained = self.number(constants.OPT_LR_TRAINING_STEPS), self.number(constants.TRAIN_SAMPLES)
        if steps is None or trained is None or last > steps or last * MAX_SAMPLES_PER_EPOCH_NUM >= trained:
            return ""
        return f"is {last:g} in the last evaluation, within {steps:g} steps for {trained:,.0f} samples"


@dataclass(frozen=True, kw_only=True)
class RunLog(Run, Log):
    """A run with its log, for checks of single lines and of values as logged."""

    def run(self, digest: str) -> Run:
        """Return the run without its log, with the SHA-256 of the log's bytes."""
        return Run(**{field.name: getattr(self, field.name) for field in fields(Run)} | {"digest": digest})


def build_run_log(path: Path, events: Sequence[Event], anomalies: Sequence[Anomaly]) -> RunLog:
    """Build the run from the events of its log."""
    log = Log(path, tuple(events))
    start, stop = log.first_ms(constants.RUN_START), log.first_ms(constants.RUN_STOP)
    evaluations, trained = tuple(_read_evaluations(log)), _plausible_samples(log.number(constants.TRAIN_SAMPLES))
    seeds = [as_number(event.value) for event in log.all(constants.SEED)]
    succeeded = log.stop_status == constants.SUCCESS
    return RunLog(
        path=path,
        events=log.events,
        start_ms=start,
        stop_ms=stop,
        status=_printable_status(log.stop_status),
        init_seconds=_seconds_between(log.first_ms(constants.INIT_START), start),
        setup_seconds=_seconds_between(log.first_ms(constants.INIT_START), log.first_ms(constants.INIT_STOP)),
        evaluating_seconds=None if start is None or stop is None else _evaluating_seconds(log, start, stop),
        evaluations=evaluations,
        samples=_samples_to_target(evaluations, _target_at(start), trained) if succeeded else None,
        trained=_samples_to_stop(log, evaluations, trained) if succeeded else None,
        train_samples=trained,
        eval_samples=_plausible_samples(log.number(constants.EVAL_SAMPLES)),
        global_batch_size=_plausible_samples(log.number(constants.GLOBAL_BATCH_SIZE)),
        hyperparameters=_read_hyperparameters(log),
        tensors=len(log.all(constants.WEIGHTS_INITIALIZATION)),
        seeds=tuple(int(seed) for seed in seeds if seed is not None and seed == int(seed)),
        benchmark=_one_line_text(log, constants.SUBMISSION_BENCHMARK),
        division=_one_line_text(log, constants.SUBMISSION_DIVISION),
        org=_one_line_text(log, constants.SUBMISSION_ORG),
        platform=_one_line_text(log, constants.SUBMISSION_PLATFORM),
        anomalies=tuple(anomalies),
    )


def as_number(value: Any) -> float | None:
    """Return a finite number, or that in a list of one; None for anything else, also for booleans."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:  # an integer beyond the range of float
        return None


def _target_at(start_ms: float | None) -> float:
    """Target accuracy of the rounds at that time."""
    return EARLY_TARGET if start_ms is not None and start_ms < EARLY_UNTIL_MS else TARGET_ACCURACY


def _read_evaluations(log: Log) -> Iterator[Evaluation]:
    batch = log.number(constants.GLOBAL_BATCH_SIZE)
    samples_of = 1.0 if log.epochs_are_samples else batch if log.epochs_are_steps else None
    for event in log.all(constants.EVAL_ACCURACY):
        accuracy, count = as_number(event.value), as_number(event.metadata.get("epoch_num"))
        if accuracy is not None:
            samples = None if count is None or samples_of is None else as_number(count * samples_of)
            yield Evaluation(event.time_ms, samples, accuracy, event.line)


def _samples_to_target(evaluations: Sequence[Evaluation], target: float, trained: float | None) -> float | None:
    reached = next((one for one in evaluations if target <= one.accuracy < 1.0), None)
    if reached is None:
        return None
    return trained if reached.samples is None else _plausible_samples(reached.samples)


def _samples_to_stop(log: Log, evaluations: Sequence[Evaluation], trained: float | None) -> float | None:
    stop = log.first(constants.RUN_STOP)
    assert stop is not None, "a log with a status has a run_stop"
    # By line, not by time: ranks log with different clocks.
    before = [one.samples for one in evaluations if one.line < stop.line and one.samples is not None]
    return _plausible_samples(max(before)) if before else trained


def _known_samples(point: Point) -> float:
    assert point.samples is not None
    return point.samples


def _plausible_samples(number: float | None) -> float | None:
    """Return a number of samples; None if it is not plausible."""
    return number if number is not None and 0 < number <= MAX_SAMPLES else None


def _one_line_text(log: Log, key: str) -> str | None:
    text = log.text(key)
    return None if text is None else one_line(text)


def _printable_status(status: str | None) -> str | None:
    """Return a status of MLPerf's as it is, and any other in quotation marks."""
    # Without them, removing invisible characters would turn a forged status into `success`.
    return status if status in (None, constants.SUCCESS, constants.ABORTED) else one_line(repr(status))


def _seconds_between(first: float | None, second: float | None) -> float | None:
    """Seconds from the first time to the second, both in ms; None if either is unknown or they are reversed."""
    return None if first is None or second is None or second < first else (second - first) / 1e3


def _evaluating_seconds(log: Log, start: float, stop: float) -> float | None:
    """Seconds of the run during which at least one evaluation ran; None without one, or if starts and stops differ."""
    # Union of intervals, ordered by time, not by line: ranks log with different clocks, and evaluations may overlap.
    starts, stops = (
        [min(max(event.time_ms, start), stop) for event in log.all(key)]
        for key in (constants.EVAL_START, constants.EVAL_STOP)
    )
    if not starts or len(starts) != len(stops):
        return None
    total, running, since = 0.0, 0, 0.0
    edges = [(time, 1) for time in starts] + [(time, -1) for time in stops]
    for time, change in sorted(edges, key=lambda edge: (edge[0], -edge[1])):  # starts first at equal times
        if running == 0:
            since = time
        running += change
        if running < 0:
            return None
        if running == 0:
            total += time - since
    return total / 1e3


def _read_hyperparameters(log: Log) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key in HYPERPARAMETERS:
        event = log.first(key)
        if event is not None:
            value = one_line(event.value)[:40] if isinstance(event.value, str) else as_number(event.value)
            if value is not None:
                found[key] = value
    return found
