"""What a comparison needs of one run's log. It is small, and is kept by what the log's bytes are."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

from mlperf_logging.mllog import constants

from benchmarks.bert.rules import TARGET_ACCURACY
from benchmarks.text import one_line
from podium.reading.lines import Event, Oddity
from podium.reading.run_log import RunLog, as_number

HYPERPARAMETERS = (
    "gradient_accumulation_steps",
    "opt_name",
    "opt_base_learning_rate",
    "opt_learning_rate_training_steps",
    "opt_learning_rate_warmup_steps",
    "num_warmup_steps",
    "start_warmup_step",
    "opt_lamb_beta_1",
    "opt_lamb_beta_2",
    "opt_lamb_weight_decay_rate",
    "opt_lamb_epsilon",
    "opt_epsilon",
)


EARLY_TARGET = 0.712
"""The accuracy to reach in round 0.7, BERT's first; those after it have TARGET_ACCURACY."""
EARLY_UNTIL_MS = 1_609_459_200_000
"""The end of 2020: after round 0.7, which was published in July, and before any run of 1.0."""


SETUP_MINUTES: Mapping[str, int] = MappingProxyType({"closed": 30, "open": 240})
"""From the first init_start to init_stop, by the division that the log names, in the rulesets from 1.0.0."""
MOST_SAMPLES = 1e15
"""That anybody trains on."""


class Point(NamedTuple):
    """One evaluation of a run."""

    seconds: float
    """Since run_start; below 0 and beyond the end of the run where the log says so."""
    samples: float | None
    """Trained on until then; None where epoch_num does not count samples."""
    accuracy: float


@dataclass(frozen=True)
class Run:
    """A run as its log tells it. What the log does not say is None, never a guess."""

    digest: str
    """SHA-256 of the log's bytes."""
    start_ms: float | None
    """run_start, since 1970."""
    stop_ms: float | None
    status: str | None
    """Of run_stop: success or aborted; any other as it is spelled, in quotation marks."""
    init_seconds: float | None
    """From the first init_start to run_start: outside of the time that is scored."""
    first_step_seconds: float | None
    """From run_start to the first block_start or epoch_start."""
    evaluating_seconds: float | None
    """In evaluation between run_start and run_stop; None where eval_start and eval_stop do not tell it."""
    evaluations: tuple[Point, ...]
    """In the order of the log."""
    samples: float | None
    """To the target, of a run that reached it: `RunLog.samples_to`."""
    trained: float | None
    """Samples until run_stop, of a run that reached the target: more than `samples` where it went on."""
    train_samples: float | None
    eval_samples: float | None
    global_batch_size: float | None
    hyperparameters: Mapping[str, Any]
    """Those of HYPERPARAMETERS that are logged as numbers or short texts."""
    tensors: int
    """Whose initialisation is logged: 398 of BERT-large, in the rounds that ask for it."""
    seeds: tuple[int, ...]
    benchmark: str | None
    division: str | None
    org: str | None
    platform: str | None
    oddities: tuple[Oddity, ...]
    setup_seconds: float | None = None
    """From the first init_start to init_stop, which the rules limit."""

    @property
    def target(self) -> float:
        """The accuracy to reach: that of the rounds of its time."""
        return target_at(self.start_ms)

    @property
    def seconds(self) -> float | None:
        """From run_start to run_stop."""
        if self.start_ms is None or self.stop_ms is None or self.stop_ms <= self.start_ms:
            return None
        return (self.stop_ms - self.start_ms) / 1e3

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
        if self.division == "closed" and self.evaluations and reached(self.evaluations, self.target) is None:
            return f"says success, but no evaluation reaches {self.target}"
        return None

    @property
    def converged(self) -> bool:
        """Whether it reached the target, and MLPerf counts that."""
        return self.succeeded and self.refused is None

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
        point = reached(self.evaluations, self.target)
        return None if point is None or self.seconds is None or not self.converged else self.seconds - point.seconds

    @cached_property
    def _counted(self) -> tuple[Point, ...]:
        """The evaluations up to the target, of a run that reached it and counts samples in each."""
        point = reached(self.evaluations, self.target)
        if point is None or not self.converged or any(one.samples is None for one in self.evaluations):
            return ()
        return self.evaluations[: self.evaluations.index(point) + 1]

    def as_json(self) -> dict[str, Any]:
        """What `run_from_json` reads back."""
        return asdict(self)


