"""Filters, scaling over a submitter's sizes, sentences on local results, and rows as JSON and CSV."""

import csv
import io
import json
import re
from collections.abc import Sequence

import pytest

from podium.comparison.load import Comparison
from podium.comparison.ranking import find_key
from podium.comparison.result import Result
from podium.comparison.table import (
    COLUMNS,
    as_csv,
    describe_own_results,
    describe_selection,
    filter_results,
    format_rate,
    print_comparison,
    rows,
    scaling_families,
    select_accelerators,
)
from podium.core.console import Console
from podium.core.errors import UsageError
from podium.planning.accelerators import find_accelerator
from tests.podium.comparison.conftest import make_result, make_run

RESULTS = [
    make_result(),
    make_result(round="v2.1", accelerator="Habana Gaudi2", kind=None),
    make_result(round=None, division="open", accelerator=None, kind=None),
]
COMPARISON = Comparison(tuple(RESULTS), ("a note",))


@pytest.mark.parametrize(
    ("rounds", "accelerators", "divisions", "numbers"),
    [
        ([], [], [], [0, 1, 2]),
        (["2.1"], [], [], [1]),
        (["v2.0", "own"], [], [], [0, 2]),
        ([], ["a100"], [], [0]),
        ([], ["SXM4"], [], [0]),
        ([], ["gaudi", "A100"], [], [0, 1]),
        ([], [], ["open"], [2]),
        ([], [], ["open", "closed"], [0, 1, 2]),
        (["2.1"], ["A100"], [], []),
    ],
)
def test_filters_select_results_by_round_accelerator_and_division(
    rounds: list[str], accelerators: list[str], divisions: list[str], numbers: list[int]
) -> None:
    selected = filter_results(COMPARISON, rounds, accelerators, divisions)
    assert selected.results == tuple(RESULTS[number] for number in numbers)
    assert selected.others == tuple(RESULTS[number] for number in range(3) if number not in numbers)
    assert selected.notes == ("a note",)


def test_filters_that_match_no_result_are_errors() -> None:
    with pytest.raises(UsageError, match=r"--round v3\.0: no result is of this round; there are own, v2\.0, v2\.1"):
        filter_results(COMPARISON, ["3.0"], [], [])
    with pytest.raises(
        UsageError, match="--accelerator H100: no result has this accelerator; there are Habana Gaudi2, NVIDIA A"
    ):
        filter_results(COMPARISON, [], ["H100"], [])
    with pytest.raises(UsageError, match=r"--division: found .Closed., allowed is closed or open"):
        filter_results(COMPARISON, [], [], ["Closed"])


def sized(accelerators: int | None, seconds: float, samples: float = 2_400_000.0, **changes: object) -> Result:
    return make_result([make_run(seconds, samples)] * 10, accelerators=accelerators, **changes)


def test_scaling_is_relative_to_the_smallest_size() -> None:
    """Eight times the accelerators, seven times the throughput, 10% more samples."""
    (family,) = scaling_families([sized(64, 1000.0 / 7 * 1.1, 2_640_000.0), sized(8, 1000.0)])
    assert [size.result.accelerators for size in family] == [8, 64]
    assert [size.throughput for size in family] == pytest.approx([1, 7 / 8])
    assert [size.time for size in family] == pytest.approx([1, 7 / 8 / 1.1])


def test_the_best_result_of_each_size_is_used() -> None:
    (family,) = scaling_families([sized(8, 1200.0), sized(8, 1000.0), sized(16, 500.0)])
    assert [size.result.minutes for size in family] == pytest.approx([1000 / 60, 500 / 60])


@pytest.mark.parametrize(
    "changes",
    [
        {"round": "v2.1"},
        {"submitter": "X"},
        {"division": "open"},
        {"kind": None},
        {"full_size": False},
        {"accelerator": "NVIDIA A100-SXM4-40GB"},
    ],
)
def test_results_of_different_families_are_not_compared(changes: dict[str, object]) -> None:
    assert scaling_families([sized(8, 1000.0), sized(16, 500.0, **changes)]) == []


