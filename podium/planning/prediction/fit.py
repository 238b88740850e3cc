"""Fit of the predictor's constants to published runs: `python -m podium.planning.prediction.fit [FILE]`.

A compass search finds four constants that minimise the sum of |ln(predicted / published sequences/s)| over the systems
of the fit. The other constants are assumed, counted, or read from result logs. The errors of the back-test with these
constants are stored with them, since prediction intervals are computed from the errors. FILE defaults to
constants.json.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from math import exp, log
from pathlib import Path

from benchmarks.bert.published.reading import PublishedRun, PublishedScore, SamplesToTarget, read_runs, read_scores
from podium.planning.prediction.backtest import compare
from podium.planning.prediction.constants import CONSTANTS_PATH, Constants, save_constants
from podium.planning.prediction.interval import (
    MAX_SMALL_GPUS,
    ErrorInterval,
    Measure,
    SystemSize,
    count_inside_left_out,
    half_width,
    student_upper_end,
)
from podium.planning.prediction.published import (
    FITTED_FAMILIES,
    is_fitted,
    is_tested,
    known_samples,
    predict_rate,
)

FITTED_NAMES = ("sustained_flops_sxm", "sustained_flops_pcie", "host_path_switched", "host_path_direct")
# Assumed constants, start times read from result logs, and the start of the search.
INITIAL_CONSTANTS = Constants(
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
    """Return ln(predicted / published sequences per second) of each run, for the samples that it trained on."""
    return [log(predict_rate(run, constants, published) / run.sequences_per_second) for run in runs]


def fit_constants(runs: Sequence[PublishedRun]) -> Constants:
    """Return the constants that minimise the loss over the runs that `is_fitted` selects. Deterministic."""
    fitted, published = [run for run in runs if is_fitted(run)], known_samples(runs)

    def loss(constants: Constants) -> float:
        return sum(abs(error) for error in log_errors(fitted, constants, published))

    return compass_search(INITIAL_CONSTANTS, FITTED_NAMES, loss)


def measure_error_intervals(runs: Sequence[PublishedRun], constants: Constants) -> tuple[ErrorInterval, ...]:
    """Return the error intervals of the back-test by kind of system.

    Seconds are those of the tested runs; rates also those of round 1.1's systems. The sign is that of
    ln(published / predicted) seconds, so a positive error is a run that took longer than predicted.
    """
    published = known_samples(runs)
    tested = compare([run for run in runs if is_tested(run)], constants)
    seconds: list[tuple[PublishedRun | PublishedScore, float]] = [(c.run, -log(1 + c.seconds_error)) for c in tested]
    rates: list[tuple[PublishedRun | PublishedScore, float]] = [(c.run, log(1 + c.rate_error)) for c in tested]
    for score in read_scores():
        rates.append((score, log(predict_rate(score, constants, published) / score.sequences_per_second)))
    others: dict[str, float] = {}  # greatest error of each system whose code is not in the fit
    for run, error in (*seconds, *rates):
        if run.family not in FITTED_FAMILIES:
            others[run.name] = max(error, others.get(run.name, error))
    measures: tuple[Measure, ...] = ("seconds", "rate")
    kinds: tuple[SystemSize, ...] = ("small", "large")
    intervals: list[ErrorInterval] = []
    for of, gpus in product(measures, kinds):
        rows = [
            error
            for run, error in (seconds if of == "seconds" else rates)
            if run.family in FITTED_FAMILIES and (run.gpus <= MAX_SMALL_GPUS) == (gpus == "small")
        ]
        half, coverage = half_width(rows)
        inside = count_inside_left_out([abs(error) for error in rows], lambda some: half_width(some)[0])
        intervals.append(ErrorInterval("fitted", gpus, of, -half, half, coverage, len(rows), inside))
        unfitted = [*others.values()]
        inside = count_inside_left_out(unfitted, student_upper_end)
        intervals.append(
            ErrorInterval("other", gpus, of, -half, max(half, student_upper_end(unfitted)), None, len(others), inside)
        )
    return tuple(intervals)


def compass_search(start: Constants, names: Sequence[str], loss: Callable[[Constants], float]) -> Constants:
    """Minimise `loss` over the named constants by a compass search in their logarithms.

    Multiplies one constant at a time by exp(±stride) while that lowers the loss, then halves the stride. Source: Kolda,
    Lewis and Torczon, Optimization by Direct Search, SIAM Review 2003.
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
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else CONSTANTS_PATH
    runs = read_runs()
    constants = fit_constants(runs)
    constants = replace(constants, error_intervals=measure_error_intervals(runs, constants))
    save_constants(constants, path, [run.name for run in runs if is_fitted(run)])
    return 0


if __name__ == "__main__":
    sys.exit(main())