def run_of(log: RunLog, digest: str) -> Run:
    """What a log says of its run."""
    start, stop = log.run_start_ms, log.run_stop_ms
    return Run(
        digest=digest,
        start_ms=start,
        stop_ms=stop,
        status=_status(log.status),
        init_seconds=_between(_first_ms(log, ("init_start",)), start),
        first_step_seconds=_between(start, _first_ms(log, ("block_start", "epoch_start"))),
        evaluating_seconds=None if start is None or stop is None else _evaluating(log, start, stop),
        evaluations=() if start is None else tuple(_points(log, start)),
        samples=_count(log.samples_to(target_at(start))),
        trained=_count(log.samples_trained),
        train_samples=_count(log.train_samples),
        eval_samples=_count(log.eval_samples),
        global_batch_size=_count(log.global_batch_size),
        hyperparameters=_hyperparameters(log),
        tensors=len(log.all(constants.WEIGHTS_INITIALIZATION)),
        seeds=log.seeds,
        benchmark=_text(log.benchmark),
        division=_text(log.division),
        org=_text(log.org),
        platform=_text(log.platform),
        oddities=log.oddities,
        setup_seconds=_between(_first_ms(log, ("init_start",)), _first_ms(log, ("init_stop",))),
    )


def run_from_json(fields: Mapping[str, Any]) -> Run:
    """The run that `Run.as_json` wrote. TypeError or ValueError for anything else."""
    return Run(
        **{
            **fields,
            "evaluations": tuple(Point(*point) for point in fields["evaluations"]),
            "seeds": tuple(fields["seeds"]),
            "oddities": tuple(Oddity(*oddity) for oddity in fields["oddities"]),
        }
    )


def target_at(start_ms: float | None) -> float:
    """The accuracy that a run which started then had to reach."""
    return EARLY_TARGET if start_ms is not None and start_ms < EARLY_UNTIL_MS else TARGET_ACCURACY


def reached(points: Sequence[Point], target: float = TARGET_ACCURACY) -> Point | None:
    """The first evaluation that reaches the target."""
    return next((point for point in points if target <= point.accuracy < 1.0), None)


def _samples(point: Point) -> float:
    assert point.samples is not None
    return point.samples


def _points(log: RunLog, start: float) -> Iterator[Point]:
    """The evaluations whose accuracy can be one."""
    for one in log.evaluations:
        if 0 <= one.accuracy <= 1:
            yield Point((one.time_ms - start) / 1e3, _count(one.samples), one.accuracy)


def _count(number: float | None) -> float | None:
    """A number of samples; None for what can be none."""
    return number if number is not None and 0 < number <= MOST_SAMPLES else None


def _text(text: str | None) -> str | None:
    return None if text is None else one_line(text)


def _status(status: str | None) -> str | None:
    """As spelled; what only looks like one of MLPerf's is not made one by being made readable."""
    return status if status in (None, constants.SUCCESS, constants.ABORTED) else one_line(repr(status))


def _first_ms(log: RunLog, keys: Iterable[str]) -> float | None:
    return min((log.all(key)[0].time_ms for key in keys if log.all(key)), default=None)


def _between(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None or second < first else (second - first) / 1e3


def _evaluating(log: RunLog, start: float, stop: float) -> float | None:
    """Seconds of the run in which at least one evaluation was under way.

    By the times, not by the order of the lines, since ranks log with clocks of their own. None without any, and where
    starts and stops do not go together.
    """
    starts, stops = (_clipped(log.all(key), start, stop) for key in ("eval_start", "eval_stop"))
    if not starts or len(starts) != len(stops):
        return None
    total, under_way, since = 0.0, 0, 0.0
    for time, change in sorted([(time, 1) for time in starts] + [(time, -1) for time in stops], key=_starts_first):
        if under_way == 0:
            since = time
        under_way += change
        if under_way < 0:
            return None
        if under_way == 0:
            total += time - since
    return total / 1e3


def _starts_first(edge: tuple[float, int]) -> tuple[float, int]:
    return edge[0], -edge[1]


def _clipped(events: Sequence[Event], start: float, stop: float) -> list[float]:
    return [min(max(event.time_ms, start), stop) for event in events]


def _hyperparameters(log: RunLog) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key in HYPERPARAMETERS:
        event = log.first(key)
        if event is not None:
            value = one_line(event.value)[:40] if isinstance(event.value, str) else as_number(event.value)
            if value is not None:
                found[key] = value
    return found
