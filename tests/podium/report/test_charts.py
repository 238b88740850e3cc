"""What charts of curves are drawn from."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from podium.html.chart import Canvas
from podium.report.charts import Labelled, balance_chart, short, together
from podium.report.find import find
from podium.report.load import read_sets
from podium.report.metrics import Curve
from tests.podium.report.conftest import MakeRun, step


def curve(values: list[float], first: int = 1) -> Curve:
    return Curve.of_points([16 * (first + number) for number in range(len(values))], values).at_most(30)


def test_the_shade_of_many_runs_has_every_extreme_in_its_place() -> None:
    one, other = [1.0] * 400, [2.0] * 800
    one[100], other[600], other[700] = -5.0, 9.0, 0.5
    at, low, high = together([curve(one), curve(other)], 40)
    assert len(at) == 40 and (np.diff(at) > 0).all()
    width = 16 * 799 / 40
    for place, values, found in ((101, -5.0, low.argmin()), (601, 9.0, high.argmax())):
        assert (low.min(), high.max()) == (-5.0, 9.0)
        assert at[found] == pytest.approx(16 * place, abs=2 * width), values
    assert low[at > 16 * 450].min() == 0.5, "where one run is over, only the other counts"
    assert (low <= high).all()


def test_the_shade_has_no_holes_between_points() -> None:
    at, low, high = together([curve([1.0, 3.0]), curve([2.0, 2.0])], 50)
    assert len(at) == 50 and np.isfinite(low).all() and np.isfinite(high).all()
    assert (low <= 2.0).all() and (high >= 2.0).all()


def test_one_point_has_a_shade() -> None:
    at, low, high = together([curve([7.0])], 10)
    assert low.min() == high.max() == 7.0 and len(at) >= 1


def test_the_distribution_of_the_balance_is_drawn_in_percent(make_run: MakeRun) -> None:
    metrics = [step(number, max_over_mean_tokens=1.5 if number == 50 else 1.0) for number in range(1, 101)]
    (one,) = read_sets(find([make_run(metrics=metrics)]))
    chart = balance_chart([Labelled(one.runs[0], "run_0", 0, "run_0")])
    assert chart is not None
    figure = Figure()
    canvas = Canvas(figure, figure.add_subplot(), narrow=False)
    chart.draw(canvas)
    drawn = canvas.axes.lines[0].get_xydata()
    assert drawn[0].tolist() == pytest.approx([1.0, 1.0])
    assert drawn[-2].tolist() == pytest.approx([1.0, 99.0]) and drawn[-1].tolist() == pytest.approx(
        [1.5, 100.0], rel=1e-4
    )


@pytest.mark.parametrize(
    ("value", "written"), [(0, "0"), (500, "500"), (2_500, "2.5k"), (20_000, "20k"), (1.5e6, "1.5M"), (3e9, "3G")]
)
def test_numbers_of_samples_are_short(value: float, written: str) -> None:
    assert short(value) == written
