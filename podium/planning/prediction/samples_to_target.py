"""Samples to the target by batch size, interpolated between published runs in the logarithm of the batch size.

Hyper-parameters improved from round to round, so each batch size uses its newest round. Older rounds are first scaled
by the gain at the batch sizes that both rounds have.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import log
from statistics import median

import numpy as np

from benchmarks.bert.published.reading import SamplesToTarget

SPREAD_PER_DOUBLING = 0.15  # assumed growth of the spread per doubling outside the known batch sizes
NEIGHBOUR_FACTOR = 2.0  # a batch size of a lone system is dropped for a better documented one within this factor


@dataclass(frozen=True)
class Point:
    """Samples to target at one batch size: medians over systems of the mean, least and greatest of ten runs."""

    batch: int
    mean: float
    least: float
    greatest: float
    systems: int
    generation: str


@dataclass(frozen=True)
class Estimate:
    """Samples to target at a batch size, the spread of single runs, and warnings."""

    mean: float
    least: float
    greatest: float
    unsure: tuple[str, ...] = ()
    extrapolation: float = 0.0  # growth of the spread outside the known batch sizes, as a share of the mean


@dataclass(frozen=True)
class Curve:
    """Samples to target by batch size for one optimizer, smallest batch first."""

    optimizer: str
    points: tuple[Point, ...]

    def estimate(self, batch: int) -> Estimate:
        """Estimate the samples to target at a batch size.

        Interpolates between the two nearest points. Below the smallest batch size the samples are constant, above the
        largest the last slope is extended, and a single point is used for every batch size. Outside the known batch
        sizes the spread grows by SPREAD_PER_DOUBLING of the mean per doubling.
        """
        places = np.log([point.batch for point in self.points])
        values = [np.array([getattr(point, key) for point in self.points]) for key in ("mean", "least", "greatest")]
        place = np.log(batch)
        above = place - places[-1]
        estimates = [float(np.interp(place, places, value)) for value in values]
        if above > 0 and len(places) > 1:
            # Never negative: larger batches do not need fewer samples.
            slope = max(0.0, float((values[0][-1] - values[0][-2]) / (places[-1] - places[-2])))
            more = (estimates[0] + slope * float(above)) / estimates[0]
            estimates = [value * more for value in estimates]
        mean, least, greatest = estimates
        outside = max(0.0, float(above), float(places[0] - place)) / log(2)
        wider = SPREAD_PER_DOUBLING * outside
        return Estimate(mean, least / (1 + wider), greatest + wider * mean, self._extrapolation_warning(batch), wider)

    def _extrapolation_warning(self, batch: int) -> tuple[str, ...]:
        first, last = self.points[0].batch, self.points[-1].batch
        if first <= batch <= last:
            return ()
        span = f"{first:,} to {last:,}" if first < last else f"{first:,} only"
        return (f"batch size {batch:,} is extrapolated: known batch sizes with {self.optimizer} are {span}",)


def fit_curve(published: Iterable[SamplesToTarget], optimizer: str) -> Curve | None:
    """Return the curve of an optimizer's published systems; None without any.

    With LAMB only systems of the closed division are used, with other optimizers all. A round's systems at one batch
    size are represented by their median, so that a few unusual settings do not matter.
    """
    rows = [
        row for row in published if row.optimizer == optimizer and (optimizer != "lamb" or row.division == "closed")
    ]
    generations = sorted({_generation(row.round) for row in rows})
    by_generation = [_median_points([row for row in rows if _generation(row.round) == name]) for name in generations]
    current: dict[int, Point] = {}
    for newer in by_generation:
        gain = _round_gain(current, newer)
        for batch, point in current.items():
            mean, least, greatest = gain * point.mean, gain * point.least, gain * point.greatest
            current[batch] = replace(point, mean=mean, least=least, greatest=greatest)
        current |= newer
    order = {name: number for number, name in enumerate(generations)}
    kept = [point for point in current.values() if not _is_superseded(point, current.values(), order)]
    return Curve(optimizer, tuple(sorted(kept, key=lambda point: point.batch))) if kept else None


def _generation(name: str) -> str:
    """Return the generation of a round: 2.0 and 2.1 used the same hyper-parameters and are one."""
    return "2" if name.startswith("2.") else name


def _median_points(rows: Sequence[SamplesToTarget]) -> dict[int, Point]:
    points = {}
    for batch in {row.global_batch_size for row in rows}:
        here = [row for row in rows if row.global_batch_size == batch]
        mean, least, greatest = (median(getattr(row, key) for row in here) for key in ("mean", "least", "greatest"))
        points[batch] = Point(batch, mean, least, greatest, len(here), _generation(here[0].round))
    return points


def _round_gain(older: dict[int, Point], newer: dict[int, Point]) -> float:
    """Return the median ratio newer / older of samples at the common batch sizes; 1 if there are none."""
    common = older.keys() & newer.keys()
    return median(newer[batch].mean / older[batch].mean for batch in common) if common else 1.0


def _is_superseded(point: Point, points: Iterable[Point], order: dict[str, int]) -> bool:
    """Return whether a lone system's point has a neighbour of a newer round, or of the same round with more systems."""
    rank = (order[point.generation], point.systems)
    near = (p for p in points if 1 / NEIGHBOUR_FACTOR <= p.batch / point.batch <= NEIGHBOUR_FACTOR)
    return point.systems == 1 and any((order[p.generation], p.systems) > rank for p in near)
