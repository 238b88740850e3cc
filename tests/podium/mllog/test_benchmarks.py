"""The table of benchmarks, judged by mlperf_logging's rules."""

import re
from datetime import date
from pathlib import Path
from typing import Any

import mlperf_logging
import pytest
from mlperf_logging import benchmark_meta

from benchmarks.bert import rules
from podium.mllog.benchmarks import Benchmark, benchmarks, find_benchmark, published_ms, round_at, round_of, rounds

CHECKER = Path(mlperf_logging.__file__).parent / "compliance_checker"
TABLE = list(benchmarks().values())
OFFICIAL_ROUNDS = benchmark_meta._ALL_ALLOWED_BENCHMARKS["training"]
CASES = [
    (one, round_name)
    for one in TABLE
    for round_name in one.rounds
    if (CHECKER / f"training_{round_name[1:]}.0" / f"closed_{one.name}.yaml").is_file()
]


@pytest.mark.parametrize("one", TABLE, ids=lambda one: one.name)
def test_numbers_of_runs_are_the_official_ones(one: Benchmark) -> None:
    assert one.runs == benchmark_meta.get_result_file_counts("training")[one.name]
    assert one.dropped == (4 if one.name == "unet3d" else 1)  # max_dropped_scores of the result summarizer
    assert one.rounds and set(one.rounds) <= set(rounds()) and one.progress_in(None) is not None


def test_every_official_benchmark_is_in_the_table() -> None:
    assert {one.name for one in TABLE} == set(benchmark_meta.get_result_file_counts("training"))
    for round_name, names in OFFICIAL_ROUNDS.items():
        for name in names:
            assert f"v{round_name}" in benchmarks()[name].rounds, name


@pytest.mark.parametrize(("one", "round_name"), CASES, ids=lambda value: getattr(value, "name", value))
def test_targets_are_those_of_the_compliance_checker(one: Benchmark, round_name: str) -> None:
    """Values on both sides of each target reach it exactly where the official rule is true."""
    text = (CHECKER / f"training_{round_name[1:]}.0" / f"closed_{one.name}.yaml").read_text(encoding="utf-8")
    found = re.search(r"ATLEAST_ONE_CHECK:\s*(\S.*)", text)
    if found is None:
        assert one.name == "stable_diffusion", "its rule is not in one expression"
        assert [str(target) for target in one.targets_in(round_name)] == ["FID ≤ 90", "CLIP ≥ 0.15"]
        return
    rule = found[1].strip().strip('"')
    target_accuracy = re.search(r"'target_accuracy': ([\d.]+)", text)
    for batch in (448, 16_384):
        state = {"global_batch_size": batch, "target_accuracy": float(target_accuracy[1]) if target_accuracy else 0}
        targets = one.targets_in(round_name, batch)
        assert targets
        for factor in (0.5, 0.999, 1.0, 1.001):
            values = {target.name: target.value * factor for target in targets}
            value: Any = values if len(targets) > 1 else next(iter(values.values()))
            official = eval(rule, {}, {"v": {"value": value}, "s": state})  # a rule of the installed package
            if one.name == "gpt3" and factor < 0.97:
                continue  # the official rule has a lower bound too, which is tested as more_than
            assert all(target.reached(values[target.name]) for target in targets) == bool(official), (rule, factor)


def test_bert_has_the_numbers_of_its_rules() -> None:
    bert = benchmarks()["bert"]
    assert (bert.runs, bert.dropped) == (rules.RUNS, rules.DROPPED)
    assert bert.targets_in(None)[0].value == rules.TARGET_ACCURACY
    assert bert.rounds[2:] == tuple(round_of(name) for name in rules.RULESETS)


def test_targets_depend_on_the_batch_size_where_the_rules_do() -> None:
    bert = benchmarks()["bert"]
    assert [bert.targets_in("v0.7", batch)[0].value for batch in (None, 8191, 8192)] == [0.712, 0.712, 0.706]
    assert bert.targets_in("v5.0", 8192)[0].value == 0.72


def test_names_of_early_rounds_and_unknown_ones() -> None:
    assert find_benchmark("mask") is benchmarks()["maskrcnn"]
    assert find_benchmark("llama_next") is None and find_benchmark(None) is None


def test_rounds_by_date() -> None:
    assert list(rounds())[:2] == ["v0.5", "v0.6"] and rounds()["v5.1"] == date(2025, 11, 12)
    first = published_ms("v5.0")
    assert first is not None
    assert [round_at(time) for time in (first - 1, first, None)] == ["v5.0", "v5.1", None]
    assert round_at(4e12) == "v6.1" and published_ms("v6.1") is None and round_of("5.1.0") == "v5.1"


@pytest.mark.parametrize(("value", "plausible"), [(0.5, True), (1.5, False), (-0.1, False)])
def test_plausible_values_of_an_accuracy(value: float, plausible: bool) -> None:
    assert benchmarks()["bert"].targets_in(None)[0].is_plausible(value) == plausible
    assert benchmarks()["llama31_8b"].targets_in(None)[0].is_plausible(abs(value))
