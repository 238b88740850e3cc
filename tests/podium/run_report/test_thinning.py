"""Curves stay bounded and hide nothing."""

import math
import random

import numpy as np
import pytest

from podium.run_report.thinning import BINS, Curve, Thinner, extremes


def thinned(values: list[float], per_point: int = 16) -> Curve:
    thinner = Thinner(1)
    for number, value in enumerate(values, 1):
        thinner.add(per_point * number, [value])
    (curve,) = thinner.curves()
    assert curve is not None
    return curve


def test_few_points_are_kept_as_they_are() -> None:
    values = [math.sin(number) for number in range(BINS)]
    curve = thinned(values)
    assert curve.whole and curve.points == BINS
    assert curve.mean.tolist() == values == curve.low.tolist() == curve.high.tolist()
    assert curve.at.tolist() == [16.0 * number for number in range(1, BINS + 1)]


@pytest.mark.parametrize("count", [BINS + 1, 1024, 1025, 5_000, 40_001])
def test_many_points_are_bounded_and_keep_extremes_places_and_mean(count: int) -> None:
    numbers = random.Random(count)
    values = [numbers.gauss(5, 1) for _ in range(count)]
    spike, dip = count // 3, 2 * count // 3
    values[spike], values[dip] = 99.0, -99.0
    curve = thinned(values)
    assert BINS / 2 <= len(curve.at) <= BINS
    assert curve.points == count
    assert curve.greatest == 99.0 and curve.least == -99.0
    assert curve.high_at[curve.high.argmax()] == 16 * (spike + 1)
    assert curve.low_at[curve.low.argmin()] == 16 * (dip + 1)
    assert curve.mean_of_all == pytest.approx(sum(values) / count)
    assert (curve.low <= curve.mean).all() and (curve.mean <= curve.high).all()
    assert (np.diff(curve.at) > 0).all()


def test_each_bin_tells_of_its_own_points() -> None:
    curve = thinned([float(number) for number in range(3_000)], per_point=1)
    start = 0
    for place, count in enumerate(curve.count.astype(int)):
        assert curve.low[place] == start and curve.high[place] == start + count - 1
        assert curve.mean[place] == pytest.approx(start + (count - 1) / 2)
        assert curve.at[place] == pytest.approx(start + 1 + (count - 1) / 2, abs=0.5 * count)
        start += count
    assert start == 3_000


def test_values_that_are_missing_count_nowhere() -> None:
    thinner = Thinner(3)
    for number in range(2_000):
        thinner.add(number, [1.0, math.nan, 7.0 if number == 1234 else math.nan])
    every, none, once = thinner.curves()
    assert every is not None and every.points == 2_000
    assert none is None
    assert once is not None and once.points == 1 and once.mean.tolist() == [7.0] and once.high_at.tolist() == [1234.0]


def test_a_curve_can_be_thinned_again_for_a_chart() -> None:
    values = [1.0] * 900
    values[700] = 50.0
    curve = thinned(values).at_most(40)
    assert 20 <= len(curve.at) <= 40
    assert curve.greatest == 50.0 and curve.points == 900
    assert curve.high_at[curve.high.argmax()] == 16 * 701
    assert curve.mean_of_all == pytest.approx(sum(values) / 900)
    assert len(thinned(values).at_most(1).at) == 1


def test_no_point_at_all() -> None:
    assert Thinner(2).curves() == [None, None]


def test_of_many_single_points_the_extremes_are_kept() -> None:
    numbers = random.Random(3)
    points = [(100.0 * place, numbers.random()) for place in range(1, 2_001)]
    points[777], points[1_500] = (77_800.0, 5.0), (150_100.0, -5.0)
    kept = extremes(points, 100)
    assert 50 <= len(kept) <= 100 and set(kept) <= set(points)
    assert {points[777], points[1_500]} <= set(kept) and kept == sorted(kept)
    assert extremes(points[:100], 100) == points[:100]
