"""metrics.jsonl of a run, read in one pass, in memory independent of its length: curves, evaluations, totals.

A file that is still being written ends in half a line, and a file of a disk that failed may contain anything: a line
that is no step, no evaluation and no skipped step is counted and reported, never guessed at.

Curves of any number of points are downsampled into a bounded number of bins that hide no extreme. A bin has the
least and the greatest value of its points with their positions, their sum and their number. When there are too many
bins, each is merged with its neighbour, so that memory does not grow with the number of points, one pass is enough,
and a line drawn through the extremes looks like one drawn through all points.

Statistics summarise the values of several runs, and of the steps of one.
"""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import accumulate
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from podium.mllog.lines import parse
from podium.mllog.run import as_number

RESOLUTION = 1e-4  # relative: values of a distribution that are closer are one


@dataclass(frozen=True)
class Spread:
    """Of n numbers."""

    n: int
    mean: float
    sd: float | None  # sample standard deviation; None of one number
    least: float
    greatest: float


def spread(values: Iterable[float]) -> Spread | None:
    """None for no number at all."""
    numbers = list(values)
    if not numbers:
        return None
    sd = stdev(numbers) if len(numbers) > 1 else None
    return Spread(len(numbers), fmean(numbers), sd, min(numbers), max(numbers))


