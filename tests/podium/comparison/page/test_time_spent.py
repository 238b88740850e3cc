"""Where the time of runs goes."""

import re
from xml.etree import ElementTree

import pytest

from podium.comparison.page.time_spent import KINDS, TimeSpent, time_spent, time_spent_chart
from podium.page.chart import page_svg
from tests.podium.comparison.conftest import evaluations_at, make_result, make_run


def test_parts_are_all_of_the_run() -> None:
    spent = TimeSpent(100.0, 50.0, 10.0, 20.0, 1.0)
    assert dict(zip(KINDS, spent.parts, strict=True)) == {
        "starting": 10.0,
        "training": 69.0,
        "training and evaluation": 0.0,
        "evaluation": 20.0,
        "closing": 1.0,
    }
    assert sum(spent.parts) == spent.seconds


@pytest.mark.parametrize(
    ("spent", "parts"),
    [
        (TimeSpent(100, None, None, None, None), (0, 0, 100, 0, 0)),
        (TimeSpent(100, None, -5, None, 0), (0, 0, 100, 0, 0)),
        (TimeSpent(100, None, 10, None, 2), (10, 0, 88, 0, 2)),
        (TimeSpent(100, None, None, 95, 10), (0, 0, 0, 90, 10)),
        (TimeSpent(100, None, 300, 10, 0), (300, 0, 0, 0, 0)),
    ],
)
def test_what_is_not_known_is_not_told_apart(spent: TimeSpent, parts: tuple[float, ...]) -> None:
    assert spent.parts == parts
    assert (spent.training is None) == (spent.evaluation is None)


def test_means_of_the_runs_that_converged() -> None:
    runs = [
        make_run(1000.0, evaluating_seconds=100.0, init_seconds=10.0),
        make_run(2000.0, evaluating_seconds=200.0, init_seconds=30.0),
        make_run(9000.0, status="aborted"),
    ]
    spent = time_spent(make_result(runs))
    assert spent is not None
    assert (spent.seconds, spent.initialisation, spent.evaluation) == (1500.0, 20.0, 150.0)
    assert spent.starting == pytest.approx(0.0) and spent.closing == pytest.approx(0.0)
    unknown = time_spent(make_result([runs[0], make_run(2000.0)]))
    assert unknown is not None and unknown.evaluation is None and unknown.training is None
    assert time_spent(make_result([runs[2]])) is None


def test_bars_are_as_long_as_their_shares() -> None:
    late = evaluations_at((500 + 125 * n, 6e5 * n, accuracy) for n, accuracy in enumerate((0.4, 0.6, 0.7, 0.73), 1))
    result = make_result([make_run(1000.0, evaluating_seconds=100.0, evaluations=late)])
    root = ElementTree.fromstring(page_svg(time_spent_chart([result]), "c", False))
    lengths, starts, stops = {}, [], []
    for bar in root.iter("path"):
        if "data-group" in bar.attrib:
            ends = [float(x) for x in re.findall(r"[ML] ([\d.]+)", bar.attrib["d"])]
            kind = "".join(bar.itertext()).split("\n")[3].split(":")[0]
            lengths[kind] = max(ends) - min(ends)
            starts.append(min(ends))
            stops.append(max(ends))
    assert starts[1:] == stops[:-1], "each begins where the one before ends"
    whole = sum(lengths.values())
    shares = {kind: length / whole for kind, length in lengths.items()}
    assert shares == pytest.approx({"starting": 0.5, "training": 0.4, "evaluation": 0.1}, abs=0.002)
