"""MLPerf's score of a set of runs, how far runs differ, and what makes them differ."""

import math
from collections.abc import Sequence
from statistics import mean, pvariance, stdev
from typing import NamedTuple

from benchmarks.bert.rules import RUNS
from podium.comparison.run import Run


class Spread(NamedTuple):
    """How far the times of a result's runs lie apart, and why."""

    relative: float
    """Standard deviation of the seconds by their mean."""
    samples_share: float | None
    """Of the variance of log seconds, what the samples trained on account for; what is left, the throughput does.

    As seconds are samples / rate, it is cov(log seconds, log samples) / var(log seconds), so that both shares add up to
    1; a share below 0 or above 1 means that the two work against each other. None where samples are not known.
    """

    @property
    def cause(self) -> str | None:
        """`samples` or `throughput`, whichever accounts for more."""
        if self.samples_share is None:
            return None
        return "samples" if self.samples_share >= 0.5 else "throughput"


def score_seconds(runs: Sequence[Run]) -> float | None:
    """The olympic mean: without the fastest and the slowest run.

    A run that did not converge counts as the slowest; with two of them, or another number of runs than ten, there is
    no score.
    """
    seconds = sorted(counted_seconds(run) for run in runs)[1:-1]
    return mean(seconds) if len(runs) == RUNS and math.isfinite(seconds[-1]) else None


def counted_seconds(run: Run) -> float:
    """As the score takes it: infinite for a run that did not converge."""
    return run.seconds if run.converged and run.seconds is not None else math.inf


def spread(runs: Sequence[Run]) -> Spread | None:
    """Of the runs that converged; None for fewer than three, or where all take the same time."""
    times = [(run.seconds, run.trained) for run in runs if run.converged and run.seconds is not None]
    seconds = [time for time, _ in times]
    if len(seconds) < 3 or max(seconds) == min(seconds):
        return None
    relative = stdev(seconds) / mean(seconds)
    samples = [count for _, count in times if count is not None and count > 0]
    if len(samples) < len(seconds):
        return Spread(relative, None)
    log_seconds, log_samples = [math.log(time) for time in seconds], [math.log(count) for count in samples]
    middle_seconds, middle_samples = mean(log_seconds), mean(log_samples)
    covariance = mean(
        (time - middle_seconds) * (count - middle_samples) for time, count in zip(log_seconds, log_samples, strict=True)
    )
    return Spread(relative, covariance / pvariance(log_seconds))
