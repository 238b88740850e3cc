"""Charts over the number of accelerators."""

import re
from collections.abc import Sequence
from xml.etree import ElementTree

import pytest

from podium.comparison.page.charts import best_rates_chart, throughput_chart, ticks, time_chart
from podium.comparison.page.families import MOST, families_of
from podium.comparison.page.words import told
from podium.comparison.result import Result
from podium.page.chart import Chart, page_svg
from tests.podium.comparison.conftest import make_result, make_run

FACTORS = (*(1.0 for _ in range(8)), 1.1, 0.9)


def sized(accelerators: int, seconds: float, **changes: object) -> Result:
    fields = {"accelerators": accelerators, "system": f"{accelerators}-{seconds:.0f}", **changes}
    return make_result([make_run(seconds * factor) for factor in FACTORS], **fields)


def points(chart: Chart, narrow: bool = False) -> dict[str, tuple[float, float]]:
    """Where the point of each name is, x to the right and y upwards."""
    root = ElementTree.fromstring(page_svg(chart, "c", narrow))
    found = {}
    for element in root.iter("use"):
        if "data-group" in element.attrib:
            name = "".join(element.itertext()).split("\n")[0].split(" ")[1]
            found[name] = (float(element.attrib["x"]), -float(element.attrib["y"]))
    return found


@pytest.mark.parametrize("narrow", [False, True])
def test_every_result_is_where_its_numbers_are(narrow: bool) -> None:
    results = [sized(8, 1000), sized(16, 500), sized(64, 125), sized(64, 250), sized(1024, 10)]
    found = points(time_chart(families_of(results)), narrow)
    assert set(found) == {result.system for result in results}
    x, y = ({name: at[axis] for name, at in found.items()} for axis in (0, 1))
    assert x["8-1000"] < x["16-500"] < x["64-125"] == x["64-250"] < x["1024-10"]
    octave = x["16-500"] - x["8-1000"]
    assert x["64-125"] - x["16-500"] == pytest.approx(2 * octave, abs=0.1)
    halving = y["8-1000"] - y["16-500"]
    assert halving > 0 and y["16-500"] - y["64-125"] == pytest.approx(2 * halving, abs=0.1)


def test_throughput_is_for_an_accelerator_or_for_a_node() -> None:
    cpus = sized(0, 1000, system="cpus", accelerator=None, kind=None, nodes=8)
    results = [sized(8, 1000, system="few"), sized(16, 500, system="many"), cpus]
    found = points(throughput_chart(families_of(results)))
    assert found["few"][1] == pytest.approx(found["many"][1], abs=0.05) == pytest.approx(found["cpus"][1], abs=0.05)
    assert found["cpus"][0] != found["few"][0], "families of one size stand side by side"


def test_results_without_samples_are_not_in_the_chart_of_throughput() -> None:
    silent = make_result([make_run(1000 * f, None) for f in FACTORS], system="silent")
    assert set(points(throughput_chart(families_of([silent, sized(8, 900)])))) == {"8-900"}


def test_a_line_joins_only_what_can_be_joined() -> None:
    def lines(results: Sequence[Result]) -> int:
        svg = page_svg(time_chart(families_of(results)), "c", False)
        return len(re.findall(r'<path d="[^"]*" clip-path="[^"]*" style="fill: none; stroke: var\(--series-0\)', svg))

    assert lines([sized(8, 100), sized(16, 50)]) == 1
    assert lines([sized(8, 100), sized(8, 50)]) == 0
    assert lines([sized(8, 100), sized(16, 50, division="open")]) == 0
    assert lines([sized(8, 100), sized(16, 50, round=None)]) == 0
    many = [sized(8 * n, 100, kind=None, accelerator=f"kind {n:02d}") for n in range(1, MOST + 4)]
    assert lines(many) == 0, "different kinds of accelerators are no family"


def test_own_and_open_results_stand_out() -> None:
    both = [sized(8, 100, division="open", system="free"), sized(16, 50, round=None, system="mine")]
    svg = page_svg(time_chart(families_of(both)), "c", False)
    assert "your own" in svg and "stroke: var(--ink)" in svg
    assert re.search(r"fill-opacity: 0; stroke: var\(--series-0\)|fill: none; stroke: var\(--series-0\)", svg)
    assert "your own" not in page_svg(time_chart(families_of(both[:1])), "c", False)


def test_one_result_is_a_chart() -> None:
    for result in (sized(1, 5), sized(8, 5, round=None), sized(0, 5, nodes=1)):
        families = families_of([result])
        for chart in (time_chart(families), throughput_chart(families), best_rates_chart([result])):
            for narrow in (False, True):
                assert "<title>" in page_svg(chart, "c", narrow)


def test_bars_are_ordered_and_as_long_as_the_rates() -> None:
    results = [sized(8, 1000, system="half"), sized(8, 500, system="whole", accelerator="X", kind=None)]
    root = ElementTree.fromstring(page_svg(best_rates_chart(results), "c", False))
    bars = [element for element in root.iter("path") if "data-group" in element.attrib]
    names = ["".join(bar.itertext()).split("\n")[0].split(" ")[1] for bar in bars]
    ends = [[float(x) for x in re.findall(r"[ML] ([\d.]+)", bar.attrib["d"])] for bar in bars]
    lengths = [max(end) - min(end) for end in ends]
    assert names == ["whole", "half"] and lengths[0] == pytest.approx(2 * lengths[1], rel=0.01)
    texts = [text for text in root.itertext() if "% of peak" in text]
    assert len(texts) == 1, "no share is told where the peak is not known"


def test_what_points_tell() -> None:
    words = told(sized(8, 60, scaling_factor=1.1, repeats="v1.1 ORG SYS"))
    assert words.split("\n") == [
        "ORG 8-60 (v2.0, closed)",
        "8 × NVIDIA A100 SXM",
        "1.100 min (measured 1.000 min, scaled)",
        "5,000.0 sequences/s per accelerator",
        f"{100 * 5000 * 497.5e9 / 312e12:.1f} % of the peak",
        "2,400,000 samples to the target",
        "batch size 448",
        "the same runs as v1.1 ORG SYS",
    ]
    bare = make_result([make_run(30, None)], round=None, accelerators=None, accelerator=None, kind=None)
    assert told(bare).split("\n")[:3] == [
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
def test_ticks(low: float, high: float, most: int, base: int, expected: list[float]) -> None:
    assert ticks(low, high, most, base) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("seconds", "samples"), [(1e-9, 1e6), (1e14, 1e6), (100.0, 0.0), (100.0, -5.0), (100.0, 1e300)]
)
def test_numbers_that_cannot_be_leave_the_others_their_room(seconds: float, samples: float) -> None:
    wrong = make_result([make_run(seconds, samples)] * 10, system="wrong")
    families = families_of([sized(8, 1000), wrong])
    assert "wrong" not in points(throughput_chart(families))
    assert ("wrong" in points(time_chart(families))) == (seconds == 100.0)
    assert "8-1000" in points(throughput_chart(families))
