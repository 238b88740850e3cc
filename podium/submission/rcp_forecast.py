"""Probability that a set of runs passes the RCP check, and its scaling factor, before all of its runs are made.

The runs so far are fixed; the others are drawn from a predictive distribution. Samples to the target are multiples of
an evaluation interval, so that a run's count is taken as a normal variable rounded up to the next evaluation. Its mean
and standard deviation are unknown: their posterior, on a grid, is the likelihood of the runs so far times a prior
around the reference, wide enough that three runs outweigh it. So the prediction accounts for few runs, and for runs
that are all equal. Without any run, the others are drawn from the reference's.

The prior's figures follow 482 closed results of rounds 4.0 to 5.1: the middle half of their means differs from
the reference by less than one of its standard deviations but one in ten by more than three, the variances differ by
factors of about two to either side, and 22 of 4,302 runs did not converge.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from podium.mllog.rcp import NOT_CONVERGED, Point, Record, Reference

DRAWS = 20_000
SEARCH_DRAWS = 4_000  # sets with which the samples needed are searched for
SEED = 1  # the same runs have the same prediction
INTERVAL = 0.9
CHANCES = (0.5, 0.95)  # for which the samples needed are computed
# Scale of the prior of the mean, a Cauchy distribution, in standard deviations of the reference. With 1.0, as results
# are published, it is too confident of runs that differ from the reference: those that fail are not published.
MEAN_SCALE = 3.0
# Scale and degrees of freedom of the prior of log standard deviation, a t distribution around the reference's.
SD_SCALE, SD_DEGREES = 0.4, 4
# Prior of the probability that a run does not converge: a Beta distribution as of that number of runs.
CONVERGED, UNCONVERGED = 9.95, 0.05
# Standard deviation before rounding, as a share of the evaluation interval, of runs that are all equal.
LEAST_SD = 0.25
SD_NODES, MEAN_NODES = 61, 121
SEARCH_STEPS = 30  # halvings of an interval of a few times the mean
SCALE_STEPS = 1000  # epochs are logged with three decimals

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Forecast:
    """What is to be expected of a set of runs of which `samples` are made."""

    samples: tuple[float | None, ...]  # of the runs so far; None where one did not converge
    remaining: int
    passes: float  # probability that the set passes the check
    unconverged: float  # probability that too many runs do not converge, which is part of the others
    scaled: float | None  # probability that a set that passes is scaled; None where none passes
    factor: float | None  # median of the scaling factor of the sets that pass
    factor_interval: tuple[float, float] | None  # INTERVAL of them
    # INTERVAL of the mean that the check compares; None where too many of the runs so far did not converge.
    mean_interval: tuple[float, float] | None
    # Mean of the remaining runs from which on the set passes with each of CHANCES; 0 where any suffices, None where no
    # mean does, or no run remains.
    needed: dict[float, float | None]
    sd: float | None  # expected standard deviation of a run; None where no run remains
    step: float  # evaluation interval


def forecast(reference: Reference, point: Point, samples: Sequence[float | None], seed: int = SEED) -> Forecast:
    """Predict the check of a set whose first runs needed `samples`. ValueError for more of them than a set has."""
    remaining = reference.runs - len(samples)
    if remaining < 0:
        raise ValueError(f"{len(samples)} runs, and a set of {reference.benchmark} has {reference.runs}")
    generator = np.random.default_rng(seed)
    known = [count for count in samples if count is not None]
    step = evaluation_interval(reference, point, known)
    check = _Check(reference, point, samples)
    draw: _Posterior | _AsReference = (
        _Posterior(point, step, known, generator) if known else _AsReference(point, remaining, generator)
    )
    values = draw.values(remaining, 0.0)
    if samples:
        rates = generator.beta(UNCONVERGED + len(samples) - len(known), CONVERGED + len(known), DRAWS)
        failed = generator.random((DRAWS, remaining)) < rates[:, None]
    else:
        failed = np.zeros((DRAWS, remaining), bool)
    means = check.means(np.where(failed, NOT_CONVERGED, values))
    enough = failed.sum(axis=1) + len(samples) - len(known) <= reference.unconverged
    passed = enough & (means >= point.threshold)
    factors = np.maximum(1.0, point.mean / means[passed])
    spread = [(1 - INTERVAL) / 2, (1 + INTERVAL) / 2]
    possible = len(samples) - len(known) <= reference.unconverged
    return Forecast(
        tuple(samples),
        remaining,
        float(passed.mean()),
        float(1 - enough.mean()),
        float((factors > 1).mean()) if factors.size else None,
        float(np.median(factors)) if factors.size else None,
        _pair(np.quantile(factors, spread)) if factors.size else None,
        _pair(np.quantile(means[enough], spread)) if enough.any() else None,
        {chance: _samples_needed(check, draw, remaining, chance) if possible else None for chance in CHANCES},
        float(np.std(values)) if remaining else None,
        step,
    )


def evaluation_interval(reference: Reference, point: Point, known: Sequence[float]) -> float:
    """The smallest difference between runs so far, or between runs of the reference near this batch size.

    Where all of these are equal, it is the greatest common divisor of all of the reference's.
    """
    found = [_smallest_difference(record.values) for record in point.records] + [_smallest_difference(known)]
    differences = [difference for difference in found if difference is not None]
    if differences:
        return min(differences)
    values = [value for record in reference.points for value in record.values]
    return math.gcd(*(round(value * SCALE_STEPS) for value in values)) / SCALE_STEPS


def _smallest_difference(values: Sequence[float]) -> float | None:
    ordered = sorted({round(value, 3) for value in values})
    return min((after - before for before, after in pairwise(ordered)), default=None)


class _Check:
    """The mean that the check compares, of many sets that all have the runs so far."""

    def __init__(self, reference: Reference, point: Point, samples: Sequence[float | None]) -> None:
        self.dropped, self.threshold, self.mean = reference.dropped, point.threshold, point.mean
        self.fixed = np.array([NOT_CONVERGED if count is None else reference.as_read(count) for count in samples])

    def means(self, values: Values) -> Values:
        """Means of sets with these remaining runs, one set in each row."""
        fixed = np.broadcast_to(self.fixed, (len(values), self.fixed.size))
        sets = np.sort(np.concatenate([fixed, values], axis=1), axis=1)
        means: Values = sets[:, self.dropped : sets.shape[1] - self.dropped].mean(axis=1)
        return means


class _AsReference:
    """Runs that converge as the reference: its runs, or their residuals where it is interpolated."""

    def __init__(self, point: Point, remaining: int, generator: np.random.Generator) -> None:
        residuals = [_residuals(record, point) for record in point.records]
        weights = np.concatenate([np.full(one.size, 1 / one.size) for one in residuals])
        drawn = generator.choice(np.concatenate(residuals), (DRAWS, remaining), p=weights / weights.sum())
        # Of the mean with all values: the point's mean leaves the smallest and the greatest out.
        self.drawn: Values = drawn + point.mean

    def values(self, remaining: int, shift: float) -> Values:
        """Draws of the remaining runs, with a mean greater by `shift`."""
        return np.maximum(self.drawn[:, :remaining] + shift, 0.0)


def _residuals(record: Record, point: Point) -> Values:
    """Differences of the reference's runs from their mean, with the spread of the point."""
    values = np.array(record.values) - record.mean
    return values * (point.sd / record.sd) if point.kind == "interpolated" and record.sd > 0 else values


