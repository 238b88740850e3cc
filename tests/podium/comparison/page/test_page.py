"""The HTML page of a comparison."""

import re
from typing import Any

import pytest

from podium.comparison.cost import Cost, Costs
from podium.comparison.load import Comparison
from podium.comparison.page.charts import MAX_CURVES as DRAWN_CURVES
from podium.comparison.page.page import MAX_CURVES, comparison_page
from podium.comparison.result import Cosmetic, Result
from podium.mllog.benchmarks import benchmarks
from tests.podium.comparison.conftest import evaluations_at, make_result, make_run
from tests.podium.html.conftest import HOSTILE, Parsed, assert_only_page_content, charts_of, data_of

BERT = "BERT-large pretraining (bert)"
SECTIONS = [BERT, "Results", "Where the time goes", "Anomalies"]
CHARTS = [  # of results without known phases
    "Time to train by number of accelerators",
    "Fastest results",
    "Throughput of an accelerator by number of accelerators",
    "Highest throughput of each family",
    "Masked-LM accuracy by samples trained on",
]


def compare(*results: Result, notes: tuple[str, ...] = ()) -> Comparison:
    return Comparison(results, notes)


def page_of(comparison: Comparison, costs: Costs | None = None) -> str:
    return comparison_page(comparison, costs)


def records_of(chart: dict[str, Any]) -> set[int]:
    """Return the records that a chart has points, curves or bars of."""
    found = set(chart["records"])
    for trace in chart["traces"]:
        found.update(trace.get("records", []))
        found.update([trace["record"]] if "record" in trace else [])
    return found


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
    assert cells(html, "System") == ["OTHER", "SYS"]
    assert cells(html, "Round") == ["v2.1", "v2.0"]
    assert cells(html, "Score (min)") == [f"{measured:,.3f}", f"{1.5 * measured:,.3f}"]
    assert cells(html, "Measured (min)") == [f"{measured:,.3f}"] * 2
    assert cells(html, "Accel.") == ["0", "8"]
    assert cells(html, "Accelerator") == ["none", "NVIDIA A100 SXM, 80 GB"]
    assert cells(html, "MFU") == ["–", f"{100 * (make_result().utilization or 0):.1f} %"]
    assert cells(html, "Cause") == ["samples"] * 2
    assert cells(html, "Same runs as") == ["v2.0 ORG SYS", "–"]
    assert "<li>a note</li>" in html


def test_tables_of_scaling_and_cost() -> None:
    few, many = make_result(), make_result([make_run(500.0)] * 10, accelerators=32, system="MANY")
    unpriced = make_result(round="v2.1", system="OTHER")
    costs = Costs("EUR", (Cost(100.0, 12.5, 2_000.0), Cost(1e3, 77.25, None), None), ("no price for 1 result",))
    html = page_of(compare(few, many, unpriced), costs)
    assert headings(html) == [*SECTIONS[:2], "Scaling", "Cost", *SECTIONS[2:]]
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
    assert "Results" in headings(html) and headings(html)[-1] == "Anomalies"
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
    assert not charts_of(html) and data_of(html)["filters"] is None
    assert "None." in page_of(compare())


def test_own_results_of_another_size_are_in_no_chart() -> None:
    tiny = make_result(system="laptop", round=None, full_size=False, submitter="Me")
    html = page_of(compare(make_result(), tiny))
    assert all(records_of(chart) == {0} for chart in charts_of(html).values())
    assert "Other sizes of BERT" in html and "Your laptop" in html
    html = page_of(compare(tiny))
    assert not charts_of(html) and headings(html) == ["Your own results", "Results", "Anomalies"]


def test_own_results_are_marked_and_in_every_chart() -> None:
    mine = make_result(system="mine", round=None)
    html = page_of(compare(make_result(), mine))
    rows = [one.get("class") for one in Parsed(html).all("tr")]
    assert rows[:3] == [None, "marked", None]
    charts = charts_of(html)
    assert list(charts) == CHARTS
    assert all(records_of(chart) == {0, 1} for chart in charts.values())


