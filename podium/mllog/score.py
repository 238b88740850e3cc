"""MLPerf's score of a set of runs, and the spread of their times with its main cause: samples or throughput."""

import math
from collections.abc import Sequence
from statistics import mean, pvariance, stdev
from typing import NamedTuple

from benchmarks.bert.rules import DROPPED, RUNS
from podium.mllog.run import Run


class TimeSpread(NamedTuple):
    """Spread of the times of a result's runs, and its cause."""

    relative: float  # standard deviation of the seconds, divided by their mean
    # Share of the variance of log seconds that the number of samples explains; throughput explains the rest. As
    # seconds = samples / rate, it is cov(log seconds, log samples) / var(log seconds), and both shares add up to 1. A
    # share below 0 or above 1 means that the two effects are opposed. None where samples are not known.
    samples_share: float | None

    @property
    def cause(self) -> str | None:
        """Return `samples` or `throughput`, whichever explains more; None where unknown."""
        if self.samples_share is None:
            return None
        return "samples" if self.samples_share >= 0.5 else "throughput"


def score_seconds(seconds: Sequence[float], runs: int = RUNS, dropped: int = DROPPED) -> float | None:
    """MLPerf's score of a number of runs in seconds: their olympic mean, without the fastest and slowest `dropped`.

    The defaults are BERT's; podium.mllog.benchmarks has those of all benchmarks. A run that did not reach the target
    counts as infinite: up to `dropped` such runs are left out as the slowest, more leave no score. None then, and for
    another number of runs.
    """
    counted = sorted(seconds)[dropped : len(seconds) - dropped]
    return mean(counted) if len(seconds) == runs and math.isfinite(counted[-1]) else None


def window_scores(seconds: Sequence[float], runs: int = RUNS, dropped: int = DROPPED) -> list[float]:
    """Score every window of `runs` consecutive runs, in seconds; inf without a score. ValueError for fewer runs."""
    if len(seconds) < runs:
        raise ValueError(f"{len(seconds)} runs have no window of {runs}")
    windows = (seconds[first : first + runs] for first in range(len(seconds) - runs + 1))
    scores = (score_seconds(window, runs, dropped) for window in windows)
    return [math.inf if score is None else score for score in scores]


def median_window(scores: Sequence[float]) -> int:
    """Index of the window with the median score: of an even number the slower middle one, of equal ones the first."""
    middle = sorted(scores)[len(scores) // 2]
    return scores.index(middle)


def counted_seconds(run: Run) -> float:
    """Seconds of a run as the score counts them: inf for a run that did not converge."""
    return run.seconds if run.converged and run.seconds is not None else math.inf


def time_spread(runs: Sequence[Run]) -> TimeSpread | None:
    """Spread of the times of the runs that converged; None for fewer than three runs, or if all times are equal."""
    times = [(run.seconds, run.trained) for run in runs if run.converged and run.seconds is not None]
    seconds = [time for time, _ in times]
    if len(seconds) < 3 or max(seconds) == min(seconds):
        return None
    relative = stdev(seconds) / mean(seconds)
    samples = [count for _, count in times if count is not None and count > 0]
    if len(samples) < len(seconds):
        return TimeSpread(relative, None)
    log_seconds, log_samples = [math.log(time) for time in seconds], [math.log(count) for count in samples]
    middle_seconds, middle_samples = mean(log_seconds), mean(log_samples)
    covariance = mean(
        (time - middle_seconds) * (count - middle_samples) for time, count in zip(log_seconds, log_samples, strict=True)
    )
    return TimeSpread(relative, covariance / pvariance(log_seconds))
