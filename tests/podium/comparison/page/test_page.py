"""The HTML page of a comparison, and its SVG files."""

import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from podium.comparison.cost import Cost, Costs
from podium.comparison.load import Comparison
from podium.comparison.page.page import Limits, charts_by_name, comparison_page, write_svg_files
from podium.comparison.result import Result
from podium.mllog.benchmarks import benchmarks
from tests.podium.comparison.conftest import evaluations_at, make_result, make_run
from tests.podium.html.conftest import HOSTILE, Parsed, assert_only_page_content, sketch_charts

SECTIONS = ["Results", "Time to train", "Throughput", "Convergence", "Where the time goes", "Anomalies"]


def compare(*results: Result, notes: tuple[str, ...] = ()) -> Comparison:
    return Comparison(results, notes)


def page_of(comparison: Comparison, costs: Costs | None = None) -> str:
    """Return the page with sketches in place of charts, which are slow to draw."""
    with sketch_charts():
        return comparison_page(comparison, costs)


def headings(html: str) -> list[str]:
    return Parsed(html).texts_in("h2")


def cells(html: str, heading: str) -> list[str]:
    """Return the cells of the column with this heading in the first table."""
    table = html[html.index("<table") : html.index("</table>")]
    rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall(r"<tr[^>]*>(.*?)</tr>", table, re.S)]
    return [row[rows[0].index(heading)] for row in rows[1:]]


def test_every_result_is_in_the_table() -> None:
    html = page_of(
        compare(
            make_result(scaling_factor=1.5),
            make_result(
                system="OTHER", round="v2.1", repeats="v2.0 ORG SYS", accelerators=0, accelerator=None, kind=None
            ),
            notes=("a note",),
        )
    )
    assert headings(html) == SECTIONS
    measured = make_result().score_minutes or 0
    assert cells(html, "System") == ["SYS", "OTHER"]
    assert cells(html, "Round") == ["v2.0", "v2.1"]
    assert cells(html, "Score (min)") == [f"{1.5 * measured:,.3f}", f"{measured:,.3f}"]
    assert cells(html, "Measured (min)") == [f"{measured:,.3f}"] * 2
    assert cells(html, "Accel.") == ["8", "0"]
    assert cells(html, "Accelerator") == ["NVIDIA A100 SXM", "none"]
    assert cells(html, "MFU") == [f"{100 * (make_result().utilization or 0):.1f} %", "unknown"]
    assert cells(html, "Cause") == ["samples"] * 2
    assert cells(html, "Same runs as") == ["–", "v2.0 ORG SYS"]
    assert "<li>a note</li>" in html


def test_tables_of_scaling_and_cost() -> None:
    few, many = make_result(), make_result([make_run(500.0)] * 10, accelerators=32, system="MANY")
    unpriced = make_result(round="v2.1", system="OTHER")
    costs = Costs("EUR", (Cost(100.0, 12.5, 2_000.0), Cost(1e3, 77.25, None), None), ("no price for 1 result",))
    html = page_of(compare(few, many, unpriced), costs)
    assert headings(html) == [*SECTIONS[:4], "Scaling", "Cost", *SECTIONS[4:]]
    scaling = html[html.index(">Scaling</h2>") :]
    assert cells(scaling, "Accel.") == ["8", "32"]
    assert cells(scaling, "Samples/s per accel.")[0] == "100.0 %"
    priced = html[html.index(">Cost</h2>") :]
    assert cells(priced, "System") == ["SYS", "MANY"]
    assert cells(priced, "EUR to train") == ["12.50", "77.25"] and cells(priced, "Samples per EUR") == ["2,000", "–"]
    assert "No price for 1 result." in html
    assert "Cost" not in headings(page_of(compare(few)))


@pytest.mark.parametrize(
    "result",
    [
        make_result([]),
        make_result([make_run(status="aborted", samples=None)]),
        make_result([make_run()]),
        make_result([make_run(), make_run(5.0)]),
        make_result(accelerators=None, nodes=None, accelerator=None, kind=None, division=None, description={}),
        make_result(accelerators=0, nodes=None),
        make_result(accelerators=0, accelerator=None, kind=None),
        make_result(accelerator="Quantum Abacus 3000", kind=None, round="v9.9"),
        make_result([make_run(1000.0 + n, None) for n in range(10)]),
        make_result([make_run(1000.0) for n in range(10)]),
        make_result([make_run(evaluations=()) for _ in range(3)]),
        make_result([make_run(evaluations=evaluations_at([(1, 5.0, 0.5), (1, 5.0, 0.73)])) for _ in range(3)]),
        make_result([make_run(evaluations=evaluations_at([(-1, 5.0, -3.0), (1, 9.0, 700.0)])) for _ in range(3)]),
        make_result(round=None),
        make_result(round=None, full_size=False),
    ],
)
def test_results_with_missing_or_invalid_values_are_in_the_page(result: Result) -> None:
    html = page_of(compare(result))
    assert_only_page_content(Parsed(html))
    assert headings(html)[0] == "Results" and headings(html)[-1] == "Anomalies"
    assert cells(html, "System") == ["SYS"]


