"""Data of the charts of curves."""

import numpy as np
import pytest

from podium.report.charts import LabelledRun, balance_chart, envelope
from podium.report.find import find_runs
from podium.report.load import read_sets
from podium.report.metrics import Curve
from tests.podium.report.conftest import MakeRun, step


def curve(values: list[float], first: int = 1) -> Curve:
    return Curve.of_points([16 * (first + number) for number in range(len(values))], values).downsample(30)


def test_envelope_has_every_extreme_at_its_position() -> None:
    one, other = [1.0] * 400, [2.0] * 800
    one[100], other[600], other[700] = -5.0, 9.0, 0.5
    at, low, high = envelope([curve(one), curve(other)], 40)
    assert len(at) == 40 and (np.diff(at) > 0).all()
    width = 16 * 799 / 40
    for place, values, found in ((101, -5.0, low.argmin()), (601, 9.0, high.argmax())):
        assert (low.min(), high.max()) == (-5.0, 9.0)
        assert at[found] == pytest.approx(16 * place, abs=2 * width), values
    assert low[at > 16 * 450].min() == 0.5, "after the end of one run only the other counts"
    assert (low <= high).all()


def test_envelope_has_no_gaps_between_points() -> None:
    at, low, high = envelope([curve([1.0, 3.0]), curve([2.0, 2.0])], 50)
    assert len(at) == 50 and np.isfinite(low).all() and np.isfinite(high).all()
    assert (low <= 2.0).all() and (high >= 2.0).all()


def test_envelope_of_one_point() -> None:
    at, low, high = envelope([curve([7.0])], 10)
    assert low.min() == high.max() == 7.0 and len(at) >= 1


def test_balance_distribution_is_in_percent(make_run: MakeRun) -> None:
    metrics = [step(number, max_over_mean_tokens=1.5 if number == 50 else 1.0) for number in range(1, 101)]
    (one,) = read_sets(find_runs([make_run(metrics=metrics)]))
    chart = balance_chart([LabelledRun(one.runs[0], "run_0", 0, "run_0")])
    assert chart is not None
    (line,) = chart.traces
    drawn = list(zip(line["x"], line["y"], strict=True))
    assert drawn[0] == pytest.approx((1.0, 1.0)) and drawn[-2] == pytest.approx((1.0, 99.0))
    assert drawn[-1] == pytest.approx((1.5, 100.0), rel=1e-4)
