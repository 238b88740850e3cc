"""Samples to target: interpolation in the logarithm of the batch size, scaling of rounds, lone systems."""

from math import log, sqrt

import pytest

from benchmarks.bert.published.reading import SamplesToTarget, read_samples, read_tiny_samples
from podium.planning.prediction.samples_to_target import SPREAD_PER_DOUBLING, Curve, Point, fit_curve


def row(
    batch: int, mean: float, round: str = "1.1", division: str = "closed", optimizer: str = "lamb"
) -> SamplesToTarget:
    return SamplesToTarget(
        round, "S", f"{batch}-{mean}", optimizer, batch, division, mean, 0.9 * mean, 1.2 * mean, 10, 10
    )


def known(*rows: SamplesToTarget, optimizer: str = "lamb") -> Curve:
    found = fit_curve(rows, optimizer)
    assert found is not None
    return found


def test_samples_are_interpolated_in_the_logarithm_of_the_batch() -> None:
    estimate = known(row(100, 2e6), row(10_000, 4e6)).estimate(1000)
    assert estimate.mean == pytest.approx(3e6)
    assert (estimate.least, estimate.greatest) == (pytest.approx(2.7e6), pytest.approx(3.6e6))
    assert estimate.unsure == ()


def test_extrapolation_is_constant_below_and_linear_above_and_reported() -> None:
    found = known(row(100, 2e6), row(1000, 3e6))
    assert found.estimate(10).mean == 2e6
    above = found.estimate(10_000)
    assert above.mean == pytest.approx(4e6)
    doublings = log(10) / log(2)
    assert above.greatest == pytest.approx((1.2 + SPREAD_PER_DOUBLING * doublings) * 4e6)
    assert above.least == pytest.approx(0.9 * 4e6 / (1 + SPREAD_PER_DOUBLING * doublings))
    assert found.estimate(10).greatest == pytest.approx((1.2 + SPREAD_PER_DOUBLING * doublings) * 2e6)
    for batch in (10, 10_000):
        (sentence,) = found.estimate(batch).unsure
        assert f"{batch:,}" in sentence
        assert "100 to 1,000" in sentence


def test_beyond_the_last_batch_samples_never_become_fewer() -> None:
    assert known(row(100, 3e6), row(1000, 2e6)).estimate(10_000).mean == pytest.approx(2e6)


def test_single_point_is_used_for_every_batch() -> None:
    found = known(row(100, 2e6))
    assert found.estimate(1000).mean == 2e6
    assert "100 only" in found.estimate(1000).unsure[0]
    assert found.estimate(100).unsure == ()


def test_the_median_system_is_used() -> None:
    assert known(row(100, 2e6), row(100, 2.2e6), row(100, 9e6)).estimate(100).mean == 2.2e6


def test_older_rounds_are_scaled_to_the_newest() -> None:
    found = known(row(100, 4e6, "1.0"), row(1000, 6e6, "1.0"), row(100, 3e6, "1.1"))
    assert found.estimate(1000).mean == pytest.approx(4.5e6)
    assert found.estimate(1000).least == pytest.approx(0.9 * 4.5e6)


def test_rounds_2_0_and_2_1_are_one_generation() -> None:
    assert known(row(100, 2e6, "2.0"), row(100, 4e6, "2.1")).estimate(100).mean == 3e6


def test_lone_system_is_superseded_by_a_better_known_neighbour() -> None:
    neighbours = [row(200, 2e6, "2.0"), row(200, 2e6, "2.0")]
    assert [p.batch for p in known(row(150, 9e6, "2.0"), *neighbours).points] == [200]
    assert [p.batch for p in known(row(150, 9e6, "1.1"), *neighbours).points] == [200]
    assert [p.batch for p in known(row(90, 9e6, "2.0"), *neighbours).points] == [90, 200]
    assert [p.batch for p in known(row(150, 9e6, "2.0"), row(150, 8e6, "2.0"), *neighbours).points] == [150, 200]


def test_open_runs_with_lamb_are_ignored_and_optimizers_are_separate() -> None:
    rows = [row(100, 2e6), row(100, 1e6, division="open"), row(100, 5e5, division="open", optimizer="adamw")]
    assert known(*rows).points[0].mean == 2e6
    assert known(*rows, optimizer="adamw").points[0].mean == 5e5
    assert fit_curve(rows, "sgd") is None


def test_published_samples_grow_with_the_batch() -> None:
    found = known(*read_samples())
    assert [point.batch for point in found.points if point.batch in (256, 448, 3072, 6144, 12_960)]
    assert found.estimate(448).mean == pytest.approx(2.8e6, rel=0.03)
    assert found.estimate(12_960).mean == pytest.approx(4.62e6, rel=0.05)
    between = found.estimate(round(sqrt(6144 * 12_960))).mean
    assert between == pytest.approx((found.estimate(6144).mean + found.estimate(12_960).mean) / 2, rel=1e-4)
    assert isinstance(found.points[0], Point)
    assert log(found.points[-1].batch) > 9


def test_tiny_bert_samples_are_those_of_its_runs() -> None:
    estimate = known(*read_tiny_samples(), optimizer="adamw").estimate(16)
    assert (estimate.mean, estimate.least, estimate.greatest) == (10_240, 8_192, 12_288)
