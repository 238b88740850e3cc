"""Comparison of two accelerators over all benchmarks that both ran."""

import json
import shlex
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from podium.cli.main import app
from podium.comparison.cost import Cost
from podium.comparison.result import Result
from podium.comparison.versus import Versus, as_json, compare_accelerators, describe_versus, print_versus
from podium.core.errors import UsageError
from podium.planning.accelerators import find_accelerator
from tests.podium.comparison.conftest import DESCRIPTION, make_result, make_run, write_system


def result(name: str, seconds: float, **changes: Any) -> Result:
    runs = [make_run(seconds, **{"benchmark": changes.get("benchmark", "bert")})] * 10
    return make_result(runs, accelerator=name, kind=find_accelerator(name), submitter=name, **changes)


OLD, NEW = "NVIDIA H100-SXM5-80GB", "NVIDIA B200-SXM-180GB"


def test_the_mean_is_geometric_over_benchmarks_of_those_over_sizes() -> None:
    results = [
        result(OLD, 800.0),
        result(NEW, 100.0),  # 8 times
        result(OLD, 400.0, accelerators=16),
        result(NEW, 200.0, accelerators=16),  # twice: bert's mean is 4
        result(OLD, 900.0, benchmark="llama31_8b", round="v5.1"),
        result(NEW, 100.0, benchmark="llama31_8b", round="v5.1"),  # 9 times
        result(OLD, 900.0, benchmark="flux1"),  # of one side only
    ]
    versus = compare_accelerators("H100", "B200", results)
    assert as_json(versus)["time_ratio"] == pytest.approx(6.0)
    assert versus.benchmarks == ("bert", "llama31_8b") and len(versus.pairs) == 3 and not versus.omitted
    opposite = compare_accelerators("b200", "h100", results)
    assert as_json(opposite)["time_ratio"] == pytest.approx(1 / 6)
    assert describe_versus(versus)[0] == (
        "H100 takes 6.000 times as long as B200 (2.000 to 9.000; geometric mean over 2 benchmarks, 3 pairs of results)."
    )


def test_a_pair_has_equal_size_division_and_targets() -> None:
    results = [
        result(OLD, 800.0, accelerators=64),
        result(NEW, 100.0, accelerators=72),
        result(OLD, 800.0, benchmark="ssd", round="v1.1"),  # mAP 0.230
        result(NEW, 100.0, benchmark="ssd", round="v4.1"),  # mAP 0.340
        result(OLD, 800.0, benchmark="flux1", division="open", round="v5.1"),
        result(NEW, 100.0, benchmark="flux1", round="v5.1"),
    ]
    versus = compare_accelerators("H100", "B200", results)
    assert versus.pairs == () and set(versus.omitted) == {"bert", "ssd", "flux1"}
    assert describe_versus(versus)[0].endswith("have no pair of results to compare.")
    assert versus.omitted == {
        "bert": "no number of accelerators in common (64 and 72)",
        "ssd": "different targets in v1.1 and v4.1 (8 accelerators)",
        "flux1": "the results with as many accelerators are of different divisions",
    }


def test_the_newest_common_round_and_its_fastest_results_count() -> None:
    results = [
        result(OLD, 800.0, round="v5.0"),
        result(OLD, 700.0, round="v4.1"),
        result(OLD, 750.0, round="v5.0", system="FAST"),
        result(OLD, 10.0, round="v3.0"),
        result(NEW, 100.0, round="v5.0"),
        result(NEW, 50.0, round="v4.1"),
    ]
    (pair,) = compare_accelerators("H100", "B200", results).pairs
    assert (pair.a.system, pair.a.round, pair.time_ratio) == ("FAST", "v5.0", 7.5)
    versus = compare_accelerators("H100", "B200", [results[1], results[4]])
    assert any("Different rounds" in line for line in describe_versus(versus))


def test_energy_and_cost_are_compared_where_both_have_them() -> None:
    results = [
        result(OLD, 800.0, energy_joules=3e6),
        result(NEW, 100.0, energy_joules=1e6),
        result(OLD, 800.0, accelerators=16),
        result(NEW, 100.0, accelerators=16, energy_joules=1e6),
    ]
    costs = [Cost(1.0, 10.0, None), Cost(1.0, 20.0, None), None, Cost(1.0, 1.0, None)]
    found = as_json(compare_accelerators("H100", "B200", results, costs))
    assert (found["energy_ratio"], found["cost_ratio"]) == (pytest.approx(3.0), pytest.approx(0.5))
    assert [pair["energy_ratio"] for pair in found["pairs"]] == [3.0, None]
    assert as_json(compare_accelerators("H100", "B200", results))["cost_ratio"] is None