class Distribution:
    """How often positive numbers came up, to RESOLUTION, in memory that does not grow with how many they are."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def add(self, value: float) -> None:
        self._counts[round(math.log(value) / RESOLUTION)] += 1

    def quantiles(self, shares: Sequence[float]) -> list[float]:
        """The least value that at least such a share of all values does not exceed, for each share."""
        keys = sorted(self._counts)
        seen = list(accumulate(self._counts[key] for key in keys))
        places = [bisect_left(seen, share * self.total) for share in shares] if keys else []
        return [math.exp(keys[place] * RESOLUTION) for place in places]

    @property
    def total(self) -> int:
        return self._counts.total()


BINS = 512  # at most in a curve; at least half of it where there are as many points
CHUNK = 1024  # points that are taken up at once

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """One quantity over samples; every array is [bins], in the order of the points."""

    at: Numbers  # the middle between the bin's first and last point
    mean: Numbers
    low: Numbers
    low_at: Numbers  # where the least value is
    high: Numbers
    high_at: Numbers
    count: Numbers  # points in the bin, at least 1

    @property
    def points(self) -> int:
        return int(self.count.sum())

    @property
    def mean_of_all(self) -> float:
        return float((self.mean * self.count).sum() / self.count.sum())

    @property
    def least(self) -> float:
        return float(self.low.min())

    @property
    def greatest(self) -> float:
        return float(self.high.max())

    @property
    def whole(self) -> bool:
        """Whether every bin is a single point."""
        return bool((self.count == 1).all())

    def at_most(self, bins: int) -> "Curve":
        """The same with fewer bins: `bins`, or up to half of it less."""
        taken = _Bins.of_curve(self)
        while len(taken) > max(bins, 1):
            taken = taken.halved()
        (curve,) = taken.curves()
        assert curve is not None
        return curve


@dataclass(frozen=True)
class _Bins:
    """Bins of several quantities; [bins], or [bins, quantities]. NaN stands for no value."""

    first_at: Numbers
    last_at: Numbers
    low: Numbers
    low_at: Numbers
    high: Numbers
    high_at: Numbers
    total: Numbers
    count: Numbers

    def __len__(self) -> int:
        return len(self.first_at)

    @classmethod
    def of_points(cls, at: Numbers, values: Numbers) -> Self:
        """A bin for each point; places [points], values [points, quantities]."""
        places = np.broadcast_to(at[:, None], values.shape)
        known = ~np.isnan(values)
        return cls(at, at, values, places, values, places, np.where(known, values, 0.0), known.astype(np.float64))

    @classmethod
    def of_curve(cls, curve: Curve) -> Self:
        columns = (curve.low, curve.low_at, curve.high, curve.high_at, curve.mean * curve.count, curve.count)
        return cls(curve.at, curve.at, *(column[:, None] for column in columns))

    def with_more(self, more: "_Bins") -> "_Bins":
        pairs = ((getattr(self, field.name), getattr(more, field.name)) for field in fields(self))
        return _Bins(*(np.concatenate(pair) for pair in pairs))

    def halved(self) -> "_Bins":
        """Every bin with its neighbour; the last of an odd number stays as it is."""
        even = len(self) // 2 * 2
        left, right = self._every_second(0, even), self._every_second(1, even)
        lower = np.isnan(left.low) | (right.low < left.low)
        higher = np.isnan(left.high) | (right.high > left.high)
        joined = _Bins(
            left.first_at,
            right.last_at,
            np.where(lower, right.low, left.low),
            np.where(lower, right.low_at, left.low_at),
            np.where(higher, right.high, left.high),
            np.where(higher, right.high_at, left.high_at),
            left.total + right.total,
            left.count + right.count,
        )
        return joined.with_more(self._every_second(even, len(self)))

    def _every_second(self, start: int, stop: int) -> "_Bins":
        return _Bins(*(getattr(self, field.name)[start:stop:2] for field in fields(self)))

    def curves(self) -> list[Curve | None]:
        """One for each quantity; None for one that has no value at all."""
        found: list[Curve | None] = []
        middle = (self.first_at + self.last_at) / 2
        for number in range(self.low.shape[1]):
            has = self.count[:, number] > 0
            low, low_at, high, high_at, total, count = (
                column[has, number]
                for column in (self.low, self.low_at, self.high, self.high_at, self.total, self.count)
            )
            curve = Curve(middle[has], total / count, low, low_at, high, high_at, count)
            found.append(curve if has.any() else None)
        return found


class Thinner:
    """Takes points one by one, each a place and a value of every quantity."""

    def __init__(self, quantities: int) -> None:
        self._at: list[float] = []
        self._values: list[Sequence[float]] = []
        self._bins = _Bins.of_points(np.empty(0), np.empty((0, quantities)))
        self._halvings = 0

    def add(self, at: float, values: Sequence[float]) -> None:
        """NaN where there is no value."""
        self._at.append(at)
        self._values.append(values)
        if len(self._at) >= CHUNK << self._halvings.bit_length():
            self._take_up()

    def _take_up(self) -> None:
        if not self._at:
            return
        new = _Bins.of_points(np.array(self._at, np.float64), np.array(self._values, np.float64))
        self._at.clear()
        self._values.clear()
        for _ in range(self._halvings):
            if len(new) > 1:
                new = new.halved()
        self._bins = self._bins.with_more(new)
        while len(self._bins) > BINS:
            self._bins = self._bins.halved()
            self._halvings += 1

    def curves(self) -> list[Curve | None]:
        """In the order of the quantities; None for one without a value."""
        self._take_up()
        return self._bins.curves()


def extremes(points: Sequence[tuple[float, float]], most: int) -> list[tuple[float, float]]:
    """Those of the points, each a place and a value, that a curve of at most `most` points must go through.

    All of them where they are so few; else the least and the greatest of each bin, in the order of their places.
    """
    if len(points) <= most:
        return list(points)
    thinner = Thinner(1)
    for place, value in points:
        thinner.add(place, [value])
    (curve,) = thinner.curves()
    assert curve is not None
    bins = curve.at_most(most // 2)
    lows = zip(bins.low_at.tolist(), bins.low.tolist(), strict=True)
    highs = zip(bins.high_at.tolist(), bins.high.tolist(), strict=True)
    return sorted({*lows, *highs})


MAX_LINE = 1 << 16  # bytes; a step's line has about 300
MOST_EVALUATIONS = 10_000
GREATEST = 1e100  # a quantity beyond it counts as not finite: sums of such values have no meaning
NOTHING = math.nan


def _padding(line: Mapping[str, Any]) -> Any:
    tokens, slots = as_number(line.get("tokens")), as_number(line.get("slots"))
    return 1 - tokens / slots if tokens is not None and slots and 0 <= tokens <= slots else NOTHING


def _key(name: str) -> Callable[[Mapping[str, Any]], Any]:
    return lambda line: line.get(name, NOTHING)


# Of a step: a number, NOTHING where the step does not tell, anything else where it was not finite.
_LOGGED = (
    "masked_lm_loss",
    "next_sentence_loss",
    "loss",
    "learning_rate",
    "gradient_norm",
    "max_over_mean_tokens",
)
QUANTITIES: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    **{name: _key(name) for name in _LOGGED},
    "padding_share": _padding,
}
_NAMES = tuple(QUANTITIES)
_BALANCE = _NAMES.index("max_over_mean_tokens")


@dataclass(frozen=True)
class Evaluation:
    """One evaluation of a run."""

    samples: float  # trained on until then
    accuracy: float
    next_sentence_accuracy: float | None
    masked_lm_loss: float | None


@dataclass
class NotFinite:
    """Values of one quantity that were infinite, or no number."""

    count: int
    samples: float  # trained on at the first of them


@dataclass
class Metrics:
    """What the lines of a run told."""

    steps: int = 0
    samples: float = 0  # the most that any step tells
    tokens: float = 0
    slots: float = 0
    skipped: int = 0  # steps that overflow had skipped
    curves: Mapping[str, Curve] = field(default_factory=dict)  # of QUANTITIES, those that are told at all
    # Of the busiest rank's tokens by the mean rank's, over the steps.
    balance: Distribution = field(default_factory=Distribution)
    evaluations: list[Evaluation] = field(default_factory=list)
    not_finite: dict[str, NotFinite] = field(default_factory=dict)
    damaged: int = 0
    first_damaged: int = 0  # number of the first damaged line, from 1
    why_damaged: str = ""
    backwards: int = 0  # number of the first line whose samples are fewer than those of the line before; 0 for none
    unfinished: bool = False  # whether the last line has no end

    @property
    def padding_share(self) -> float | None:
        return 1 - self.tokens / self.slots if self.slots else None


def read_metrics(path: Path) -> Metrics:
    """Read a run's metrics; empty ones where there is no file yet. Raises OSError where it cannot be read."""
    metrics, thinner = Metrics(), Thinner(len(QUANTITIES))
    if not path.is_file():
        return metrics
    before = 0.0
    for number, content in _lines(path, metrics):
        try:
            line = _event(content)
            samples = line["samples"]
            _TAKE[line["event"]](metrics, thinner, line)
        except ValueError as error:
            metrics.damaged += 1
            if metrics.damaged == 1:
                metrics.first_damaged, metrics.why_damaged = number, str(error)
            continue
        if line["event"] == "step":
            if samples < before and not metrics.backwards:
                metrics.backwards = number
            before = samples
    metrics.curves = {name: curve for name, curve in zip(_NAMES, thinner.curves(), strict=True) if curve is not None}
    return metrics


