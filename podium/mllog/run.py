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

from podium.core.text import one_line
from podium.mllog.benchmarks import Benchmark, Progress, Target, find_benchmark, round_at
from podium.mllog.lines import Anomaly, Event

MIN_SAMPLES = 1_000  # lower bound on an epoch_num that counts samples: no run evaluates earlier
# Ratio of train_samples to the last epoch_num of a successful run, from which on epoch_num counts steps, not samples.
MAX_SAMPLES_PER_EPOCH_NUM = 20
# Lower bound on samples to the target, as a share of train_samples, which may be the planned number.
MIN_TRAINED_SHARE = 0.1
MAX_SAMPLES = 1e15  # upper bound on plausible sample counts
BERT = "bert"
UNPARSED = ("json", "cut_off", "fields")  # kinds of anomalies for which the official checker rejects a whole log
NO_PROGRESS: Mapping[str, None] = MappingProxyType({"trained": None, "progress": None})
# Limit from the first init_start to init_stop, by division, in the rulesets from 1.0.0.
SETUP_MINUTES: Mapping[str, int] = MappingProxyType({"closed": 30, "open": 240})
# Logged settings that a run keeps: all keys with this prefix, and these.
HYPERPARAMETER_PREFIX = "opt_"
HYPERPARAMETERS = frozenset(
    {
        "gradient_accumulation_steps",
        "d_batch_size",
        "num_warmup_steps",
        "start_warmup_step",
        "max_sequence_length",
        "max_steps",
        "lora_rank",
        "lora_alpha",
        "lowest_numerical_precision_in_linear",
        "lowest_numerical_precision_in_attn",
        "lowest_numerical_precision_in_comm",
        "tensor_parallelism",
        "pipeline_parallelism",
        "context_parallelism",
        "expert_parallelism",
        "micro_batch_size",
        "config_filename",
    }
)
MAX_HYPERPARAMETERS = 64  # that a run keeps; published logs have up to 20


class Evaluation(NamedTuple):
    """One evaluation, its value not checked for plausibility."""

    time_ms: float
    samples: float | None  # trained on until then; None where the log does not determine it
    accuracy: float  # the value of eval_accuracy: the benchmark's metric, or the first of several; may be a loss
    line: int
    passes: bool  # whether all metrics reach the targets of the round