def test_results_without_size_or_rate_have_no_scaling() -> None:
    failed = make_result([make_run(status="aborted")] * 10, accelerators=32)
    assert (
        scaling_families(
            [sized(8, 1000.0), sized(None, 500.0), sized(0, 500.0), failed, make_result([], accelerators=4)]
        )
        == []
    )


def timed(minutes: float, runs: int = 10, **changes: object) -> Result:
    return make_result([make_run(60 * minutes, 2_400_000.0, evaluating_seconds=3.6 * minutes)] * runs, **changes)


def sentence(*published: Result, **changes: object) -> str:
    (text,) = describe_own_results([*published, timed(20.0, round=None, system="mine", **changes)])
    return text


def test_own_results_are_compared_with_the_best_of_equal_size() -> None:
    text = sentence(timed(25.0), timed(18.5, system="BEST"), timed(1.0, accelerators=64), timed(2.0, kind=None))
    assert text == (
        "your mine (8×NVIDIA A100 SXM) is at 1.08× the best published time (v2.0 ORG BEST, 18.50 min): 20.00 min; "
        "6% of it is evaluation"
    )


def test_scaled_scores_are_compared() -> None:
    assert "1.10×" in sentence(timed(20.0), scaling_factor=1.1)
    assert "(22.00 min as the rules scale it)" in sentence(timed(20.0), scaling_factor=1.1)
    text = sentence(timed(20.0, scaling_factor=1.1), timed(21.0, accelerators=16))
    assert "0.91×" in text and "(v2.0 ORG SYS, 22.00 min)" in text


def test_own_results_of_fewer_than_ten_runs_are_compared_by_their_mean() -> None:
    (text,) = describe_own_results([timed(10.0), timed(20.0, 3, round=None)])
    assert "2.00×" in text and "the mean of 3 run(s) and no score yet" in text


def test_results_of_the_open_division_are_marked() -> None:
    assert "18.00 min, open)" in sentence(timed(18.0, division="open"))
    assert "1.00× the best published time (v2.0 ORG SYS, 20.00 min)" in sentence(
        timed(5.0, division="open"), timed(20.0)
    )


def test_equal_size_is_preferred_to_equal_division() -> None:
    text = sentence(timed(10.0), timed(1.0, division="open", accelerators=1024), division="open")
    assert "2.00× the best published time (v2.0 ORG SYS, 10.00 min)" in text


def test_own_results_are_compared_with_hidden_results() -> None:
    own = timed(20.0, round=None)
    assert "2.00× the best" in describe_own_results([own], [timed(10.0), timed(1.0, round=None)])[0]


@pytest.mark.parametrize(
    ("rate", "expected"),
    [(0.0, "0"), (0.0123, "0.0123"), (0.65, "0.650"), (1.1, "1.10"), (10, "10.0"), (250, "250"), (12345.6, "12,346")],
)
def test_rates_have_three_significant_digits(rate: float, expected: str) -> None:
    assert format_rate(rate) == expected


def test_own_results_are_compared_with_the_nearest_size() -> None:
    text = sentence(timed(2.0, accelerators=64, system="FAR"), timed(10.0, accelerators=16, system="NEAR"))
    assert (
        "trains 250 samples/s per accelerator, 1.00× as many as the nearest published size, 16 (v2.0 ORG NEAR" in text
    )


def test_own_results_that_cannot_be_compared_have_a_reason() -> None:
    assert "did not train BERT-large" in sentence(timed(10.0), full_size=False)
    assert "none of the results is of this accelerator" in sentence(timed(10.0, kind=None))
    assert "none of the results is of this accelerator" in sentence()
    assert "their sizes are not known" in sentence(timed(10.0), accelerators=None)
    (text,) = describe_own_results([timed(10.0), make_result([make_run(status="aborted")], round=None)])
    assert "has no run that reached the target" in text


def test_published_results_are_not_described() -> None:
    assert describe_own_results([timed(10.0)]) == []


DOCUMENTED_KEYS = {
    "round",
    "submitter",
    "system",
    "division",
    "score_minutes",
    "time_to_train",
    "rcp_scaling_factor",
    "runs_seconds",
    "GBS",
    "accelerators_count",
    "accelerator_model_name",
    "number_of_nodes",
    "benchmark",
    "samples_to_converge",
    "RCP",
    "Energy",
    "samples_to_target",
    "samples_per_second",
}


