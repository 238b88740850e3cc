"""Reads metrics.jsonl of a run in one pass and bounded memory: curves, evaluations, totals.

A file that is still being written may end in half a line, and a file of a failed disk may contain anything. A line
other than a step, an evaluation or a skipped step is counted and reported.

Curves of any number of points are downsampled into a bounded number of bins without losing extremes. A bin has the
least and the greatest value of its points with their positions, their sum and their number. When there are too many
bins, each is merged with its neighbour: one pass is enough, memory does not grow with the number of points, and a line
through the extremes looks like one through all points.
"""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from podium.core.files import open_regular
from podium.mllog.lines import parse_bounded_json
from podium.mllog.run import as_number

RESOLUTION = 1e-4  # relative width of the bins of a distribution


@dataclass(frozen=True)
class Statistics:
    """Summary statistics of n numbers. The field names are keys of the JSON report."""

    n: int
    mean: float
    sd: float | None  # sample standard deviation; None for one number
    least: float
    greatest: float


def summarise(values: Iterable[float]) -> Statistics | None:
    """Compute the statistics of some numbers; None without any."""
    numbers = list(values)
    if not numbers:
        return None
    sd = stdev(numbers) if len(numbers) > 1 else None
    return Statistics(len(numbers), fmean(numbers), sd, min(numbers), max(numbers))


