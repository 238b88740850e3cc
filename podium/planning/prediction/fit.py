"""Fit of the predictor's constants to published runs: `python -m podium.planning.prediction.fit [FILE]`.

Four constants are found by a compass search for the least sum of absolute relative errors of sequences/s (in
logarithms) over the systems of the fit; the rest are assumed, counted, or read from result logs. What the back-test
misses with them is stored beside them, since intervals are made of it. FILE is constants.json.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from math import exp, log
from pathlib import Path

from benchmarks.bert.published.reading import PublishedRun, PublishedScore, SamplesToTarget, read_runs, read_scores
from podium.planning.prediction.backtest import compare
from podium.planning.prediction.constants import PATH, Constants, save_constants
from podium.planning.prediction.interval import SMALL, Kind, Measure, Miss, inside_left_out, upper_end, width
from podium.planning.prediction.published import (
    FITTED_FAMILIES,
    is_fitted,
    is_tested,
    known_samples,
    predicted_rate,
)

SEARCHED = ("sustained_flops_sxm", "sustained_flops_pcie", "host_path_switched", "host_path_direct")
# Assumed constants, the starts that the logs tell, and where the search begins.
START = Constants(
    sustained_flops_sxm=150e12,
    sustained_flops_pcie=120e12,
    micro_batch_seconds=0.004,
    host_path_switched=100e9,
    host_path_direct=10e9,
    link_efficiency=0.75,
    hop_inside=2e-6,
    hop_between=10e-6,
    memory_efficiency=0.8,
    start_seconds_8=2.68,
    start_seconds_64=2.20,
    start_seconds_1024=0.81,
    evaluation_share=1 / 3,
    cpu_run_over_bench=1.32,
    counted_products=0.035,
    counted_attention=0.013,
    counted_elements=0.019,
    counted_head=0.007,
    counted_parameters=0.013,
)
FIRST_STRIDE, LAST_STRIDE = 0.5, 1e-4


def log_errors(runs: Sequence[PublishedRun], constants: Constants, published: Sequence[SamplesToTarget]) -> list[float]:
    """ln(predicted / published sequences per second) of each run, for the samples that it took."""
    return [log(predicted_rate(run, constants, published) / run.sequences_per_second) for run in runs]


def fit_constants(runs: Sequence[PublishedRun]) -> Constants:
    """The constants that suit the fitted ones of these runs best. Deterministic."""
    fitted, published = [run for run in runs if is_fitted(run)], known_samples(runs)

    def loss(constants: Constants) -> float:
        return sum(abs(error) for error in log_errors(fitted, constants, published))

    return compass(START, SEARCHED, loss)


def misses_of(runs: Sequence[PublishedRun], constants: Constants) -> tuple[Miss, ...]:
    """What the back-test misses by kind of system: time of the tested ones of these runs; rates, those of 1.1 too."""
    published = known_samples(runs)
    tested = compare([run for run in runs if is_tested(run)], constants)
    seconds: list[tuple[PublishedRun | PublishedScore, float]] = [(c.run, -log(1 + c.seconds_error)) for c in tested]
    rates: list[tuple[PublishedRun | PublishedScore, float]] = [(c.run, log(1 + c.rate_error)) for c in tested]
    for score in read_scores():
        rates.append((score, log(predicted_rate(score, constants, published) / score.sequences_per_second)))
    others: dict[str, float] = {}  # greatest miss of each system of other code
    for run, miss in (*seconds, *rates):
        if run.family not in FITTED_FAMILIES:
            others[run.name] = max(miss, others.get(run.name, miss))
    measures: tuple[Measure, ...] = ("seconds", "rate")
    kinds: tuple[Kind, ...] = ("small", "large")
    found: list[Miss] = []
    for of, gpus in product(measures, kinds):
        rows = [
            miss
            for run, miss in (seconds if of == "seconds" else rates)
            if run.family in FITTED_FAMILIES and (run.gpus <= SMALL) == (gpus == "small")
        ]
        half, coverage = width(rows)
        inside = inside_left_out([abs(miss) for miss in rows], lambda some: width(some)[0])
        found.append(Miss("fitted", gpus, of, -half, half, coverage, len(rows), inside))
        unfitted = [*others.values()]
        inside = inside_left_out(unfitted, upper_end)
        found.append(Miss("other", gpus, of, -half, max(half, upper_end(unfitted)), None, len(others), inside))
    return tuple(found)


def compass(start: Constants, names: Sequence[str], loss: Callable[[Constants], float]) -> Constants:
    """Multiply one constant at a time up and down while that lowers the loss, then with half the stride.

    Source: the compass search of Kolda, Lewis and Torczon, SIAM Review 2003.
    """
    best, least, stride = start, loss(start), FIRST_STRIDE
    while stride > LAST_STRIDE:
        improved = False
        for name in names:
            for factor in (exp(stride), exp(-stride)):
                tried = replace(best, **{name: getattr(best, name) * factor})
                if (value := loss(tried)) < least:
                    best, least, improved = tried, value, True
                    break
        stride = stride if improved else stride / 2
    return best


def main() -> int:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else PATH
    runs = read_runs()
    found = fit_constants(runs)
    found = replace(found, misses=misses_of(runs, found))
    save_constants(found, path, [run.name for run in runs if is_fitted(run)])
    return 0


if __name__ == "__main__":
    sys.exit(main())