def _lines(path: Path, metrics: Metrics) -> Iterator[tuple[int, bytes]]:
    """Number and bytes of each finished line; of one that is too long, its beginning."""
    with path.open("rb") as file:
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


def _event(content: bytes) -> dict[str, Any]:
    """The line as a JSON object with a known event and its number of samples. ValueError says why it is none."""
    if len(content) >= MAX_LINE:
        raise ValueError(f"is longer than {MAX_LINE:,} bytes")
    try:
        line, _ = parse(content.decode("utf-8"))
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8") from None
    if not isinstance(line, dict):
        raise ValueError("is no JSON object")
    if not isinstance(line.get("event"), str) or line["event"] not in _TAKE:
        raise ValueError(f"has an event that is none of {', '.join(_TAKE)}")
    samples = as_number(line.get("samples"))
    if samples is None or not 0 <= samples <= GREATEST:
        raise ValueError("has no number of samples")
    return {**line, "samples": samples}


def _take_step(metrics: Metrics, thinner: Thinner, line: Mapping[str, Any]) -> None:
    values = [NOTHING] * len(_NAMES)
    for place, (name, quantity) in enumerate(QUANTITIES.items()):
        value = quantity(line)
        if type(value) is not float and (type(value) is not int or abs(value) > GREATEST):
            value = math.inf
        if abs(value) > GREATEST:
            found = metrics.not_finite.setdefault(name, NotFinite(0, line["samples"]))
            found.count += 1
            value = NOTHING
        values[place] = value
    metrics.steps += 1
    metrics.samples = max(metrics.samples, line["samples"])
    if not math.isnan(values[-1]):
        metrics.tokens += as_number(line["tokens"]) or 0
        metrics.slots += as_number(line["slots"]) or 0
    if values[_BALANCE] > 0:
        metrics.balance.add(values[_BALANCE])
    thinner.add(line["samples"], values)


def _take_evaluation(metrics: Metrics, _: Thinner, line: Mapping[str, Any]) -> None:
    accuracy = as_number(line.get("accuracy"))
    if accuracy is None or not 0 <= accuracy <= 1:
        raise ValueError("is an evaluation whose accuracy is no share")
    if len(metrics.evaluations) >= MOST_EVALUATIONS:
        raise ValueError(f"is an evaluation after {MOST_EVALUATIONS:,} of them")
    rest = (as_number(line.get(key)) for key in ("next_sentence_accuracy", "masked_lm_loss"))
    metrics.evaluations.append(Evaluation(line["samples"], accuracy, *rest))


def _take_skipped(metrics: Metrics, _thinner: Thinner, _line: Mapping[str, Any]) -> None:
    metrics.skipped += 1


_TAKE: Mapping[str, Callable[[Metrics, Thinner, Mapping[str, Any]], None]] = {
    "step": _take_step,
    "evaluation": _take_evaluation,
    "skipped": _take_skipped,
}