class _Posterior:
    """Predictive distribution of further runs, from those so far and a prior around the reference."""

    def __init__(self, point: Point, step: float, known: Sequence[float], generator: np.random.Generator) -> None:
        from scipy.special import ndtr  # importing it takes 0.1 s

        n, least = len(known), LEAST_SD * step
        middle = point.mean - step / 2  # before rounding up
        scale = math.sqrt(max(point.sd**2 - step**2 / 12, least**2))
        observed = math.sqrt(max(float(np.var(known)) - step**2 / 12, least**2))
        logs = np.linspace(math.log(min(scale, observed) / 8), math.log(max(scale, observed) * 8), SD_NODES)
        sds = np.exp(logs)[:, None]
        half = 6 * sds / math.sqrt(n) + 0.6 * step
        means = float(np.mean(known)) - step / 2 + np.linspace(-1, 1, MEAN_NODES)[None, :] * half
        density = np.log(half) - np.log1p(((means - middle) / (MEAN_SCALE * scale)) ** 2)  # half: width of the cells
        density -= (SD_DEGREES + 1) / 2 * np.log1p(((logs[:, None] - math.log(scale)) / SD_SCALE) ** 2 / SD_DEGREES)
        counts, repeats = np.unique(np.array(known), return_counts=True)
        for count, repeat in zip(counts, repeats, strict=True):
            inside = ndtr((count - means) / sds) - ndtr((count - step - means) / sds)
            density += repeat * np.log(np.maximum(inside, 1e-300))
        weights = np.exp(density - density.max()).ravel()
        cells = generator.choice(weights.size, DRAWS, p=weights / weights.sum())
        self.mean: Values = means.ravel()[cells][:, None]
        self.sd: Values = np.broadcast_to(sds, means.shape).ravel()[cells][:, None]
        self.anchor, self.step = known[0], step
        self.normal: Values = generator.standard_normal((DRAWS, 64))

    def values(self, remaining: int, shift: float) -> Values:
        """Draws of the remaining runs, with a mean greater by `shift`."""
        latent = self.mean + shift + self.sd * self.normal[:, :remaining]
        rounded = self.anchor + np.ceil((latent - self.anchor) / self.step) * self.step
        return np.maximum(rounded, self.step)


def _samples_needed(check: _Check, draw: _Posterior | _AsReference, remaining: int, chance: float) -> float | None:
    """Mean of the remaining runs, all of which converge, from which on the set passes with probability `chance`."""
    if remaining == 0:
        return None

    def passing(shift: float) -> float:
        return float((check.means(draw.values(remaining, shift)[:SEARCH_DRAWS]) >= check.threshold).mean())

    usual = float(np.mean(draw.values(remaining, 0.0)))
    low, high = -usual, 3 * check.mean
    if passing(high) < chance:
        return None
    if passing(low) >= chance:
        return 0.0
    for _ in range(SEARCH_STEPS):
        shift = (low + high) / 2
        low, high = (low, shift) if passing(shift) >= chance else (shift, high)
    return float(np.mean(draw.values(remaining, high)))


def _pair(ends: Values) -> tuple[float, float]:
    return float(ends[0]), float(ends[1])
