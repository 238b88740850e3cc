"""Prediction intervals: half-width by number of systems, coverage on random errors, and the statement."""

from math import exp, sqrt

import numpy as np
import pytest

from podium.planning.prediction.interval import (
    ErrorInterval,
    count_inside_left_out,
    half_width,
    prediction_interval,
    student_upper_end,
)

ERROR_INTERVALS = (
    ErrorInterval("fitted", "small", "seconds", -0.2, 0.2, 0.9, 24, 22),
    ErrorInterval("other", "small", "seconds", -0.2, 0.6, None, 3, 2),
)


def test_half_width_by_hand() -> None:
    assert half_width([-0.3, 0.1, 0.2]) == (0.3, None)
    nine = [0.01 * n for n in range(1, 10)]
    assert half_width(nine) == (0.09, 0.9)
    assert half_width([0.01 * n for n in range(1, 20)]) == (0.18, 0.9)
    assert half_width(nine[:8]) == (0.08, None)


def test_interval_covers_a_further_system_nine_times_in_ten() -> None:
    rng = np.random.default_rng(0)
    drawn = rng.standard_t(3, (4000, 25))
    covered = np.mean([abs(row[-1]) <= half_width(row[:-1].tolist())[0] for row in drawn])
    assert covered == pytest.approx(23 / 25, abs=0.015)
    assert covered >= 0.9


def test_each_error_is_compared_with_the_interval_of_the_others() -> None:
    assert count_inside_left_out([0.1, 0.2, 0.3], max) == 2
    assert count_inside_left_out([0.1, 0.1], max) == 2


def test_students_upper_end_by_hand() -> None:
    """The 95% quantile of t with two degrees of freedom is 2.920."""
    assert student_upper_end([0.5, 0.6, 0.7]) == pytest.approx(0.6 + 2.920 * 0.1 * sqrt(4 / 3), abs=1e-4)


def test_an_assumed_error_widens_both_ends() -> None:
    found = prediction_interval(ERROR_INTERVALS, "fitted", 32, "seconds", 0.0)
    assert (found.low, found.high) == pytest.approx((exp(0.2), exp(0.2)))
    wider = prediction_interval(ERROR_INTERVALS, "fitted", 32, "seconds", 0.3)
    assert (wider.low, wider.high) == pytest.approx((1.3 * exp(0.2), 1.3 * exp(0.2)))
    assert "widened by an assumed 30%" in wider.statement


def test_coverage_and_systems_are_stated() -> None:
    fitted, other, measured = (
        prediction_interval(ERROR_INTERVALS, code, 8, "seconds", 0.0) for code in ("fitted", "other", "measured")
    )
    assert "cover 90% of scores, from the errors of 24 published systems" in fitted.statement
    assert "22 of 24 lie inside" in fitted.statement
    assert "no stated coverage" in other.statement
    assert "3 published systems whose code is not in the fit" in other.statement
    assert "its coverage is not known" in measured.statement
    assert (measured.low, measured.high) == (1.0, 1.0)