def test_results_can_be_filtered_by_each_property() -> None:
    hgx = make_result(accelerators=16, round="v2.1", division="open", submitter="OTHER", accelerator="X", kind=None)
    filters = data_of(page_of(compare(make_result(), hgx, make_result(round=None))))["filters"]
    facets = {one["name"]: [one["values"][place] for place in one["of"]] for one in filters["facets"]}
    assert facets == {
        "Benchmark": ["bert"] * 3,
        "Accelerator": ["NVIDIA A100 SXM, 80 GB", "X", "NVIDIA A100 SXM, 80 GB"],
        "Number of accelerators": ["8", "16", "8"],
        "Round": ["v2.0", "v2.1", "your own"],
        "Division": ["closed", "open", "closed"],
    }
    assert filters["names"] == ["ORG SYS", "OTHER SYS", "ORG SYS"]
    assert [one is None for one in filters["ranking"]] == [False, True, False], "the open division has other models"
    assert "8×NVIDIA A100 SXM" in filters["tooltips"][0]


def test_rows_of_every_table_have_their_record() -> None:
    cosmetic = (Cosmetic("ends", "10 lines have other ends"),)
    anomalous = make_result(system="OTHER", accelerators=16, anomalies=("is odd", "is very odd"), cosmetic=cosmetic)
    html = page_of(compare(make_result(), anomalous))
    rows = [
        [one.get("data-r") for one in Parsed(part).all("tr")][1:]
        for part in re.findall(r"<table.*?</table>", html, re.S)
    ]
    assert rows == [["1", "0"], ["0", "1"], ["0", "1"], ["1", "1"], ["1"]]
    titles = Parsed(html).texts_in("h3")[-2:]
    assert titles == ["Anomalies that may affect a figure", "Cosmetic anomalies, which affect no figure"]


def test_results_are_in_the_order_of_their_score() -> None:
    def timed(seconds: float, system: str) -> Result:
        return make_result([make_run(seconds)] * 10, system=system)

    html = page_of(compare(timed(900, "slow"), make_result([], system="timeless"), timed(300, "fast")))
    assert cells(html, "System") == ["fast", "slow", "timeless"]


def test_results_without_size_or_time_are_counted() -> None:
    html = page_of(compare(make_result(), make_result(accelerators=None), make_result([])))
    assert "1 result(s) have an unknown number of accelerators" in html
    assert "1 result(s) have no run that succeeded" in html


def test_the_number_of_curves_is_limited() -> None:
    many = [make_result(accelerator=f"accelerator {n}", kind=None, system=f"system-{n:02d}") for n in range(30)]
    chart = charts_of(page_of(compare(*many)))["Masked-LM accuracy by samples trained on"]
    assert len(records_of(chart)) == MAX_CURVES and chart["most"] == DRAWN_CURVES
    colours = {trace["marker"]["color"] for trace in chart["traces"] if "marker" in trace}
    assert len(colours) == MAX_CURVES


def of_benchmark(name: str, metric: float, **changes: object) -> Result:
    evaluations = evaluations_at([(250, 6e5, 2 * metric), (500, 1.2e6, 1.01 * metric), (1000, 2.4e6, metric)])
    evaluations = tuple(one._replace(passes=one.accuracy == metric) for one in evaluations)
    runs = [make_run(1000.0 + n, benchmark=name, evaluations=evaluations, tensors=0) for n in range(10)]
    return make_result(runs, benchmark=name, **changes)


