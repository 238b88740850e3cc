"""Curves of any number of points, kept in a bounded number of bins that hide no extreme.

A bin holds the least and the greatest value of its points with their places, their sum and their number. When there
are too many bins, each takes in its neighbour, so that memory does not grow with the number of points, one pass is
enough, and what is drawn through the extremes looks as what is drawn through all points would.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Self

import numpy as np
from numpy.typing import NDArray

BINS = 512
"""At most in a curve; at least half of it where there are as many points."""
CHUNK = 1024
"""Points that are taken up at once."""

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """One quantity over samples; every array is [bins], in the order of the points."""

    at: Numbers
    """The middle between the bin's first and last point."""
    mean: Numbers
    low: Numbers
    low_at: Numbers
    """Where the least value is."""
    high: Numbers
    high_at: Numbers
    count: Numbers
    """Points in the bin, at least 1."""

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