def test_a_name_is_a_word_before_it_is_a_part() -> None:
    results = [result("NVIDIA GB200", 90.0), result(NEW, 100.0), result(OLD, 800.0)]
    assert compare_accelerators("B200", "H100", results).a_families == ("NVIDIA B200 180 GB",)
    assert compare_accelerators("B20", "H100", results).a_families == ("NVIDIA B200 180 GB", "NVIDIA GB200")
    with pytest.raises(UsageError, match="no result with a time has this accelerator; there are NVIDIA B200"):
        compare_accelerators("MI355X", "H100", results)
    with pytest.raises(UsageError, match="both select NVIDIA H100 SXM"):
        compare_accelerators("H100", "SXM5", results)


def test_hostile_names_are_escaped() -> None:
    results = [result(OLD, 800.0, system="[red]\x1b[31m"), result(NEW, 100.0, benchmark="bert")]
    console = Console(width=100, record=True)
    print_versus(console, compare_accelerators("H100", "B200", results))
    text = console.export_text()
    assert "\x1b" not in text and "[red]" in text


@pytest.mark.parametrize("width", [60, 80, 100])
def test_no_figure_is_cut_at_any_width(width: int) -> None:
    long = {"benchmark": "llama2_70b_lora", "round": "v5.1", "system": "a_system_of_a_long_name", "energy_joules": 1e6}
    results = [result(OLD, 800.0, **long), result(NEW, 100.0, **{**long, "round": "v5.0"})]
    console = Console(width=width, record=True)
    print_versus(console, compare_accelerators("H100", "NVIDIA B200", results, [Cost(1.0, 10.0, None)] * 2))
    table = console.export_text().split("H100 takes")[0]
    assert all(text in table for text in ("A / B", " 13.333 ", " 1.667 ", " 8.000 ", " 1.000 ", "v5.1", "minutes"))


def test_no_result_without_a_time_or_size_counts() -> None:
    results = [result(OLD, 800.0), result(NEW, 100.0), result(NEW, 1.0, accelerators=None)]
    results.append(make_result([make_run(status="aborted")] * 10, accelerator=NEW, kind=find_accelerator(NEW)))
    versus = compare_accelerators("H100", "B200", results)
    assert isinstance(versus, Versus) and [pair.time_ratio for pair in versus.pairs] == [8.0]


def test_the_command(tmp_path: Any) -> None:
    root = tmp_path / "training_results_v2.0" / "ORG"
    for name, seconds in ((OLD, 1000.0), (NEW, 500.0)):
        write_system(root, name[7:11], seconds, DESCRIPTION | {"accelerator_model_name": name})
    arguments = ["compare", str(root), "--no-cache", "--versus", "B200", "H100"]
    found = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    assert found["benchmarks"] == ["bert"] and found["time_ratio"] == pytest.approx(0.5, rel=0.01)
    assert "One benchmark is no general comparison" in CliRunner().invoke(app, arguments).stdout
    prices = tmp_path / "prices.yaml"
    prices.write_text("{currency: USD, prices: [{accelerator: X, per: system-hour, price: 1}]}", encoding="utf-8")
    assert "no price for 2 results" in CliRunner().invoke(app, [*arguments, "--cost", str(prices)]).stdout
    refused = CliRunner().invoke(app, [*arguments, "--csv"])
    assert isinstance(refused.exception, UsageError) and "--versus prints a table" in str(refused.exception)


def test_memory_of_different_size_is_not_mixed() -> None:
    small, large = "NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB"
    results = [result(small, 300.0), result(large, 400.0), result(large, 450.0), result(NEW, 100.0)]
    found = compare_accelerators("A100", "B200", results)
    assert found.a_families == ("NVIDIA A100 SXM 80 GB",) and found.pairs[0].a is results[1]
    (note,) = [line for line in describe_versus(found) if "left out" in line]
    assert note == (
        "A100: NVIDIA A100 SXM 40 GB left out: memory of another size. To compare it: "
        "--versus 'NVIDIA A100 SXM 40 GB' B200"
    )
    a, b = shlex.split(note.partition("--versus ")[2])
    assert compare_accelerators(a, b, results).pairs[0].a is results[0]
    assert compare_accelerators("SXM4-40GB", "B200", results).pairs[0].a is results[0]