def test_values_of_any_size_are_drawn_and_pages_are_deterministic() -> None:
    def page() -> str:
        return comparison_page(compare(make_result([make_run(1e-3, 1.0), make_run(1e9, 1e12), make_run(1.0, 1e6)])))

    html = page()
    assert_only_page_content(Parsed(html))
    assert html == page()


def test_a_page_without_results() -> None:
    html = page_of(compare(notes=("nothing was found",)))
    assert headings(html) == ["Results", "Anomalies"]
    assert "There are no results." in html and "<li>nothing was found</li>" in html
    assert "<svg" not in html
    assert "None." in page_of(compare())


def test_own_results_of_another_size_are_in_no_chart() -> None:
    tiny = make_result(system="laptop", round=None, full_size=False, submitter="Me")
    html = page_of(compare(make_result(), tiny))
    assert all(
        "laptop" not in "".join(ElementTree.fromstring(svg).itertext())
        for svg in re.findall(r"<svg.*?</svg>", html, re.S)
    )
    assert "Other sizes of BERT" in html and "Your laptop" in html
    html = page_of(compare(tiny))
    assert "<svg" not in html and headings(html) == ["Results", "Anomalies"]


def test_own_results_are_marked_and_in_every_chart() -> None:
    mine = make_result(system="mine", round=None)
    html = page_of(compare(make_result(), mine))
    rows = [one.get("class") for one in Parsed(html).all("tr")]
    assert rows[:3] == [None, None, "marked"]
    charts = re.findall(r"<svg.*?</svg>", html, re.S)
    has_own = ["mine" in svg for svg in charts[::2]]  # the wide charts, which have the tooltips
    assert len(charts) == 12 and has_own.count(False) == 1, "all but the published best of each family"


def test_results_without_size_or_time_are_counted() -> None:
    html = page_of(compare(make_result(), make_result(accelerators=None), make_result([])))
    assert "1 result(s) have an unknown number of accelerators" in html
    assert "1 result(s) have no run that converged" in html


def test_the_number_of_curves_is_limited() -> None:
    many = [make_result(accelerator=f"accelerator {n}", kind=None, system=f"system-{n:02d}") for n in range(30)]
    svg = re.findall(r"<svg[^>]*Masked-LM accuracy by samples.*?</svg>", page_of(compare(*many)), re.S)
    assert len(svg) == 2
    assert len(set(re.findall(r"system-\d\d", svg[0]))) == Limits().curves


def of_benchmark(name: str, metric: float, **changes: object) -> Result:
    evaluations = evaluations_at([(250, 6e5, 2 * metric), (500, 1.2e6, 1.01 * metric), (1000, 2.4e6, metric)])
    evaluations = tuple(one._replace(passes=one.accuracy == metric) for one in evaluations)
    runs = [make_run(1000.0 + n, benchmark=name, evaluations=evaluations, tensors=0) for n in range(10)]
    return make_result(runs, benchmark=name, **changes)


def test_a_page_of_one_other_benchmark_has_its_metric_and_name() -> None:
    html = page_of(compare(of_benchmark("llama31_8b", 3.3), of_benchmark("llama31_8b", 3.2, accelerators=16)))
    assert headings(html) == [*SECTIONS[:4], "Scaling", *SECTIONS[4:]]
    assert "<h1>MLPerf Training results: Llama 3.1 8B pretraining</h1>" in html
    assert "Log perplexity by samples trained on" in html and "The last part, near the target" in html
    assert "target, 3.3; lower is better" in html and "Sample: sequence of 8,192 tokens." in html
    assert "log perplexity ≤ 3.3" in html and "BERT-large</h3>" not in html and "masked-LM" not in html
    assert cells(html, "Benchmark") == ["llama31_8b"] * 2


