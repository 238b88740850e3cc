"""Charts of a comparison: values by number of accelerators, accuracy by samples, and phase times."""

import re
from collections.abc import Sequence
from xml.etree import ElementTree

import numpy as np
import pytest

from benchmarks.bert.rules import TARGET_ACCURACY
from podium.comparison.page.charts import (
    CURVE_POSITIONS,
    PHASES,
    PhaseTimes,
    best_rates_chart,
    curves_chart,
    metric_curves,
    phase_times,
    phase_times_chart,
    throughput_chart,
    ticks,
    time_chart,
)
from podium.comparison.page.families import MAX_FAMILIES, group_by_family
from podium.comparison.page.labels import tooltip
from podium.comparison.result import Result
from podium.html.chart import Chart, page_svg
from podium.mllog.run import Run
from tests.podium.comparison.conftest import evaluations_at, make_result, make_run

FACTORS = (*(1.0 for _ in range(8)), 1.1, 0.9)


def sized(accelerators: int, seconds: float, **changes: object) -> Result:
    fields = {"accelerators": accelerators, "system": f"{accelerators}-{seconds:.0f}", **changes}
    return make_result([make_run(seconds * factor) for factor in FACTORS], **fields)


def points(chart: Chart, narrow: bool = False) -> dict[str, tuple[float, float]]:
    """Return the position of the point of each system, x to the right and y upwards."""
    root = ElementTree.fromstring(page_svg(chart, "c", narrow))
    found = {}
    for element in root.iter("use"):
        if "data-group" in element.attrib:
            name = "".join(element.itertext()).split("\n")[0].split(" ")[1]
            found[name] = (float(element.attrib["x"]), -float(element.attrib["y"]))
    return found


@pytest.mark.parametrize("narrow", [False, True])
def test_points_are_at_the_results_values(narrow: bool) -> None:
    results = [sized(8, 1000), sized(16, 500), sized(64, 125), sized(64, 250), sized(1024, 10)]
    found = points(time_chart(group_by_family(results)), narrow)
    assert set(found) == {result.system for result in results}
    x, y = ({name: at[axis] for name, at in found.items()} for axis in (0, 1))
    assert x["8-1000"] < x["16-500"] < x["64-125"] == x["64-250"] < x["1024-10"]
    octave = x["16-500"] - x["8-1000"]
    assert x["64-125"] - x["16-500"] == pytest.approx(2 * octave, abs=0.1)
    halving = y["8-1000"] - y["16-500"]
    assert halving > 0 and y["16-500"] - y["64-125"] == pytest.approx(2 * halving, abs=0.1)


def test_throughput_is_per_accelerator_or_per_node() -> None:
    cpus = sized(0, 1000, system="cpus", accelerator=None, kind=None, nodes=8)
    results = [sized(8, 1000, system="few"), sized(16, 500, system="many"), cpus]
    found = points(throughput_chart(group_by_family(results)))
    assert found["few"][1] == pytest.approx(found["many"][1], abs=0.05) == pytest.approx(found["cpus"][1], abs=0.05)
    assert found["cpus"][0] != found["few"][0], "families of one size are drawn side by side"


def test_results_without_samples_are_not_in_the_chart_of_throughput() -> None:
    unknown = make_result([make_run(1000 * f, None) for f in FACTORS], system="unknown")
    assert set(points(throughput_chart(group_by_family([unknown, sized(8, 900)])))) == {"8-900"}


def test_lines_connect_published_closed_results_of_one_family() -> None:
    def lines(results: Sequence[Result]) -> int:
        svg = page_svg(time_chart(group_by_family(results)), "c", False)
        return len(re.findall(r'<path d="[^"]*" clip-path="[^"]*" style="fill: none; stroke: var\(--series-0\)', svg))

    assert lines([sized(8, 100), sized(16, 50)]) == 1
    assert lines([sized(8, 100), sized(8, 50)]) == 0
    assert lines([sized(8, 100), sized(16, 50, division="open")]) == 0
    assert lines([sized(8, 100), sized(16, 50, round=None)]) == 0
    many = [sized(8 * n, 100, kind=None, accelerator=f"kind {n:02d}") for n in range(1, MAX_FAMILIES + 4)]
    assert lines(many) == 0, "different kinds of accelerators are no family"


def test_own_and_open_results_have_their_own_markers() -> None:
    both = [sized(8, 100, division="open", system="free"), sized(16, 50, round=None, system="mine")]
    svg = page_svg(time_chart(group_by_family(both)), "c", False)
    assert "your own" in svg and "stroke: var(--ink)" in svg
    assert re.search(r"fill-opacity: 0; stroke: var\(--series-0\)|fill: none; stroke: var\(--series-0\)", svg)
    assert "your own" not in page_svg(time_chart(group_by_family(both[:1])), "c", False)