class Distribution:
    """Histogram of positive numbers in logarithmic bins of RESOLUTION, in memory independent of their count."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def add(self, value: float) -> None:
        self._counts[round(math.log(value) / RESOLUTION)] += 1

    def quantiles(self, shares: Sequence[float]) -> list[float]:
        """Return for each share the least value that this share of all values does not exceed."""
        keys = sorted(self._counts)
        cumulative = list(accumulate(self._counts[key] for key in keys))
        places = [bisect_left(cumulative, share * self.total) for share in shares] if keys else []
        return [math.exp(keys[place] * RESOLUTION) for place in places]

    @property
    def total(self) -> int:
        return self._counts.total()


BINS = 512  # maximum in a curve; at least half of it for as many points
CHUNK = 1024  # points that are buffered before they are binned, at full resolution

Numbers = NDArray[np.float64]


class Curve(NamedTuple):
    """A quantity over samples, in bins of neighbouring points; every array is [bins], in the order of the points."""

    first_at: Numbers  # position of the bin's first point
    last_at: Numbers
    low: Numbers
    low_at: Numbers  # position of the least value
    high: Numbers
    high_at: Numbers
    total: Numbers  # sum of the values
    size: Numbers  # points in the bin, at least 1

    @classmethod
    def of_points(cls, at: Sequence[float], values: Sequence[float]) -> "Curve":
        """Make a curve with one bin per point."""
        places, numbers = np.array(at, np.float64), np.array(values, np.float64)
        return cls(places, places, numbers, places, numbers, places, numbers, np.ones(len(numbers)))

    @property
    def at(self) -> Numbers:
        """Position of each bin: the middle between its first and last point, [bins]."""
        return (self.first_at + self.last_at) / 2

    @property
    def mean(self) -> Numbers:
        return self.total / self.size

    @property
    def points(self) -> int:
        return int(self.size.sum())

    @property
    def mean_of_all(self) -> float:
        return float(self.total.sum() / self.size.sum())

    @property
    def least(self) -> float:
        return float(self.low.min())

    @property
    def greatest(self) -> float:
        return float(self.high.max())

    @property
    def is_exact(self) -> bool:
        """Whether every bin is a single point."""
        return bool((self.size == 1).all())

    def downsample(self, bins: int) -> "Curve":
        """Return the curve with between bins / 2 and `bins` bins."""
        curve = self
        while len(curve.low) > max(bins, 1):
            curve = curve.halved()
        return curve

    def halved(self) -> "Curve":
        """Merge every two neighbouring bins; the last of an odd number remains."""
        even = len(self.low) // 2 * 2
        left, right = (Curve(*(column[start:even:2] for column in self)) for start in (0, 1))
        lower, higher = right.low < left.low, right.high > left.high
        joined = Curve(
            left.first_at,
            right.last_at,
            np.where(lower, right.low, left.low),
            np.where(lower, right.low_at, left.low_at),
            np.where(higher, right.high, left.high),
            np.where(higher, right.high_at, left.high_at),
            left.total + right.total,
            left.size + right.size,
        )
        return joined.concatenate(Curve(*(column[even:] for column in self)))

    def concatenate(self, more: "Curve") -> "Curve":
        """Append the bins of another curve."""
        return Curve(*(np.concatenate(pair) for pair in zip(self, more, strict=True)))


class Downsampler:
    """Downsamples points of one quantity, added one by one, to a curve of at most BINS bins."""

    def __init__(self) -> None:
        self._at: list[float] = []
        self._values: list[float] = []
        self._curve = Curve.of_points([], [])
        self._halvings = 0

    def add(self, at: float, value: float) -> None:
        """Add a point; a value of NaN is left out."""
        if math.isnan(value):
            return
        self._at.append(at)
        self._values.append(value)
        # The buffer grows slowly with the size of a bin, so that each flush adds whole bins at little cost.
        if len(self._at) >= CHUNK << self._halvings.bit_length():
            self._flush()

    def _flush(self) -> None:
        """Bin the buffered points, each as often as the bins before them were merged."""
        new = Curve.of_points(self._at, self._values)
        self._at.clear()
        self._values.clear()
        for _ in range(self._halvings):
            new = new.halved()
        self._curve = self._curve.concatenate(new)
        while len(self._curve.low) > BINS:
            self._curve = self._curve.halved()
            self._halvings += 1

    def curve(self) -> Curve | None:
        """Return the curve of all points; None without any."""
        self._flush()
        return self._curve if len(self._curve.low) else None


def extremes(points: Sequence[tuple[float, float]], limit: int) -> list[tuple[float, float]]:
    """Select at most `limit` of the points, each a position and a value, without losing extremes.

    All points if there are no more; else the least and the greatest of each bin, sorted by position.
    """
    if len(points) <= limit:
        return list(points)
    bins = Curve.of_points(*zip(*points, strict=True)).downsample(limit // 2)
    lows = zip(bins.low_at.tolist(), bins.low.tolist(), strict=True)
    highs = zip(bins.high_at.tolist(), bins.high.tolist(), strict=True)
    return sorted({*lows, *highs})


MAX_LINE = 1 << 16  # bytes; a step's line has about 300
MAX_EVALUATIONS = 10_000
MAX_MAGNITUDE = 1e100  # larger values count as not finite, since their sums may overflow
NO_VALUE = math.nan


# Quantities of a step.
QUANTITIES = (
    "masked_lm_loss",
    "next_sentence_loss",
    "loss",
    "learning_rate",
    "gradient_norm",
    "max_over_mean_tokens",
    "padding_share",
)


def _quantity(name: str, line: Mapping[str, Any]) -> Any:
    """Return a quantity of a step: a number, NO_VALUE if the step has none, anything else if it was not finite."""
    if name != "padding_share":
        return line.get(name, NO_VALUE)
    tokens, slots = as_number(line.get("tokens")), as_number(line.get("slots"))
    return 1 - tokens / slots if tokens is not None and slots and 0 <= tokens <= slots else NO_VALUE


@dataclass(frozen=True)
class Evaluation:
    """One evaluation of a run. The field names are keys of the JSON report."""

    samples: float  # trained on until then
    accuracy: float
    next_sentence_accuracy: float | None
    masked_lm_loss: float | None


@dataclass
class NotFinite:
    """Values of one quantity that were infinite or not a number. The field names are keys of the JSON report."""

    count: int
    samples: float  # trained on at the first of them


MAX_MILLISECONDS = 1e9  # of a step
MAX_RANKS = 4096  # whose times in a step are read


@dataclass
class RankWork:
    """How often each rank was the slowest of a step."""

    steps: int = 0  # with the times of at least two ranks
    # By rank: the steps in which it was the slowest, and the sums over them of its milliseconds above the mean of all
    # ranks, and of these divided by the mean.
    slowest: dict[int, tuple[int, float, float]] = field(default_factory=dict)
    invalid: int = 0  # steps whose times cannot be used

    def add(self, times: object) -> None:
        """Add the milliseconds of work of each rank in a step; of equal times, that of the lowest rank counts."""
        if not isinstance(times, list) or not 0 < len(times) <= MAX_RANKS or not all(map(_is_time, times)):
            self.invalid += 1
            return
        if len(times) < 2:
            return
        mean, most = fmean(times), max(times)
        rank = times.index(most)
        count, excess, relative = self.slowest.get(rank, (0, 0.0, 0.0))
        self.slowest[rank] = count + 1, excess + most - mean, relative + ((most - mean) / mean if mean else 0.0)
        self.steps += 1


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MAX_MILLISECONDS


@dataclass
class Metrics:
    """The content of a run's metrics.jsonl."""

    steps: int = 0
    samples: float = 0  # maximum over the steps
    tokens: float = 0
    slots: float = 0
    skipped: int = 0  # steps skipped because of overflow
    curves: Mapping[str, Curve] = field(default_factory=dict)  # of those QUANTITIES that have values
    # Distribution over steps of the busiest rank's tokens divided by the mean rank's.
    balance: Distribution = field(default_factory=Distribution)
    rank_work: RankWork = field(default_factory=RankWork)
    evaluations: list[Evaluation] = field(default_factory=list)
    not_finite: dict[str, NotFinite] = field(default_factory=dict)
    damaged: int = 0
    first_damaged: int = 0  # number of the first damaged line, from 1
    why_damaged: str = ""
    backwards: int = 0  # number of the first step's line with fewer samples than the step before; 0 for none
    unfinished: bool = False  # whether the last line is incomplete

    @property
    def padding_share(self) -> float | None:
        return 1 - self.tokens / self.slots if self.slots else None