class Point(NamedTuple):
    """An evaluation with plausible values, its time relative to run_start."""

    seconds: float  # since run_start; negative or beyond the end of the run if logged so
    samples: float | None  # trained on until then; None where epoch_num does not count samples
    accuracy: float
    passes: bool


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run as logged: plausible numbers and printable texts only, small enough to be cached."""

    digest: str = ""  # SHA-256 of the log's bytes; empty where not computed
    round: str | None  # the round whose targets and units apply; by the date of the run where none was given
    start_ms: float | None  # run_start, since 1970
    stop_ms: float | None
    status: str | None  # of run_stop: success or aborted; any other value in quotation marks
    init_seconds: float | None  # from the first init_start to run_start, which the score does not include
    setup_seconds: float | None  # from the first init_start to init_stop, limited by the rules: SETUP_MINUTES
    # In evaluation between run_start and run_stop; None where eval_start and eval_stop are missing or do not match.
    evaluating_seconds: float | None
    evaluations: tuple[Evaluation, ...]  # every eval_accuracy that is a number, in log order
    # Samples trained on when the target was first reached, of a run with status success. Of a BERT log whose epoch_num
    # counts neither samples nor steps, train_samples.
    samples: float | None
    # Samples until run_stop, of a run with status success; more than `samples` if it continued after the target. Of
    # the last evaluation before run_stop, as the official RCP checker counts; of BERT else train_samples.
    trained: float | None
    # The same in the unit in which the benchmark's reference convergence points are: samples, epochs or tokens.
    progress: float | None
    train_samples: float | None
    eval_samples: float | None
    global_batch_size: float | None
    hyperparameters: Mapping[str, Any]  # HYPERPARAMETERS and those with the prefix, if numbers or short texts
    tensors: int  # tensors whose initialisation is logged: 398 of BERT-large, in the rounds that require it
    seeds: tuple[int, ...]  # every logged seed that is an integer
    benchmark: str | None  # submission_benchmark, or without it the folder of the log if that names a benchmark
    folder: str | None  # name of the log's folder if the log has no submission_benchmark: values depend on it then
    division: str | None
    org: str | None
    platform: str | None
    anomalies: tuple[Anomaly, ...]

    @property
    def rules(self) -> Benchmark | None:
        """The entry of the table of benchmarks; None for one that is not in the table."""
        return find_benchmark(self.benchmark)

    @cached_property
    def targets(self) -> tuple[Target, ...]:
        """The targets of the round, one for each metric; empty where they are not known."""
        return () if self.rules is None else self.rules.targets_in(self.round, self.global_batch_size)

    @property
    def elapsed_seconds(self) -> float | None:
        """From run_start to run_stop as logged; 0 or negative where the times are wrong."""
        return None if self.start_ms is None or self.stop_ms is None else (self.stop_ms - self.start_ms) / 1e3

    @cached_property
    def seconds(self) -> float | None:
        """From run_start to run_stop; None unless that is positive."""
        return self.elapsed_seconds if self.elapsed_seconds is not None and self.elapsed_seconds > 0 else None

    @property
    def succeeded(self) -> bool:
        """Whether the log has status success and a valid time."""
        return self.status == constants.SUCCESS and self.seconds is not None

    @cached_property
    def rejection_reason(self) -> str | None:
        """Why MLPerf counts a run with status success as not converged, as a sentence fragment; None if it does not."""
        limit = SETUP_MINUTES.get(self.division or "")
        if limit is not None and self.setup_seconds is not None and self.setup_seconds >= limit * 60:
            return f"needed {self.setup_seconds / 60:.1f} minutes from init_start to init_stop, of {limit} allowed"
        damaged = next((anomaly for anomaly in self.anomalies if anomaly.kind in UNPARSED), None)
        if damaged is not None:
            return f"has an event that no parser reads (line {damaged.line:,}): the official checker rejects the log"
        if self.division == "closed" and self.targets and self.points and self._target_point is None:
            return f"has status success, but no evaluation reaches {' and '.join(map(str, self.targets))}"
        return None

    @cached_property
    def converged(self) -> bool:
        """Whether the run reached the target, and MLPerf counts it."""
        return self.succeeded and self.rejection_reason is None

    @cached_property
    def passing(self) -> Evaluation | None:
        """The first evaluation that reaches the target."""
        return next((evaluation for evaluation in self.evaluations if evaluation.passes), None)

    @cached_property
    def points(self) -> tuple[Point, ...]:
        """Evaluations with a plausible value of their metric; empty if run_start is not logged."""
        if self.start_ms is None:
            return ()
        return tuple(
            Point((one.time_ms - self.start_ms) / 1e3, _plausible_samples(one.samples), one.accuracy, one.passes)
            for one in self.evaluations
            if not self.targets or self.targets[0].is_plausible(one.accuracy)
        )

    @cached_property
    def rate(self) -> float | None:
        """Samples/s from run_start to run_stop, evaluation included; None unless converged."""
        if not self.converged or self.samples is None or self.trained is None or self.seconds is None:
            return None
        return self.trained / self.seconds

    @cached_property
    def training_rate(self) -> float | None:
        """Samples/s as `rate`, without the time in evaluation."""
        if self.rate is None or self.trained is None or self.seconds is None or self.evaluating_seconds is None:
            return None
        training = self.seconds - self.evaluating_seconds
        return self.trained / training if training > 0 else None

    @cached_property
    def steady_rate(self) -> float | None:
        """Samples/s from the first evaluation to the one that reached the target, evaluation included."""
        points = self._points_to_target
        if len(points) < 2 or points[-1].seconds <= points[0].seconds:
            return None
        return (_known_samples(points[-1]) - _known_samples(points[0])) / (points[-1].seconds - points[0].seconds)

    @property
    def startup_seconds(self) -> float | None:
        """Seconds by which the first evaluation is later than `steady_rate` predicts; None if it is earlier."""
        if not self.steady_rate:
            return None
        first = self._points_to_target[0]
        seconds = first.seconds - _known_samples(first) / self.steady_rate
        return seconds if seconds >= 0 else None

    @property
    def closing_seconds(self) -> float | None:
        """Seconds from the evaluation that reached the target to run_stop; None if it was evaluated after that."""
        point = self._target_point
        if point is None or self.seconds is None or not self.converged:
            return None
        offline = self.rules is not None and self.rules.offline_evaluation
        return None if offline or point.seconds > self.seconds else self.seconds - point.seconds

    @property
    def _target_point(self) -> Point | None:
        """The first point that reaches the target."""
        return next((point for point in self.points if point.passes), None)

    @cached_property
    def _points_to_target(self) -> tuple[Point, ...]:
        """Points up to the target; empty unless the run converged, was evaluated during it, and points have samples."""
        if self._target_point is None or not self.converged or any(one.samples is None for one in self.points):
            return ()
        if self.rules is not None and self.rules.offline_evaluation:
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


def build_run_log(
    path: Path, events: Sequence[Event], anomalies: Sequence[Anomaly], round_name: str | None = None
) -> RunLog:
    """Build the run from the events of its log, by the rules of a round or else of the run's date."""
    log = Log(path, tuple(events))
    start, stop = log.first_ms(constants.RUN_START), log.first_ms(constants.RUN_STOP)
    batch, trained = (
        _plausible_samples(log.number(key)) for key in (constants.GLOBAL_BATCH_SIZE, constants.TRAIN_SAMPLES)
    )
    name = _benchmark_name(log)
    rules, round_name = find_benchmark(name), round_name or round_at(start)
    targets = () if rules is None else rules.targets_in(round_name, batch)
    unit = _progress(rules, round_name)
    read_evaluations = _read_bert_evaluations if name == BERT else _read_evaluations
    evaluations = tuple(read_evaluations(log, targets, unit))
    seeds = [as_number(event.value) for event in log.all(constants.SEED)]
    succeeded = log.stop_status == constants.SUCCESS
    return RunLog(
        path=path,
        events=log.events,
        round=round_name,
        start_ms=start,
        stop_ms=stop,
        status=_printable_status(log.stop_status),
        init_seconds=_seconds_between(log.first_ms(constants.INIT_START), start),
        setup_seconds=_seconds_between(log.first_ms(constants.INIT_START), log.first_ms(constants.INIT_STOP)),
        evaluating_seconds=None if start is None or stop is None else _evaluating_seconds(log, start, stop),
        evaluations=evaluations,
        samples=_samples_to_target(evaluations, trained if name == BERT else None, rules) if succeeded else None,
        **(_progress_to_stop(log, evaluations, trained, rules, unit) if succeeded else NO_PROGRESS),
        train_samples=trained,
        eval_samples=_plausible_samples(log.number(constants.EVAL_SAMPLES)),
        global_batch_size=batch,
        hyperparameters=_read_hyperparameters(log),
        tensors=len(log.all(constants.WEIGHTS_INITIALIZATION)),
        seeds=tuple(int(seed) for seed in seeds if seed is not None and seed == int(seed)),
        benchmark=name,
        folder=path.absolute().parent.name if log.text(constants.SUBMISSION_BENCHMARK) is None else None,
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


def _benchmark_name(log: Log) -> str | None:
    """Return the benchmark that a log names, else the one that its folder is named after, else None."""
    logged = _one_line_text(log, constants.SUBMISSION_BENCHMARK)
    if logged is not None:
        found = find_benchmark(logged)
        return logged if found is None else found.name
    folder = find_benchmark(log.path.absolute().parent.name)
    return None if folder is None else folder.name


def _progress(rules: Benchmark | None, round_name: str | None) -> Progress:
    """Return what counts progress in a round; samples_count where it is not known."""
    found = None if rules is None else rules.progress_in(round_name)
    return found or Progress("samples_count", 1.0)


def _read_bert_evaluations(log: Log, targets: Sequence[Target], progress: Progress) -> Iterator[Evaluation]:
    """Yield the evaluations of a BERT log, whose epoch_num counts samples in most logs, and steps in some."""
    batch = log.number(constants.GLOBAL_BATCH_SIZE)
    samples_of = 1.0 if log.epochs_are_samples else batch if log.epochs_are_steps else None
    for event in log.all(constants.EVAL_ACCURACY):
        accuracy, count = as_number(event.value), as_number(event.metadata.get(progress.key))
        if accuracy is not None:
            samples = None if count is None or samples_of is None else as_number(count * samples_of)
            passes = all(target.reached(accuracy) for target in targets)
            yield Evaluation(event.time_ms, samples, accuracy, event.line, passes)


def _read_evaluations(log: Log, targets: Sequence[Target], progress: Progress) -> Iterator[Evaluation]:
    """Yield the evaluations of a benchmark other than BERT.

    Where the benchmark has several metrics, an evaluation is one in which all of them are known: in one event, or in
    one event each with the same progress.
    """
    found: dict[float | None, dict[str, float]] = {}
    for event in log.all(constants.EVAL_ACCURACY):
        count = _event_progress(event, progress)
        values = _metric_values(event, targets)
        if len(targets) > 1:
            values = found.setdefault(count, {}) | values
            found[count] = values
            if any(target.name not in values for target in targets):
                continue
        if not values:
            continue
        size = log.number(constants.GLOBAL_BATCH_SIZE) if progress.key == "step_num" else progress.samples
        samples = None if count is None or size is None else count * size
        passes = bool(targets) and all(target.reached(values[target.name]) for target in targets)
        first = values[targets[0].name] if targets else next(iter(values.values()))
        yield Evaluation(event.time_ms, samples, first, event.line, passes)


def _metric_values(event: Event, targets: Sequence[Target]) -> dict[str, float]:
    """Return the values of an evaluation by the names of its metrics; the name is empty where there is one metric."""
    if isinstance(event.value, dict):
        numbers = {target.name: as_number(event.value.get(target.name)) for target in targets}
    else:
        metric = event.metadata.get("metric") if len(targets) > 1 else ""
        numbers = {metric: as_number(event.value)} if isinstance(metric, str) else {}
    return {name: number for name, number in numbers.items() if number is not None}


def _event_progress(event: Event, progress: Progress) -> float | None:
    """Return how far the run had come in an evaluation; epoch_num as the official tools round it."""
    count = as_number(event.metadata.get(progress.key))
    return round(count, 3) if count is not None and progress.key == "epoch_num" else count


def _samples_to_target(
    evaluations: Sequence[Evaluation], trained: float | None, rules: Benchmark | None
) -> float | None:
    """Return the samples at the first evaluation that passes, or `trained` if it does not have them."""
    passing = [one for one in evaluations if one.passes]
    if not passing:
        return None
    if rules is not None and rules.offline_evaluation:
        # The official checker counts until the earliest checkpoint that passes, whenever it was evaluated.
        return min((count for one in passing if (count := _plausible_samples(one.samples)) is not None), default=None)
    return trained if passing[0].samples is None else _plausible_samples(passing[0].samples)


def _progress_to_stop(
    log: Log, evaluations: Sequence[Evaluation], trained: float | None, rules: Benchmark | None, unit: Progress
) -> dict[str, float | None]:
    """Return `trained` and `progress` of a run with status success."""
    stop = log.first(constants.RUN_STOP)
    assert stop is not None, "a log with a status has a run_stop"
    # By line, not by time: ranks log with different clocks.
    if rules is not None and rules.name == BERT:
        before = [one.samples for one in evaluations if one.line < stop.line and one.samples is not None]
        samples = _plausible_samples(max(before)) if before else trained
        return {"trained": samples, "progress": samples}
    counts = [_event_progress(event, unit) for event in log.all(constants.EVAL_ACCURACY) if event.line < stop.line]
    if rules is not None and rules.offline_evaluation:
        size = unit.samples or log.number(constants.GLOBAL_BATCH_SIZE)
        samples = _samples_to_target(evaluations, None, rules)
        return {"trained": samples, "progress": None if samples is None or not size else samples / size}
    last = counts[-1] if counts else None
    return {
        "trained": None if last is None or unit.samples is None else _plausible_samples(last * unit.samples),
        "progress": last,
    }


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
    for key, events in log.by_key.items():
        if key in HYPERPARAMETERS or (key.startswith(HYPERPARAMETER_PREFIX) and key.isidentifier() and len(key) <= 64):
            value = events[0].value
            kept = one_line(value)[:40] if isinstance(value, str) else as_number(value)
            if kept is not None and len(found) < MAX_HYPERPARAMETERS:
                found[key] = kept
    return found