def test_a_single_result_is_drawn() -> None:
    for result in (sized(1, 5), sized(8, 5, round=None), sized(0, 5, nodes=1)):
        families = group_by_family([result])
        for chart in (time_chart(families), throughput_chart(families), best_rates_chart([result])):
            for narrow in (False, True):
                assert "<title>" in page_svg(chart, "c", narrow)


def test_bars_of_rates_are_ordered_and_proportional() -> None:
    results = [sized(8, 1000, system="half"), sized(8, 500, system="whole", accelerator="X", kind=None)]
    root = ElementTree.fromstring(page_svg(best_rates_chart(results), "c", False))
    bars = [element for element in root.iter("path") if "data-group" in element.attrib]
    names = ["".join(bar.itertext()).split("\n")[0].split(" ")[1] for bar in bars]
    ends = [[float(x) for x in re.findall(r"[ML] ([\d.]+)", bar.attrib["d"])] for bar in bars]
    lengths = [max(end) - min(end) for end in ends]
    assert names == ["whole", "half"] and lengths[0] == pytest.approx(2 * lengths[1], rel=0.01)
    texts = [text for text in root.itertext() if "% of peak" in text]
    assert len(texts) == 1, "no share is drawn if the peak is unknown"


def test_tooltips_of_results() -> None:
    text = tooltip(sized(8, 60, scaling_factor=1.1, repeats="v1.1 ORG SYS"))
    assert text.split("\n") == [
        "ORG 8-60 (v2.0, closed)",
        "8×NVIDIA A100 SXM",
        "1.100 min (measured 1.000 min, scaled)",
        "5,000.0 samples/s per accelerator",
        f"{100 * 5000 * 497.5e9 / 312e12:.1f} % of the peak",
        "2,400,000 samples to the target",
        "batch size 448",
        "the same runs as v1.1 ORG SYS",
    ]
    bare = make_result([make_run(30, None)], round=None, accelerators=None, accelerator=None, kind=None)
    assert tooltip(bare).split("\n")[:3] == [
        "ORG SYS (your own)",
        "accelerators unknown",
        "30.00 s (mean of 1 runs: no score)",
    ]


@pytest.mark.parametrize(
    ("low", "high", "most", "base", "expected"),
    [
        (0.8, 5000, 14, 2, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096]),
        (0.8, 5000, 6, 2, [1, 8, 64, 512, 4096]),
        (6, 10, 14, 2, [8]),
        (0.15, 300, 12, 10, [0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200]),
        (0.15, 300, 8, 10, [0.3, 1, 3, 10, 30, 100, 300]),
        (0.01, 1e9, 6, 10, [0.01, 1, 100, 1e4, 1e6, 1e8]),
    ],
)
def test_ticks_are_round_numbers(low: float, high: float, most: int, base: int, expected: list[float]) -> None:
    assert ticks(low, high, most, base) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("seconds", "samples"), [(1e-9, 1e6), (1e14, 1e6), (100.0, 0.0), (100.0, -5.0), (100.0, 1e300)]
)
def test_implausible_values_are_not_drawn(seconds: float, samples: float) -> None:
    wrong = make_result([make_run(seconds, samples)] * 10, system="wrong")
    families = group_by_family([sized(8, 1000), wrong])
    assert "wrong" not in points(throughput_chart(families))
    assert ("wrong" in points(time_chart(families))) == (seconds == 100.0)
    assert "8-1000" in points(throughput_chart(families))


def run(*points: tuple[float | None, float]) -> Run:
    return make_run(evaluations=evaluations_at((10.0 * n, *point) for n, point in enumerate(points, 1)))


def test_a_metric_is_linear_between_evaluations_and_constant_after_the_last() -> None:
    known = metric_curves(make_result([run((100, 0.2), (200, 0.6)), run((1, 0.003), (300, 0.9))]))
    assert known is not None
    positions, values = known
    assert positions.tolist() == np.linspace(100, 300, CURVE_POSITIONS).tolist() and values.shape == (
        2,
        CURVE_POSITIONS,
    )
    first, second = values
    assert first[0] == 0.2 and first[-1] == 0.6
    at = int(np.searchsorted(positions, 200))
    assert first[at:].tolist() == [0.6] * (CURVE_POSITIONS - at)
    assert second.tolist() == pytest.approx((positions * 0.003).tolist())


def test_runs_without_samples_or_with_one_evaluation_have_no_curve() -> None:
    without_samples, single = run((None, 0.2), (None, 0.6)), run((100, 0.7))
    assert metric_curves(make_result([without_samples, single])) is None
    assert metric_curves(make_result([])) is None
    known = metric_curves(make_result([without_samples, single, run((100, 0.2), (200, 0.7))]))
    assert known is not None and known[1].shape == (1, CURVE_POSITIONS)


def test_evaluations_that_are_out_of_order_or_repeated_are_sorted() -> None:
    known = metric_curves(make_result([run((200, 0.6), (100, 0.2), (200, 0.6))]))
    assert known is not None
    positions, (values,) = known
    assert (positions[0], positions[-1], values[0], values[-1]) == (100, 200, 0.2, 0.6)