def read_metrics(path: Path) -> Metrics:
    """Read a run's metrics; empty if there is no file yet. Raises OSError if it cannot be read."""
    metrics, downsamplers = Metrics(), {name: Downsampler() for name in QUANTITIES}
    if not path.is_file():
        return metrics
    before = 0.0
    for number, content in _finished_lines(path, metrics):
        try:
            line = _parse_event(content)
            samples = line["samples"]
            _HANDLERS[line["event"]](metrics, downsamplers, line)
        except ValueError as error:
            metrics.damaged += 1
            if metrics.damaged == 1:
                metrics.first_damaged, metrics.why_damaged = number, str(error)
            continue
        if line["event"] == "step":
            if samples < before and not metrics.backwards:
                metrics.backwards = number
            before = samples
    metrics.curves = {name: curve for name, one in downsamplers.items() if (curve := one.curve()) is not None}
    return metrics


def _finished_lines(path: Path, metrics: Metrics) -> Iterator[tuple[int, bytes]]:
    """Yield number and content of each complete line; of an overlong line, its first MAX_LINE bytes."""
    with open_regular(path) as file:
        number = 0
        while line := file.readline(MAX_LINE):
            number += 1
            if not line.endswith(b"\n"):
                rest = line
                while rest and not rest.endswith(b"\n"):
                    rest = file.readline(MAX_LINE)
                if not rest:
                    metrics.unfinished = True
                    return
            yield number, line


def _parse_event(content: bytes) -> dict[str, Any]:
    """Parse a line as a JSON object with a known event and a number of samples. Raises ValueError with the reason."""
    if len(content) >= MAX_LINE:
        raise ValueError(f"is longer than {MAX_LINE:,} bytes")
    try:
        line, _ = parse_bounded_json(content.decode("utf-8"))
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8") from None
    if not isinstance(line, dict):
        raise ValueError("is not a JSON object")
    if not isinstance(line.get("event"), str) or line["event"] not in _HANDLERS:
        raise ValueError(f"has an event other than {', '.join(_HANDLERS)}")
    samples = as_number(line.get("samples"))
    if samples is None or not 0 <= samples <= MAX_MAGNITUDE:
        raise ValueError("has no number of samples")
    return {**line, "samples": samples}


def _add_step(metrics: Metrics, downsamplers: Mapping[str, Downsampler], line: Mapping[str, Any]) -> None:
    values: dict[str, float] = {}
    for name, downsampler in downsamplers.items():
        value = _quantity(name, line)
        if type(value) is not float and (type(value) is not int or abs(value) > MAX_MAGNITUDE):
            value = math.inf
        if abs(value) > MAX_MAGNITUDE:
            metrics.not_finite.setdefault(name, NotFinite(0, line["samples"])).count += 1
            value = NO_VALUE
        downsampler.add(line["samples"], value)
        values[name] = value
    if "rank_work_ms" in line:
        metrics.rank_work.add(line["rank_work_ms"])
    metrics.steps += 1
    metrics.samples = max(metrics.samples, line["samples"])
    if not math.isnan(values["padding_share"]):
        metrics.tokens += as_number(line["tokens"]) or 0
        metrics.slots += as_number(line["slots"]) or 0
    if values["max_over_mean_tokens"] > 0:
        metrics.balance.add(values["max_over_mean_tokens"])


def _add_evaluation(metrics: Metrics, _: Mapping[str, Downsampler], line: Mapping[str, Any]) -> None:
    accuracy = as_number(line.get("accuracy"))
    if accuracy is None or not 0 <= accuracy <= 1:
        raise ValueError("is an evaluation whose accuracy is not between 0 and 1")
    if len(metrics.evaluations) >= MAX_EVALUATIONS:
        raise ValueError(f"is an evaluation beyond the limit of {MAX_EVALUATIONS:,}")
    rest = (as_number(line.get(key)) for key in ("next_sentence_accuracy", "masked_lm_loss"))
    metrics.evaluations.append(Evaluation(line["samples"], accuracy, *rest))


def _add_skipped(metrics: Metrics, _downsamplers: Mapping[str, Downsampler], _line: Mapping[str, Any]) -> None:
    metrics.skipped += 1


_HANDLERS: Mapping[str, Callable[[Metrics, Mapping[str, Downsampler], Mapping[str, Any]], None]] = {
    "step": _add_step,
    "evaluation": _add_evaluation,
    "skipped": _add_skipped,
}