def test_a_page_of_several_benchmarks_has_a_section_for_each() -> None:
    results = [of_benchmark("llama31_8b", 3.3), of_benchmark("llama31_8b", 3.2, system="B"), make_result()]
    unknown = of_benchmark("chess_2030", 1500.0, system="C")
    html = page_of(compare(*results, unknown))
    sections = ["chess_2030", "Llama 3.1 8B pretraining (llama31_8b)", "BERT-large pretraining (bert)"]
    found = headings(html)
    assert found[0] == "Results" and set(found[1:4]) == set(sections) and found[4:] == SECTIONS[4:]
    assert cells(html, "Benchmark") == ["llama31_8b", "llama31_8b", "bert", "chess_2030"]
    assert cells(html, "Score (min)")[3] == "–", "the rules of chess_2030 are not known"
    of_llama = html[html.index("(llama31_8b)</h2>") :]
    of_llama = of_llama[: of_llama.index("</section>")]
    assert "SYS" in of_llama and "chess" not in of_llama and "bert" not in of_llama
    assert "llama31_8b: Time to train by number of accelerators" in of_llama
    assert list(charts_by_name(compare(*results)))[:2] == ["bert-time-to-train", "bert-throughput"]


def test_the_page_of_many_results_stays_small() -> None:
    """The rounds from 3.0 to 5.1 have some 1,000 results of 16 benchmarks."""
    names = [name for name, one in benchmarks().items() if one.runs == 10][:8]
    results = [
        of_benchmark(name, 0.9, system=f"system-{n}", accelerators=2 ** (n % 10), round=f"v{3 + n % 3}.0")
        for name in names
        for n in range(6)
    ]
    assert Limits.of_page(len(names)).curves < Limits().curves
    html = page_of(compare(*results))
    titles = html.count("<title>")
    assert len(html) < 4_500 * len(results) and titles < 10 * len(results)


def test_columns_without_values_are_left_out() -> None:
    plain = page_of(compare(make_result()))
    for column in ("RCP", "Scaling factor", "Energy (MJ)"):
        assert f">{column}</th>" not in plain
    html = page_of(
        compare(make_result(rcp="Pass", scaling_factor=1.0333, energy_joules=1.25e8), make_result(system="OTHER"))
    )
    assert cells(html, "RCP") == ["Pass", "–"] and cells(html, "Scaling factor") == ["1.0333", "–"]
    assert cells(html, "Energy (MJ)") == ["125.0", "–"]


def test_hostile_names_are_escaped() -> None:
    def named(number: int, name: str) -> list[Result]:
        fields = {"submitter": name, "system": name, "round": name, "accelerator": name, "division": name}
        hostile = make_result(**fields, kind=None, accelerators=2 + number, repeats=name, anomalies=(f"{name} is odd",))
        return [hostile, make_result(round=None, system=name, submitter=name)]

    def parsed(page: Callable[[Comparison], str], names: tuple[str, ...]) -> Parsed:
        return Parsed(page(compare(*(one for n, name in enumerate(names) for one in named(n, name)), notes=names)))

    found = parsed(comparison_page, HOSTILE)
    expected = parsed(page_of, tuple(f"name {number}" for number in range(len(HOSTILE))))
    assert_only_page_content(found)
    for tag in (
        "table",
        "tr",
        "td",
        "th",
        "script",
        "style",
        "svg",
        "figure",
        "title",
        "section",
        "li",
        "p",
        "h2",
        "h3",
    ):
        assert len(found.all(tag)) == len(expected.all(tag)), tag


def test_hostile_names_of_benchmarks_are_escaped() -> None:
    names = (*HOSTILE[:4], HOSTILE[-3])
    html = page_of(compare(*(make_result(benchmark=name) for name in names)))
    assert_only_page_content(Parsed(html))
    assert len(headings(html)) == len(names) + 3
    assert list(charts_by_name(compare(*(make_result(benchmark=name) for name in names)))) == []


def test_svg_files_are_the_charts_of_the_page(tmp_path: Path) -> None:
    comparison = compare(make_result(), make_result(round="v2.1", accelerators=16))
    paths = write_svg_files(comparison, tmp_path / "pictures")
    assert (
        [path.stem for path in paths]
        == list(charts_by_name(comparison))
        == [
            "time-to-train",
            "throughput",
            "throughput-of-families",
            "convergence",
            "convergence-near-target",
            "time-spent",
        ]
    )
    titles = "".join(Parsed(page_of(comparison)).texts_in("h3"))
    for path, (_, chart) in zip(paths, charts_by_name(comparison).items(), strict=True):
        root = ElementTree.fromstring(path.read_bytes())
        assert any(text.strip() == chart.title for text in root.itertext()) and chart.title in titles
    assert write_svg_files(compare(), tmp_path / "none") == []