def test_rows_have_the_documented_keys() -> None:
    (row,) = rows([make_result(scaling_factor=1.5)])
    assert set(row) >= DOCUMENTED_KEYS
    assert row["time_to_train"] == 1.5 * row["score_minutes"] and row["runs_seconds"][1] == 1101.0
    assert (row["GBS"], row["accelerators_count"], row["accelerator_model_name"]) == (448, 8, "NVIDIA A100-SXM4-80GB")
    assert row["samples_to_target"] == 2_520_000 and row["runs_samples_to_target"][:2] == [2_400_000, 2_640_000]
    assert row["samples_per_second_per_accelerator"] == row["samples_per_second"] / 8
    assert json.loads(json.dumps(row, allow_nan=False)) == row


def test_unknown_values_are_null() -> None:
    runs = [make_run(stop_ms=None, samples=None, global_batch_size=None)]
    (row,) = rows([make_result(runs, nodes=None, accelerators=None, accelerator=None, kind=None, division=None)])
    known = {key: value for key, value in row.items() if value is not None}
    assert row["runs_seconds"] == [None] and row["runs_converged"] == [False]
    lists = {key for key in row if key.startswith("runs_")} | {"anomalies", "cosmetic_anomalies", "other_targets"}
    assert set(known) <= {"benchmark", "round", "submitter", "system", "source", "full_size"} | lists


def test_rows_of_a_family_have_scaling() -> None:
    few, many = make_result(), make_result([make_run(500.0)] * 10, accelerators=32)
    first, second, other = rows([few, many, make_result(round="v2.1")])
    assert first["scaling_efficiency"] == 1.0 == first["scaling_efficiency_time"]
    assert 0 < second["scaling_efficiency"] < 1 and other["scaling_efficiency"] is None


def test_csv_can_be_parsed() -> None:
    result = make_result(submitter='a "b", c\nd', anomalies=("one", "two"))
    (read,) = csv.DictReader(io.StringIO(as_csv(rows([result]))))
    assert read["submitter"] == 'a "b", c d' and read["anomalies"] == "one; two"
    assert [float(text) for text in read["runs_seconds"].split()] == [run.seconds for run in result.runs]
    assert read["mfu"] != "" and read["repeats"] == "" and as_csv([]) == ""


def test_csv_cells_are_never_formulas() -> None:
    for text in ("=1+1", "+1", "-1", "@x", "\t=1"):
        (read,) = csv.DictReader(io.StringIO(as_csv(rows([make_result(submitter=text)]))))
        assert read["submitter"] == f"'{text}"
    (read,) = csv.DictReader(io.StringIO(as_csv(rows([make_result([make_run(1.0)], anomalies=("=x",))]))))
    assert read["anomalies"] == "'=x"


def printed(results: Sequence[Result], width: int = 80, per: str = "accelerator", sorted_by: str | None = None) -> str:
    """The tables of these results in a terminal of this width."""
    console = Console(width=width, record=True, file=io.StringIO())
    print_comparison(console, Comparison(tuple(results), ()), per, sorted_by=sorted_by)
    return console.export_text()


def test_columns_without_room_are_named_and_that_of_the_order_has_room() -> None:
    results = [make_result()]
    wide, narrow = printed(results, 200), printed(results, 50)
    assert "Left out" not in wide and "s, t spread mostly" in wide and "MFU" in wide
    assert "Left out at this width: spread, samples, batch" in narrow and "s, t spread mostly" not in narrow
    by_use = printed(results, 50, sorted_by="mfu")
    heading, _, left_out = by_use.partition("Left out at this width:")
    assert "MFU" in heading and "MFU" not in left_out and "spread" in left_out
    rate = printed(results, 50, sorted_by="samples_per_second_per_accelerator")
    assert "samples/s" in rate.partition("Left out")[0]


