"""Charts of a comparison: values by number of accelerators, accuracy by samples, and phase times."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from podium.comparison.page.charts import (
    CURVE_POSITIONS,
    OWN_SERIES,
    PHASES,
    PhaseTimes,
    best_rates_chart,
    curves_chart,
    fastest_chart,
    metric_curves,
    phase_times,
    phase_times_chart,
    throughput_chart,
    time_chart,
)
from podium.comparison.page.families import MAX_FAMILIES, Families, group_by_family
from podium.comparison.page.labels import tooltip
from podium.comparison.result import Result
from podium.html.plotly import Chart
from podium.mllog.run import Run
from tests.podium.comparison.conftest import evaluations_at, make_result, make_run

FACTORS = (*(1.0 for _ in range(8)), 1.1, 0.9)


def sized(accelerators: int, seconds: float, **changes: object) -> Result:
    fields = {"accelerators": accelerators, "system": f"{accelerators}-{seconds:.0f}", **changes}
    return make_result([make_run(seconds * factor) for factor in FACTORS], **fields)


def numbered(results: tuple[Result, ...]) -> dict[int, int]:
    return {id(result): number for number, result in enumerate(results)}


def by_size(draw: Callable[[Families, dict[int, int]], Chart], *results: Result) -> tuple[Chart, dict[str, Any]]:
    """Return a chart of results by size, and the position of the point of each system."""
    chart = draw(group_by_family(results), numbered(results))
    found = {}
    for trace in chart.traces:
        for x, y, record in zip(trace["x"], trace["y"], trace["records"], strict=True):
            found[results[record].system] = (x, y)
    return chart, found


def test_points_are_at_the_results_true_values() -> None:
    results = [sized(8, 1000), sized(8, 900, kind=None, accelerator="other"), sized(64, 250), sized(1024, 10)]
    chart, found = by_size(time_chart, *results)
    assert found == {one.system: (one.accelerators, one.ranking_minutes()) for one in results}
    assert chart.x["type"] == chart.y["type"] == "log"
    assert "1024-10" in chart.summary


def test_throughput_is_per_accelerator_or_per_node() -> None:
    cpus = sized(0, 1000, system="cpus", accelerator=None, kind=None, nodes=8)
    _, found = by_size(throughput_chart, sized(8, 1000, system="few"), sized(16, 500, system="many"), cpus)
    assert found["few"][1] == pytest.approx(found["many"][1]) == pytest.approx(found["cpus"][1])
    assert found["cpus"][0] == 8


def test_results_without_samples_are_not_in_the_chart_of_throughput() -> None:
    unknown = make_result([make_run(1000 * f, None) for f in FACTORS], system="unknown")
    assert set(by_size(throughput_chart, unknown, sized(8, 900))[1]) == {"8-900"}


def test_lines_connect_published_closed_results_of_one_family() -> None:
    many = [sized(8 * n, 100, kind=None, accelerator=f"kind {n:02d}") for n in range(1, MAX_FAMILIES + 4)]
    results = [sized(8, 100), sized(16, 50, division="open"), sized(16, 40, round=None), *many]
    chart, _ = by_size(time_chart, *results)
    connected = [trace for trace in chart.traces if trace.get("frontier")]
    assert len(connected) == MAX_FAMILIES - 1, "different kinds of accelerators are no family"
    for trace in connected:
        drawn = [results[record] for record in trace["records"]]
        assert all(one.division == "closed" and not one.own for one in drawn)
        assert len({one.accelerator for one in drawn}) == 1


def test_own_and_open_results_have_their_own_markers() -> None:
    free, mine = sized(8, 100, division="open", system="free"), sized(16, 50, round=None, system="mine")
    markers = {trace["series"]: trace["marker"]["symbol"] for trace in by_size(time_chart, free, mine)[0].traces}
    assert markers == {"NVIDIA A100 SXM, 80 GB": "circle-open", OWN_SERIES: "star"}


def test_no_two_families_have_the_same_colour() -> None:
    many = [sized(8, 100 + n, kind=None, accelerator=f"kind {n:02d}") for n in range(MAX_FAMILIES + 4)]
    chart, _ = by_size(time_chart, *many)
    colours = [trace["marker"]["color"] for trace in chart.traces]
    assert len(set(colours)) == len(colours) == MAX_FAMILIES


def test_bars_of_rates_are_ordered_and_grouped_by_family() -> None:
    results = (
        sized(8, 1000, system="half"),
        sized(8, 500, system="whole", accelerator="X", kind=None),
        sized(8, 2000, system="slow"),
        sized(8, 4000, system="mine", round=None),
    )
    chart = best_rates_chart(group_by_family(results), numbered(results))
    assert [results[record].system for record in chart.records] == ["whole", "half", "slow", "mine"]
    assert list(chart.groups) == ["X", "NVIDIA A100 SXM, 80 GB", "NVIDIA A100 SXM, 80 GB", "ORG mine"]
    (trace,) = chart.traces
    assert trace["x"][0] == pytest.approx(2 * trace["x"][1])
    assert ["% of peak" in text for text in trace["text"]] == [False, True, True, True], "the peak of X is unknown"
    assert "X: " in chart.summary


def test_bars_of_the_fastest_are_ordered_by_the_official_score() -> None:
    results = (sized(8, 1200), sized(64, 600, scaling_factor=1.5), sized(8, 600, division="open"), make_result([]))
    chart = fastest_chart(group_by_family(results), numbered(results))
    assert list(chart.records) == [2, 1, 0] and chart.labels[1] == "v2.0 ORG\n64-600"
    (trace,) = chart.traces
    assert trace["x"] == pytest.approx([10, 15, 20])
    assert trace["text"][:2] == ["10.000 min · 8×NVIDIA A100 SXM, open division", "15.000 min · 64×NVIDIA A100 SXM"]


def test_tooltips_of_results() -> None:
    text = tooltip(sized(8, 60, scaling_factor=1.1, repeats="v1.1 ORG SYS"))
    assert text.split("\n") == [
        "ORG 8-60 (v2.0, closed)",
        "8×NVIDIA A100 SXM",
        "1.100 min (measured 1.000 min, scaled)",
        "5,000 samples/s per accelerator",
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
    ("seconds", "samples"), [(1e-9, 1e6), (1e14, 1e6), (100.0, 0.0), (100.0, -5.0), (100.0, 1e300)]
)
def test_implausible_values_are_not_drawn(seconds: float, samples: float) -> None:
    wrong = make_result([make_run(seconds, samples)] * 10, system="wrong")
    results = (sized(8, 1000), wrong)
    assert set(by_size(throughput_chart, *results)[1]) == {"8-1000"}
    assert ("wrong" in by_size(time_chart, *results)[1]) == (seconds == 100.0)


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


def test_curves_have_the_median_the_range_and_the_target() -> None:
    result = make_result([run((1e6, 0.3), (2e6, last)) for last in (0.72, 0.73, 0.76)])
    chart = curves_chart([result], {id(result): 5})
    area, line = chart.traces
    assert line["series"] == area["series"] == "ORG SYS (v2.0)" and line["record"] == area["record"] == 5
    assert len(line["x"]) == CURVE_POSITIONS and len(area["x"]) == 2 * CURVE_POSITIONS
    assert (line["x"][0], line["y"][0]) == (1e6, 0.3) and (line["x"][-1], line["y"][-1]) == (2e6, 0.73)
    assert line["customdata"][-1] == [0.72, 0.76]
    assert chart.shapes[0]["y0"] == 0.72 and "target, 0.72" in chart.caption
    assert line["mode"] == "lines" and "are drawn" not in chart.caption
    chart = curves_chart([result] * 9, {id(result): 5})
    assert "of which the first 8 that pass the filters are drawn." in chart.caption


@pytest.mark.parametrize("wrong", [(2e6, 700.0), (2e6, -3.0), (-5.0, 0.6), (1e300, 0.6)])
def test_implausible_evaluations_are_left_out(wrong: tuple[float, float]) -> None:
    known = metric_curves(make_result([run((1e6, 0.5), wrong, (3e6, 0.7))]))
    assert known is not None
    assert (known[0][0], known[0][-1]) == (1e6, 3e6)
    assert known[1].min() == 0.5 and known[1].max() == 0.7


def test_a_band_of_a_single_run_does_not_press_the_medians_together() -> None:
    runs = [run((1e6, 0.7 + n / 1000), (2e6, 0.73)) for n in range(9)]
    plain, outlier = make_result(runs), make_result([*runs, run((1e6, 0.1), (2e6, 0.73))])
    assert "range" not in curves_chart([plain], {id(plain): 0}).y
    chart = curves_chart([outlier], {id(outlier): 0})
    low, high = chart.y["range"]
    assert 0.6 < low < 0.7 and 0.73 < high < 0.8 and "cut off" in chart.caption


def test_phases_add_up_to_the_run() -> None:
    spent = PhaseTimes(100.0, 50.0, 10.0, 20.0, 1.0)
    assert dict(zip(PHASES, spent.parts, strict=True)) == {
        "starting": 10.0,
        "training": 69.0,
        "evaluation": 20.0,
        "after the target": 1.0,
        "not known separately": 0.0,
    }
    assert sum(spent.parts) == spent.seconds


@pytest.mark.parametrize(
    ("spent", "parts", "known"),
    [
        (PhaseTimes(100, None, None, None, None), (0, 0, 0, 0, 100), False),
        (PhaseTimes(100, None, None, None, 0), (0, 0, 0, 0, 100), False),
        (PhaseTimes(100, None, 0, None, 0), (0, 0, 0, 0, 100), False),
        (PhaseTimes(100, None, 10, None, 2), (10, 0, 0, 2, 88), True),
        (PhaseTimes(100, None, None, 95, 1), (0, 0, 95, 1, 4), True),
        (PhaseTimes(100, None, 60, 50, 0), (60, 0, 50, 0, 0), True),
    ],
)
def test_what_is_not_known_is_no_phase(spent: PhaseTimes, parts: tuple[float, ...], known: bool) -> None:
    assert spent.parts == parts and spent.has_parts == known
    assert (spent.training is None) == (spent.evaluation is None or spent.starting is None)


def test_a_negative_time_of_starting_is_unknown() -> None:
    early = evaluations_at((250 * n - (60 if n == 1 else 0), 6e5 * n, 0.4 + 0.1 * n) for n in range(1, 6))
    early = tuple(one._replace(passes=one.accuracy > 0.8) for one in early)
    spent = phase_times(make_result([make_run(1250.0, evaluations=early)]))
    assert spent is not None and spent.starting is None and spent.training is None


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


def test_a_run_with_a_wrong_clock_is_in_no_phase() -> None:
    runs = [make_run(1000.0, evaluating_seconds=100.0)] * 9
    spent = phase_times(make_result([*runs, make_run(1e6, evaluating_seconds=100.0)]))
    assert spent is not None and (spent.seconds, spent.evaluation) == (1000.0, 100.0)


def test_bars_of_phases_are_shares_of_what_is_known() -> None:
    late = evaluations_at((500 + 125 * n, 6e5 * n, accuracy) for n, accuracy in enumerate((0.4, 0.6, 0.7, 0.73), 1))
    result = make_result([make_run(1000.0, evaluating_seconds=100.0, evaluations=late)])
    unknown = make_result([make_run(1000.0, evaluations=())], system="unknown")
    chart = phase_times_chart([result, unknown], {id(result): 0, id(unknown): 1})
    assert list(chart.records) == [0], "a result of which nothing is known has no bar"
    shares = {trace["series"]: trace["x"][0] for trace in chart.traces}
    assert shares == pytest.approx({"starting": 50.0, "training": 40.0, "evaluation": 10.0}, abs=0.2)