def test_a_page_of_one_other_benchmark_has_its_metric_and_name() -> None:
    html = page_of(compare(of_benchmark("llama31_8b", 3.3), of_benchmark("llama31_8b", 3.2, accelerators=16)))
    assert headings(html) == ["Llama 3.1 8B pretraining (llama31_8b)", "Results", "Scaling", *SECTIONS[2:]]
    assert "<h1>MLPerf Training results: Llama 3.1 8B pretraining</h1>" in html
    assert "Log perplexity by samples trained on" in html
    assert "target, 3.3; lower is better" in html and "Sample: sequence of 8,192 tokens." in html
    assert "log perplexity ≤ 3.3" in html and "BERT-large</h3>" not in html and "masked-LM" not in html
    assert cells(html, "Benchmark") == ["llama31_8b"] * 2


def test_a_page_of_several_benchmarks_has_a_section_for_each() -> None:
    results = [of_benchmark("llama31_8b", 3.3), of_benchmark("llama31_8b", 3.2, system="B"), make_result()]
    unknown = of_benchmark("chess_2030", 1500.0, system="C")
    html = page_of(compare(*results, unknown))
    sections = ["chess_2030", "Llama 3.1 8B pretraining (llama31_8b)", "BERT-large pretraining (bert)"]
    found = headings(html)
    assert set(found[:3]) == set(sections) and found[3:] == SECTIONS[1:]
    assert cells(html, "Benchmark") == ["bert", "chess_2030", "llama31_8b", "llama31_8b"]
    assert cells(html, "Score (min)")[1] == "–", "the rules of chess_2030 are not known"
    drawn = [records_of(chart) for chart in data_of(html)["charts"].values()]
    assert all(one <= {0, 1} or one == {2} or one == {3} for one in drawn), "a chart is of one benchmark"
    benchmark = data_of(html)["filters"]["facets"][0]
    assert benchmark["values"][benchmark["initial"]] == "llama31_8b", "the one with the most results is shown first"


def test_the_page_of_many_results_stays_small() -> None:
    """The rounds from 3.0 to 5.1 have some 1,000 results of 16 benchmarks."""
    names = [name for name, one in benchmarks().items() if one.runs == 10][:8]
    results = [
        of_benchmark(name, 0.9, system=f"system-{n}", accelerators=2 ** (n % 10), round=f"v{3 + n % 3}.0")
        for name in names
        for n in range(6)
    ]
    empty = len(page_of(compare(results[0])))
    assert len(page_of(compare(*results))) - empty < 5_500 * len(results)


def test_columns_without_values_are_left_out() -> None:
    plain = page_of(compare(make_result()))
    for column in ("RCP", "Scaling factor", "Energy (MJ)"):
        assert f">{column}</th>" not in plain
    html = page_of(
        compare(make_result(rcp="Pass", scaling_factor=1.0333, energy_joules=1.25e8), make_result(system="OTHER"))
    )
    assert cells(html, "RCP") == ["–", "Pass"] and cells(html, "Scaling factor") == ["–", "1.0333"]
    assert cells(html, "Energy (MJ)") == ["–", "125.0"]


def test_hostile_names_are_escaped() -> None:
    def named(number: int, name: str) -> list[Result]:
        fields = {"submitter": name, "system": name, "round": name, "accelerator": name, "division": name}
        hostile = make_result(**fields, kind=None, accelerators=2 + number, repeats=name, anomalies=(f"{name} is odd",))
        return [hostile, make_result(round=None, system=name, submitter=name)]

    def parsed(names: tuple[str, ...]) -> Parsed:
        return Parsed(page_of(compare(*(one for n, name in enumerate(names) for one in named(n, name)), notes=names)))

    found, expected = parsed(HOSTILE), parsed(tuple(f"name {number}" for number in range(len(HOSTILE))))
    assert_only_page_content(found)
    for tag in ("table", "tr", "td", "th", "script", "style", "figure", "title", "section", "li", "p", "h2", "h3"):
        assert len(found.all(tag)) == len(expected.all(tag)), tag


def test_hostile_names_of_benchmarks_are_escaped() -> None:
    names = (*HOSTILE[:4], HOSTILE[-3])
    html = page_of(compare(*(make_result(benchmark=name) for name in names)))
    assert_only_page_content(Parsed(html))
    assert len(headings(html)) == len(names) + 3