def test_tooltips_of_curves_have_the_median_and_the_range() -> None:
    runs = [run((1e6, 0.3), (2e6, last)) for last in (0.72, 0.73, 0.76)]
    root = ElementTree.fromstring(page_svg(curves_chart([make_result(runs)], zoomed=False), "c", False))
    tooltips = ["".join(one.itertext()) for one in root.iter("use") if "data-group" in one.attrib]
    assert len(tooltips) == CURVE_POSITIONS
    assert "after 1,000,000 samples: 0.3000 (0.3000 to 0.3000)" in tooltips[0]
    assert "after 2,000,000 samples: 0.7300 (0.7200 to 0.7600)" in tooltips[-1]


def test_zoomed_curves_have_points_only_near_the_target() -> None:
    runs = [run((1e6, TARGET_ACCURACY - 0.2), (2e6, TARGET_ACCURACY + 0.2))]
    found = []
    for zoomed in (False, True):
        root = ElementTree.fromstring(page_svg(curves_chart([make_result(runs)], zoomed), "c", True))
        found.append(sum("data-group" in one.attrib for one in root.iter("use")))
    assert found[0] == CURVE_POSITIONS and 12 <= found[1] < CURVE_POSITIONS


def test_zoomed_curves_of_results_far_from_the_target_are_drawn() -> None:
    far = make_result([run((1e6, 0.1), (2e6, 0.2))])
    assert "<svg" in page_svg(curves_chart([far], zoomed=True), "c", False)


@pytest.mark.parametrize("wrong", [(2e6, 700.0), (2e6, -3.0), (-5.0, 0.6), (1e300, 0.6)])
def test_implausible_evaluations_are_left_out(wrong: tuple[float, float]) -> None:
    known = metric_curves(make_result([run((1e6, 0.5), wrong, (3e6, 0.7))]))
    assert known is not None
    assert (known[0][0], known[0][-1]) == (1e6, 3e6)
    assert known[1].min() == 0.5 and known[1].max() == 0.7


def test_phases_add_up_to_the_run() -> None:
    spent = PhaseTimes(100.0, 50.0, 10.0, 20.0, 1.0)
    assert dict(zip(PHASES, spent.parts, strict=True)) == {
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
        (PhaseTimes(100, None, None, None, None), (0, 0, 100, 0, 0)),
        (PhaseTimes(100, None, -5, None, 0), (0, 0, 100, 0, 0)),
        (PhaseTimes(100, None, 10, None, 2), (10, 0, 88, 0, 2)),
        (PhaseTimes(100, None, None, 95, 10), (0, 0, 0, 90, 10)),
        (PhaseTimes(100, None, 300, 10, 0), (300, 0, 0, 0, 0)),
    ],
)
def test_unknown_phases_are_part_of_the_known_ones(spent: PhaseTimes, parts: tuple[float, ...]) -> None:
    assert spent.parts == parts
    assert (spent.training is None) == (spent.evaluation is None)


def test_phase_times_are_means_of_the_converged_runs() -> None:
    runs = [
        make_run(1000.0, evaluating_seconds=100.0, init_seconds=10.0),
        make_run(2000.0, evaluating_seconds=200.0, init_seconds=30.0),
        make_run(9000.0, status="aborted"),
    ]
    spent = phase_times(make_result(runs))
    assert spent is not None
    assert (spent.seconds, spent.initialisation, spent.evaluation) == (1500.0, 20.0, 150.0)
    assert spent.starting == pytest.approx(0.0) and spent.closing == pytest.approx(0.0)
    unknown = phase_times(make_result([runs[0], make_run(2000.0)]))
    assert unknown is not None and unknown.evaluation is None and unknown.training is None
    assert phase_times(make_result([runs[2]])) is None


def test_bars_of_phases_are_proportional() -> None:
    late = evaluations_at((500 + 125 * n, 6e5 * n, accuracy) for n, accuracy in enumerate((0.4, 0.6, 0.7, 0.73), 1))
    result = make_result([make_run(1000.0, evaluating_seconds=100.0, evaluations=late)])
    root = ElementTree.fromstring(page_svg(phase_times_chart([result]), "c", False))
    lengths, starts, stops = {}, [], []
    for bar in root.iter("path"):
        if "data-group" in bar.attrib:
            ends = [float(x) for x in re.findall(r"[ML] ([\d.]+)", bar.attrib["d"])]
            kind = "".join(bar.itertext()).split("\n")[3].split(":")[0]
            lengths[kind] = max(ends) - min(ends)
            starts.append(min(ends))
            stops.append(max(ends))
    assert starts[1:] == stops[:-1], "each begins at the end of the one before"
    whole = sum(lengths.values())
    shares = {kind: length / whole for kind, length in lengths.items()}
    assert shares == pytest.approx({"starting": 0.5, "training": 0.4, "evaluation": 0.1}, abs=0.002)
