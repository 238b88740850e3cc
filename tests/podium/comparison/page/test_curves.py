"""Accuracy over samples."""

from xml.etree import ElementTree

import numpy as np
import pytest

from benchmarks.bert.rules import TARGET_ACCURACY
from podium.comparison.page.curves import POSITIONS, accuracies, curves_chart
from podium.page.chart import page_svg
from podium.reading.run_log import Run
from tests.podium.comparison.conftest import evaluations_at, make_result, make_run


def run(*points: tuple[float | None, float]) -> Run:
    return make_run(evaluations=evaluations_at((10.0 * n, *point) for n, point in enumerate(points, 1)))


def test_a_run_is_linear_between_its_evaluations_and_keeps_its_last() -> None:
    known = accuracies(make_result([run((100, 0.2), (200, 0.6)), run((1, 0.003), (300, 0.9))]))
    assert known is not None
    positions, values = known
    assert positions.tolist() == np.linspace(100, 300, POSITIONS).tolist() and values.shape == (2, POSITIONS)
    first, second = values
    assert first[0] == 0.2 and first[-1] == 0.6
    at = int(np.searchsorted(positions, 200))
    assert first[at:].tolist() == [0.6] * (POSITIONS - at)
    assert second.tolist() == pytest.approx((positions * 0.003).tolist())


def test_runs_that_do_not_count_samples_have_no_curve() -> None:
    silent, single = run((None, 0.2), (None, 0.6)), run((100, 0.7))
    assert accuracies(make_result([silent, single])) is None
    assert accuracies(make_result([])) is None
    known = accuracies(make_result([silent, single, run((100, 0.2), (200, 0.7))]))
    assert known is not None and known[1].shape == (1, POSITIONS)


def test_evaluations_that_are_out_of_order_or_repeated_are_sorted() -> None:
    known = accuracies(make_result([run((200, 0.6), (100, 0.2), (200, 0.6))]))
    assert known is not None
    positions, (values,) = known
    assert (positions[0], positions[-1], values[0], values[-1]) == (100, 200, 0.2, 0.6)


def test_points_tell_the_median_and_the_band() -> None:
    runs = [run((1e6, 0.3), (2e6, last)) for last in (0.72, 0.73, 0.76)]
    root = ElementTree.fromstring(page_svg(curves_chart([make_result(runs)], closely=False), "c", False))
    told = ["".join(one.itertext()) for one in root.iter("use") if "data-group" in one.attrib]
    assert len(told) == POSITIONS
    assert "after 1,000,000 samples: 0.3000 (0.3000 to 0.3000)" in told[0]
    assert "after 2,000,000 samples: 0.7300 (0.7200 to 0.7600)" in told[-1]


def test_closely_only_what_is_near_the_target_can_be_pointed_at() -> None:
    runs = [run((1e6, TARGET_ACCURACY - 0.2), (2e6, TARGET_ACCURACY + 0.2))]
    found = []
    for closely in (False, True):
        root = ElementTree.fromstring(page_svg(curves_chart([make_result(runs)], closely), "c", True))
        found.append(sum("data-group" in one.attrib for one in root.iter("use")))
    assert found[0] == POSITIONS and 12 <= found[1] < POSITIONS


def test_a_result_that_never_comes_near_is_drawn_closely_too() -> None:
    far = make_result([run((1e6, 0.1), (2e6, 0.2))])
    assert "<svg" in page_svg(curves_chart([far], closely=True), "c", False)


@pytest.mark.parametrize("wrong", [(2e6, 700.0), (2e6, -3.0), (-5.0, 0.6), (1e300, 0.6)])
def test_evaluations_that_no_run_can_have_are_left_out(wrong: tuple[float, float]) -> None:
    known = accuracies(make_result([run((1e6, 0.5), wrong, (3e6, 0.7))]))
    assert known is not None
    assert (known[0][0], known[0][-1]) == (1e6, 3e6)
    assert known[1].min() == 0.5 and known[1].max() == 0.7
