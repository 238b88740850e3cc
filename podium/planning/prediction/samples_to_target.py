"""Samples to the target by batch size, from published runs, interpolated in the logarithm of the batch size.

Hyper-parameters improved from round to round, so the newest round is used for each batch size, and older ones are
first scaled by the gain at the batch sizes that both rounds have in common.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import log
from statistics import median

import numpy as np

from benchmarks.bert.published.reading import SamplesToTarget

WIDER = 0.15  # assumed growth of the spread with every doubling beyond the known batch sizes
NEIGHBOURHOOD = 2.0  # a lone system's batch size gives way to a better documented one within this factor


@dataclass(frozen=True)
class Point:
    """A batch size's samples to target: the median system's mean, least and greatest run of ten."""

    batch: int
    mean: float
    least: float
    greatest: float
    systems: int
    rounds: str


@dataclass(frozen=True)
class Estimate:
    """Samples to target at a batch size, with the spread of single runs, and what is unsure of it."""

    mean: float
    least: float
    greatest: float
    unsure: tuple[str, ...] = ()
    beyond: float = 0.0  # growth of the spread outside the known batch sizes, as a share of the mean


@dataclass(frozen=True)
class Curve:
    """Samples to target by batch size for one optimizer, smallest batch first."""

    optimizer: str
    points: tuple[Point, ...]

    def at(self, batch: int) -> Estimate:
        """Interpolated between the two nearest points. Below the smallest the samples are those of the smallest; above
        the largest the last slope goes on, and where there is one point alone it counts everywhere. There the spread
        is taken to grow by `WIDER` of the mean with every doubling."""
        places = np.log([point.batch for point in self.points])
        values = [np.array([getattr(point, key) for point in self.points]) for key in ("mean", "least", "greatest")]
        place = np.log(batch)
        beyond = place - places[-1]
        estimates = [float(np.interp(place, places, value)) for value in values]
        if beyond > 0 and len(places) > 1:
            slope = max(0.0, float((values[0][-1] - values[0][-2]) / (places[-1] - places[-2])))
            more = (estimates[0] + slope * float(beyond)) / estimates[0]
            estimates = [value * more for value in estimates]
        mean, least, greatest = estimates
        outside = max(0.0, float(beyond), float(places[0] - place)) / log(2)
        wider = WIDER * outside
        return Estimate(mean, least / (1 + wider), greatest + wider * mean, self._unsure(batch), wider)

    def _unsure(self, batch: int) -> tuple[str, ...]:
        first, last = self.points[0].batch, self.points[-1].batch
        if first <= batch <= last:
            return ()
        span = f"{first:,} to {last:,}" if first < last else f"{first:,} alone"
        return (f"batch size {batch:,} is extrapolated: with {self.optimizer}, {span} are known",)


def curve(published: Iterable[SamplesToTarget], optimizer: str) -> Curve | None:
    """Of all closed-division systems with LAMB, or all with another optimizer; None where there is none.

    A round's systems at one batch size are summed up by the median, so that a few of odd settings do not matter.
    """
    rows = [
        row for row in published if row.optimizer == optimizer and (optimizer != "lamb" or row.division == "closed")
    ]
    generations = sorted({_generation(row.round) for row in rows})
    by_generation = [_points([row for row in rows if _generation(row.round) == name]) for name in generations]
    current: dict[int, Point] = {}
    for newer in by_generation:
        gain = _gain(current, newer)
        for batch, point in current.items():
            mean, least, greatest = gain * point.mean, gain * point.least, gain * point.greatest
            current[batch] = replace(point, mean=mean, least=least, greatest=greatest)
        current |= newer
    order = {name: number for number, name in enumerate(generations)}
    kept = [point for point in current.values() if not _gives_way(point, current.values(), order)]
    return Curve(optimizer, tuple(sorted(kept, key=lambda point: point.batch))) if kept else None


def _generation(name: str) -> str:
    """Rounds 2.0 and 2.1 ran the same settings."""
    return "2" if name.startswith("2.") else name


def _points(rows: Sequence[SamplesToTarget]) -> dict[int, Point]:
    points = {}
    for batch in {row.global_batch_size for row in rows}:
        here = [row for row in rows if row.global_batch_size == batch]
        mean, least, greatest = (median(getattr(row, key) for row in here) for key in ("mean", "least", "greatest"))
        points[batch] = Point(batch, mean, least, greatest, len(here), _generation(here[0].round))
    return points


def _gain(older: dict[int, Point], newer: dict[int, Point]) -> float:
    """Samples of the newer round in those of the older, at the batch sizes that both have; 1 where there is none."""
    common = older.keys() & newer.keys()
    return median(newer[batch].mean / older[batch].mean for batch in common) if common else 1.0


def _gives_way(point: Point, points: Iterable[Point], order: dict[str, int]) -> bool:
    """Whether a lone system's point has a neighbour of a newer round, or of its own round and of more systems."""
    rank = (order[point.rounds], point.systems)
    near = (p for p in points if 1 / NEIGHBOURHOOD <= p.batch / point.batch <= NEIGHBOURHOOD)
    return point.systems == 1 and any((order[p.rounds], p.systems) > rank for p in near)
