"""Scores of ten runs, and the spread of their times."""

import math
from collections.abc import Sequence
from statistics import mean

import pytest

from podium.mllog.run import Run
from podium.mllog.score import counted_seconds, score_seconds, time_spread
from tests.podium.comparison.conftest import make_run


def score(runs: Sequence[Run]) -> float | None:
    return score_seconds([counted_seconds(run) for run in runs])


def test_score_omits_the_fastest_and_the_slowest() -> None:
    assert score([make_run(float(s)) for s in (50, 1, 2, 3, 4, 5, 6, 7, 8, 0.5)]) == mean(range(1, 9))


def test_failed_run_counts_as_the_slowest() -> None:
    runs = [make_run(float(seconds)) for seconds in range(10, 19)]
    failed = make_run(1.0, status="aborted")
    assert score([*runs, failed]) == mean(range(11, 19))
    assert score([*runs, make_run(1.0, stop_ms=None)]) == mean(range(11, 19))
    assert score([*runs[:-1], failed, failed]) is None


@pytest.mark.parametrize("count", [0, 1, 9, 11])
def test_score_needs_ten_runs(count: int) -> None:
    assert score([make_run()] * count) is None


def test_spread_caused_by_samples() -> None:
    found = time_spread([make_run(10.0 * n, 1000.0 * n) for n in (10, 11, 13)])
    assert found is not None and found.samples_share == pytest.approx(1) and found.cause == "samples"
    assert found.relative == pytest.approx(math.sqrt(7 / 3) / (34 / 3))


def test_spread_caused_by_throughput() -> None:
    found = time_spread([make_run(10.0 * n, 1000.0) for n in (10, 11, 13)])
    assert found is not None and found.samples_share == pytest.approx(0) and found.cause == "throughput"


def test_shares_of_samples_and_throughput_add_up_to_one() -> None:
    """The share of throughput, by covariance with log(1 / rate), is 1 minus the share of samples."""
    runs = [make_run(s, n) for s, n in ((100.0, 1000.0), (120.0, 1100.0), (115.0, 1250.0), (140.0, 1200.0))]
    found = time_spread(runs)
    logs = [math.log(run.seconds or 0) for run in runs]
    slowness = [math.log((run.seconds or 0) / (run.samples or 0)) for run in runs]
    by_rate = sum((a - mean(logs)) * (b - mean(slowness)) for a, b in zip(logs, slowness, strict=True))
    variance = sum((a - mean(logs)) ** 2 for a in logs)
    assert found is not None and found.samples_share == pytest.approx(1 - by_rate / variance)


def test_spread_or_cause_is_none_without_data() -> None:
    assert time_spread([make_run(1.0), make_run(2.0)]) is None
    assert time_spread([make_run(1.0)] * 3) is None
    assert time_spread([make_run(1.0), make_run(2.0), make_run(3.0, status="aborted")]) is None
    found = time_spread([make_run(1.0, None), make_run(2.0), make_run(3.0)])
    assert found is not None and found.samples_share is None and found.cause is None