@pytest.mark.parametrize("width", [60, 80, 100])
def test_no_table_cuts_a_number(width: int) -> None:
    names = {"submitter": "A-submitter-with-a-long-name", "system": "a_system_with_a_name_that_is_far_too_long"}
    runs = {size: [make_run(9e6 / size + n, global_batch_size=262_144.0) for n in range(10)] for size in (8, 72, 1_024)}
    results = [make_result(of_size, accelerators=size, **names) for size, of_size in runs.items()]
    shown = printed(results, width)
    assert not re.search(r"\d…|(accel|num|bat|min|sam|ti)\w*…", shown)
    assert all(text in shown for text in ("1,024", "262,144", "100%", "measured", "number"))


def test_the_official_score_is_above_the_measured_one() -> None:
    shown = printed([make_result(scaling_factor=1.05)])
    score, measured = (re.search(pattern, shown) for pattern in (r"(\S+)\*\s", r"\((\d+\.\d+)\)"))
    assert score and measured and score.start() < measured.start() and float(score[1]) > float(measured[1])
    assert "(as measured)" in shown


def test_a_result_without_a_verdict_has_a_dash() -> None:
    shown = printed([make_result(rcp="Unknown state"), make_result(rcp="Pass", system="B")], 120)
    assert "Pass" in shown and "Unknown state" not in shown
    assert rows([make_result(rcp="Unknown state")])[0]["RCP"] == "Unknown state"


def on(accelerator: str) -> Result:
    return make_result(accelerator=accelerator, kind=find_accelerator(accelerator))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("B200", ["NVIDIA B200"]),
        ("GB200", ["NVIDIA GB200"]),
        ("GB", ["NVIDIA GB200"]),
        ("h200", ["NVIDIA H200 141GB"]),
        ("mi300", ["AMD Instinct MI300X"]),
        ("141", ["NVIDIA H200 141GB"]),
        ("200", ["NVIDIA B200", "NVIDIA GB200", "NVIDIA H200 141GB"]),
    ],
)
def test_a_word_of_the_model_selects_it_before_other_text(text: str, expected: list[str]) -> None:
    results = [on(name) for name in ("NVIDIA B200", "NVIDIA GB200", "NVIDIA H200 141GB", "AMD Instinct MI300X")]
    comparison = filter_results(Comparison(tuple(results), ()), [], [text], [])
    assert [one.accelerator for one in comparison.results] == expected
    several = [f"--accelerator {text} selects NVIDIA B200, NVIDIA GB200, NVIDIA H200"] if len(expected) > 1 else []
    assert describe_selection([text], results) == several


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("NVIDIA A100 SXM 40 GB", [0, 1]),
        ("A100 SXM 40 GB", [0, 1]),
        ("a100-40gb", [0, 1]),
        ("A100-SXM4-40GB", [1]),
        ("A100 SXM", [0, 1, 2]),
        ("NVIDIA A100 SXM 80 GB", [2]),
        ("A100 80GB", [2, 3]),
        ("40GB", [0, 1]),
        ("A100 24 GB", []),
    ],
)
def test_the_size_of_the_memory_selects(text: str, expected: list[int]) -> None:
    results = [on(f"NVIDIA A100-{name}GB") for name in ("SXM-40", "SXM4-40", "SXM-80", "PCIe-80")]
    assert select_accelerators(text, results) == [results[number] for number in expected]
    names = {one.variant or "" for one in results}
    assert all({one.variant for one in select_accelerators(name, results)} == {name} for name in names)


def test_results_are_selected_by_the_number_of_accelerators() -> None:
    comparison = Comparison(tuple(make_result(accelerators=size) for size in (8, 16, None, 1_024)), ())
    found = filter_results(comparison, [], [], [], sizes=[8, 1_024]).results
    assert [one.accelerators for one in found] == [8, 1_024]
    with pytest.raises(UsageError, match=r"--accelerators 7: no result has as many .* there are 8, 16, 1,024"):
        filter_results(comparison, [], [], [], sizes=[7])


@pytest.mark.parametrize("unit", ["accel.", "node"])
def test_every_heading_that_is_shown_sorts(unit: str) -> None:
    objects = rows([make_result()])
    headings = [column.heading.format(unit=unit).replace("\n", " ") for column in COLUMNS]
    found = [find_key(objects, heading) for heading in headings]
    per = {"accel.": "accelerator", "node": "node"}[unit]
    assert f"samples_per_second_per_{per}" in found and {"time_to_train", "Energy", "evaluation_share"} <= set(found)
