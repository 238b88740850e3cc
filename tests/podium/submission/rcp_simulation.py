"""Sets of runs drawn from known distributions: what is predicted of them, and what the official RCP checker finds."""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple
from unittest import mock

import numpy as np

from podium.mllog.rcp import Point, Reference
from podium.submission import rcp_forecast
from podium.submission.rcp_forecast import evaluation_interval, forecast
from tests.podium.mllog.official_rcp import official


class Prediction(NamedTuple):
    """One prediction, and what came of it."""

    benchmark: str
    kind: str  # of the batch size
    made: int  # runs so far
    passes: float  # predicted probability
    passed: bool
    inside: bool | None  # whether the factor is in the predicted interval; None where the set does not pass
    mean_inside: bool  # whether the mean is in the predicted interval
    form: str  # of the distribution
    open: bool  # whether the predicted interval of the factor is more than 1.0


def simulate(
    reference: Reference, made: int, sets: int, generator: np.random.Generator, draws: int = 3_000
) -> list[Prediction]:
    """Predict sets after `made` runs, draw the remaining ones from the same distribution, and ask the official checker.

    Without a run the distribution is the reference's. Otherwise its mean is up to three standard deviations of the
    reference from the reference's, its standard deviation differs by a factor of 1.4 (one sigma), and its form is a
    normal or a right-skewed distribution rounded up to the evaluation interval, or that of the reference's runs.
    """
    found = []
    with mock.patch.multiple(rcp_forecast, DRAWS=draws, CHANCES=()):
        for number in range(sets):
            batch_size = _batch_size(reference, number % 2 == 1, generator)
            point = reference.at(batch_size)
            assert point is not None
            form, draw = _distribution(reference, point, made, generator)
            runs: list[float | None] = [draw() for _ in range(reference.runs)]
            if made and generator.random() < 0.005 * reference.runs:  # the share in published results
                runs[generator.integers(len(runs))] = None
            predicted = forecast(reference, point, runs[:made], seed=number)
            passed, _, factor = official(reference.benchmark, reference.ruleset).verdict(batch_size, list(runs))
            interval, (low, high) = predicted.factor_interval, predicted.mean_interval
            inside = interval is not None and interval[0] - 1e-9 <= factor <= interval[1] + 1e-9
            found.append(
                Prediction(
                    reference.benchmark,
                    point.kind,
                    made,
                    predicted.passes,
                    passed,
                    inside if passed else None,
                    low - 1e-9 <= reference.olympic_mean(runs) <= high + 1e-9,
                    form,
                    interval is not None and interval[1] > 1 + 1e-9,
                )
            )
    return found


def _batch_size(reference: Reference, between: bool, generator: np.random.Generator) -> int:
    sizes = [record.batch_size for record in reference.pruned]
    if not between or len(sizes) < 2:
        return int(generator.choice(sizes))
    gap = int(generator.integers(len(sizes) - 1))
    return int(generator.integers(sizes[gap] + 1, sizes[gap + 1]))


def _distribution(
    reference: Reference, point: Point, made: int, generator: np.random.Generator
) -> tuple[str, Callable[[], float]]:
    step = evaluation_interval(reference, point, [])
    record = point.records[int(generator.integers(len(point.records)))]
    if made == 0:
        if point.kind == "interpolated":
            ratio = point.sd / record.sd if record.sd else 1.0
            return "reference", lambda: point.mean + ratio * (float(generator.choice(record.values)) - record.mean)
        return "reference", lambda: float(generator.choice(record.values))
    sd = max(point.sd, 0.3 * step)
    mean = point.mean + generator.uniform(-3, 3) * sd
    sd *= math.exp(generator.normal(0, math.log(1.4)))
    form = generator.integers(3)
    offset = generator.uniform(0, step)

    def rounded(value: float) -> float:
        return max(round(offset + math.ceil((value - offset) / step) * step, 3), step)

    if form == 0:
        return "normal", lambda: rounded(generator.normal(mean - step / 2, sd))
    if form == 1:
        skew = 0.6  # of the logarithm; skewness 2.3
        scale = sd / (math.exp(skew**2 / 2) * math.sqrt(math.exp(skew**2) - 1))
        middle = scale * math.exp(skew**2 / 2)
        return "skewed", lambda: rounded(mean - step / 2 + scale * generator.lognormal(0, skew) - middle)
    ratio = sd / record.sd if record.sd else 1.0
    return "as the reference's", lambda: rounded(
        mean - step / 2 + ratio * (float(generator.choice(record.values)) - record.mean)
    )


def calibration_rows(found: Sequence[Prediction]) -> Iterator[tuple[str, int, float, float, float]]:
    """For each bin of predicted probability: its bounds, n, mean prediction, share that passed, standard error."""
    bounds = (0.0, 0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98, 1.0 + 1e-9)
    for low, high in pairwise(bounds):
        inside = [one for one in found if low <= one.passes < high]
        if inside:
            mean = float(np.mean([one.passes for one in inside]))
            share = float(np.mean([one.passed for one in inside]))
            error = math.sqrt(mean * (1 - mean) / len(inside))
            yield f"{low:.2f} to {min(high, 1.0):.2f}", len(inside), mean, share, error


def coverage(found: Sequence[Prediction]) -> tuple[float, float, int, float]:
    """Shares in the predicted intervals: of means; of factors of sets that pass; the same without intervals of 1.0."""
    factors = [one.inside for one in found if one.inside is not None]
    scaled = [one.inside for one in found if one.inside is not None and one.open]
    mean, factor, opened = (
        float(np.mean(shares)) if shares else math.nan
        for shares in ([one.mean_inside for one in found], factors, scaled)
    )
    return mean, factor, len(scaled), opened
