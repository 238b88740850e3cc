"""metrics.jsonl of a run, read in one pass, in memory independent of its length: curves, evaluations, totals.

A file that is still being written ends in half a line, and a file of a disk that failed may contain anything: a line
that is no step, no evaluation and no skipped step is counted and reported, never guessed at.

Curves of any number of points are downsampled into a bounded number of bins that hide no extreme. A bin has the
least and the greatest value of its points with their positions, their sum and their number. When there are too many
bins, each is merged with its neighbour, so that memory does not grow with the number of points, one pass is enough,
and a line drawn through the extremes looks like one drawn through all points.
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


class Curve(NamedTuple):
    """One quantity over samples, in bins of neighbouring points; every array is [bins], in the order of the points."""

    first_at: Numbers  # where the bin's first point is
    last_at: Numbers
    low: Numbers
    low_at: Numbers  # where the least value is
    high: Numbers
    high_at: Numbers
    total: Numbers
    size: Numbers  # points in the bin, at least 1

    @classmethod
    def of_points(cls, at: Sequence[float], values: Sequence[float]) -> "Curve":
        """A bin for each point."""
        places, numbers = np.array(at, np.float64), np.array(values, np.float64)
        return cls(places, places, numbers, places, numbers, places, numbers, np.ones(len(numbers)))

    @property
    def at(self) -> Numbers:
        """The middle between the bin's first and last point."""
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
    def whole(self) -> bool:
        """Whether every bin is a single point."""
        return bool((self.size == 1).all())

    def at_most(self, bins: int) -> "Curve":
        """The same with fewer bins: `bins`, or up to half of it less."""
        curve = self
        while len(curve.low) > max(bins, 1):
            curve = curve.halved()
        return curve

    def halved(self) -> "Curve":
        """Every bin with its neighbour; the last of an odd number stays as it is."""
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
        return joined.followed_by(Curve(*(column[even:] for column in self)))

    def followed_by(self, more: "Curve") -> "Curve":
        return Curve(*(np.concatenate(pair) for pair in zip(self, more, strict=True)))


class Thinner:
    """Takes the points of one quantity one by one, each a place and a value."""

    def __init__(self) -> None:
        self._at: list[float] = []
        self._values: list[float] = []
        self._curve = Curve.of_points([], [])
        self._halvings = 0

    def add(self, at: float, value: float) -> None:
        """NaN, which stands for no value, is left out."""
        if math.isnan(value):
            return
        self._at.append(at)
        self._values.append(value)
        if len(self._at) >= CHUNK << self._halvings.bit_length():
            self._take_up()

    def _take_up(self) -> None:
        new = Curve.of_points(self._at, self._values)
        self._at.clear()
        self._values.clear()
        for _ in range(self._halvings):
            new = new.halved()
        self._curve = self._curve.followed_by(new)
        while len(self._curve.low) > BINS:
            self._curve = self._curve.halved()
            self._halvings += 1

    def curve(self) -> Curve | None:
        """None without a value."""
        self._take_up()
        return self._curve if len(self._curve.low) else None


def extremes(points: Sequence[tuple[float, float]], most: int) -> list[tuple[float, float]]:
    """Those of the points, each a place and a value, that a curve of at most `most` points must go through.

    All of them where they are so few; else the least and the greatest of each bin, in the order of their places.
    """
    if len(points) <= most:
        return list(points)
    bins = Curve.of_points(*zip(*points, strict=True)).at_most(most // 2)
    lows = zip(bins.low_at.tolist(), bins.low.tolist(), strict=True)
    highs = zip(bins.high_at.tolist(), bins.high.tolist(), strict=True)
    return sorted({*lows, *highs})


MAX_LINE = 1 << 16  # bytes; a step's line has about 300
MOST_EVALUATIONS = 10_000
GREATEST = 1e100  # a quantity beyond it counts as not finite: sums of such values have no meaning
NOTHING = math.nan


# Of a step: a number, NOTHING where the step does not have it, anything else where it was not finite.
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
    if name != "padding_share":
        return line.get(name, NOTHING)
    tokens, slots = as_number(line.get("tokens")), as_number(line.get("slots"))
    return 1 - tokens / slots if tokens is not None and slots and 0 <= tokens <= slots else NOTHING


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
    metrics, thinners = Metrics(), {name: Thinner() for name in QUANTITIES}
    if not path.is_file():
        return metrics
    before = 0.0
    for number, content in _lines(path, metrics):
        try:
            line = _event(content)
            samples = line["samples"]
            _TAKE[line["event"]](metrics, thinners, line)
        except ValueError as error:
            metrics.damaged += 1
            if metrics.damaged == 1:
                metrics.first_damaged, metrics.why_damaged = number, str(error)
            continue
        if line["event"] == "step":
            if samples < before and not metrics.backwards:
                metrics.backwards = number
            before = samples
    metrics.curves = {name: curve for name, one in thinners.items() if (curve := one.curve()) is not None}
    return metrics


def _lines(path: Path, metrics: Metrics) -> Iterator[tuple[int, bytes]]:
    """Number and bytes of each finished line; of one that is too long, its beginning."""
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


def _take_step(metrics: Metrics, thinners: Mapping[str, Thinner], line: Mapping[str, Any]) -> None:
    values: dict[str, float] = {}
    for name, thinner in thinners.items():
        value = _quantity(name, line)
        if type(value) is not float and (type(value) is not int or abs(value) > GREATEST):
            value = math.inf
        if abs(value) > GREATEST:
            metrics.not_finite.setdefault(name, NotFinite(0, line["samples"])).count += 1
            value = NOTHING
        thinner.add(line["samples"], value)
        values[name] = value
    metrics.steps += 1
    metrics.samples = max(metrics.samples, line["samples"])
    if not math.isnan(values["padding_share"]):
        metrics.tokens += as_number(line["tokens"]) or 0
        metrics.slots += as_number(line["slots"]) or 0
    if values["max_over_mean_tokens"] > 0:
        metrics.balance.add(values["max_over_mean_tokens"])


def _take_evaluation(metrics: Metrics, _: Mapping[str, Thinner], line: Mapping[str, Any]) -> None:
    accuracy = as_number(line.get("accuracy"))
    if accuracy is None or not 0 <= accuracy <= 1:
        raise ValueError("is an evaluation whose accuracy is no share")
    if len(metrics.evaluations) >= MOST_EVALUATIONS:
        raise ValueError(f"is an evaluation after {MOST_EVALUATIONS:,} of them")
    rest = (as_number(line.get(key)) for key in ("next_sentence_accuracy", "masked_lm_loss"))
    metrics.evaluations.append(Evaluation(line["samples"], accuracy, *rest))


def _take_skipped(metrics: Metrics, _thinners: Mapping[str, Thinner], _line: Mapping[str, Any]) -> None:
    metrics.skipped += 1


_TAKE: Mapping[str, Callable[[Metrics, Mapping[str, Thinner], Mapping[str, Any]], None]] = {
    "step": _take_step,
    "evaluation": _take_evaluation,
    "skipped": _take_skipped,
}
