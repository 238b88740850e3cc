"""Figures of the balance report, compared with those of batches whose balance is known."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.bert.lengths import wikipedia_histogram
from benchmarks.bert.sizes import LARGE
from podium.config.load import load_system
from podium.core.errors import UsageError
from podium.planning.balance_report import Balance, Cluster, balance_report, measure_balances
from podium.planning.balancing.interface import AssignmentSpec
from podium.planning.balancing.strategies import STRATEGIES

PAIR_COST, _ = LARGE.relative_costs(30_522)


def balance_of(strategy: str, *rest: Any, **more: Any) -> Balance:
    found, _ = measure_balances([strategy], *rest, **more)
    return found[strategy]


def two_lengths(short: int, long: int) -> np.ndarray:
    """Histogram with equal numbers of samples of two lengths."""
    histogram = np.zeros(long + 1)
    histogram[[short, long]] = 1
    return histogram


def test_equal_samples_are_balanced_and_padding_is_counted() -> None:
    histogram = np.zeros(513)
    histogram[128] = 7
    found = balance_of("random", histogram, AssignmentSpec(4, 4, PAIR_COST), 8, steps=3)
    assert found.max_over_mean_tokens == found.max_over_mean_cost_p99 == 1
    assert found.padding_share == 0
    padded = balance_of("padded", histogram, AssignmentSpec(4, 4, PAIR_COST), 8, steps=3)
    assert padded.padding_share == 0.75
    assert padded.max_over_mean_tokens == 1


def test_one_sample_per_rank_of_two_lengths() -> None:
    """With one sample per rank, the busiest rank has the longer length and the mean rank the mean of both."""
    found = balance_of("random", two_lengths(100, 300), AssignmentSpec(512, 8, 0.001), 1, steps=20)
    assert found.max_over_mean_tokens == pytest.approx(300 / 200, rel=0.03)
    cost = (300 + 90, 100 + 10)
    assert found.max_over_mean_cost == pytest.approx(cost[0] / (sum(cost) / 2), rel=0.03)
    assert found.max_over_mean_cost < found.max_over_mean_cost_p99 < 1.1 * found.max_over_mean_cost


def test_micro_batches_are_summed_by_rank() -> None:
    once = balance_of("random", wikipedia_histogram(), AssignmentSpec(4, 4, PAIR_COST), 8, steps=5)
    twice = balance_of(
        "random", wikipedia_histogram(), AssignmentSpec(4, 4, PAIR_COST), 8, accumulation_steps=2, steps=5
    )
    assert once.max_over_mean_tokens == pytest.approx(twice.max_over_mean_tokens)


def test_packed_rows_are_equal_and_nearly_full() -> None:
    found = balance_of("packed", wikipedia_histogram(), AssignmentSpec(8, 8, PAIR_COST), 56, steps=3)
    assert found.max_over_mean_tokens == 1
    assert 0 < found.padding_share < 0.03


def test_indexed_has_the_best_balance_and_sends_nothing() -> None:
    found = {
        name: balance_of(name, wikipedia_histogram(), AssignmentSpec(64, 8, PAIR_COST), 16, steps=5)
        for name in ("random", "exchanged", "presorted", "indexed")
    }
    by_cost = sorted(found, key=lambda name: found[name].max_over_mean_cost)
    assert by_cost == ["indexed", "presorted", "exchanged", "random"] or by_cost[0] == "indexed"
    assert found["indexed"].max_over_mean_cost < 1.005
    assert 1 <= found["indexed"].lower_bound_cost <= found["indexed"].max_over_mean_cost
    assert found["indexed"].bytes_per_step == 0
    assert found["exchanged"].bytes_per_step > found["presorted"].bytes_per_step > 0


TINY = "a_millionth_of_a_sample.json"


@pytest.fixture(autouse=True)
def tiny_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path(TINY).write_text("[0, 0, 1e-6]")


def test_strata_counts_of_a_system_are_used() -> None:
    """171 DGX A100 draw 4, 2, 2 and 4 of 12 samples, whose balance differs from that of the proportional 5, 2, 1, 4."""

    def found(strategies: list[str], *settings: str) -> dict[str, Any]:
        cluster = Cluster.of_system(load_system("dgxa100_n171", None, [*settings]))
        return balance_report(cluster, strategies, steps=2)

    own, computed = found(["presorted"]), found(["presorted"], "strata_counts=null")
    costs = [each["strategies"]["presorted"]["max_over_mean_cost"] for each in (own, computed)]
    assert abs(costs[0] - costs[1]) > 1e-4
    with pytest.raises(UsageError, match=r"strata_counts: found \[12, 0, 0, 0\], but the .* do not match"):
        found(["presorted"], "strata_counts=[12, 0, 0, 0]")
    other = load_system("dgxa100_n171", "indexed", ["optimizer.algorithm=lamb", "global_batch_size=10944"])
    assert other.strata_counts == (4, 2, 2, 4) and Cluster.of_system(other).strata_counts is None


def test_every_strategy_is_reported() -> None:
    found = balance_report(Cluster.of_ranks(8, 16, None, None, None), steps=2)
    assert list(found["strategies"]) == list(STRATEGIES)
    assert found["pair_cost"] == pytest.approx(PAIR_COST)
    assert json.loads(json.dumps(found)) == found
    for row in found["strategies"].values():
        assert row["max_over_mean_tokens"] >= 1
        assert row["max_over_mean_cost_p99"] >= 1
        assert 0 <= row["padding_share"] < 1
        assert row["milliseconds"] > 0


@pytest.mark.parametrize(("ranks", "samples", "steps"), [(8, 16, 400), (1024, 16, 64), (4096, 64, 20)])
def test_default_steps_fall_with_the_batch_size(
    monkeypatch: pytest.MonkeyPatch, ranks: int, samples: int, steps: int
) -> None:
    """The report takes about as long for large clusters as for small ones."""
    passed_steps = []

    def balances(*arguments: Any, **_: Any) -> tuple[dict[str, Any], dict[str, str]]:
        passed_steps.append(arguments[5])
        return {"padded": AssignmentSpec(1, 1)}, {}

    monkeypatch.setattr("podium.planning.balance_report.measure_balances", balances)
    cluster = Cluster.of_ranks(ranks, samples, None, None, None)
    assert balance_report(cluster)["steps"] == steps
    assert balance_report(cluster, steps=7)["steps"] == 7
    assert passed_steps == [steps, 7]


def test_strategies_are_measured_on_the_same_batches() -> None:
    """A strategy has the same figures in any set of strategies, except for its time."""
    together = balance_report(Cluster(AssignmentSpec(8, 4), 16, accumulation_steps=2), steps=9)["strategies"]
    for name, row in together.items():
        alone = balance_report(Cluster(AssignmentSpec(8, 4), 16, accumulation_steps=2), [name], steps=9)["strategies"][
            name
        ]
        assert {**alone, "milliseconds": 0} == {**row, "milliseconds": 0}


def test_packing_report_of_known_lengths(tmp_path: Path) -> None:
    """40 sequences of 30 tokens and 40 of 34 fill rows of 64, the longest length, in pairs."""
    path = tmp_path / "lengths.json"
    path.write_text(json.dumps([0] * 29 + [40, 0, 0, 0, 40] + [0] * 29 + [1]))
    rows = balance_report(Cluster(AssignmentSpec(1, 1), 4), ["random"], path, steps=1, packing=True)["packing"]
    assert [(row["method"], row["depth"]) for row in rows][:3] == [
        ("least squares", 3),
        ("shortest pack first", 2),
        ("shortest pack first", 3),
    ]
    assert len(rows) == 13
    assert all(row["efficiency"] == 1 for row in rows)
    assert rows[0]["sequences_per_row"] == pytest.approx(81 / 41)


def test_lengths_are_read_from_the_file(tmp_path: Path) -> None:
    path = tmp_path / "lengths.json"
    path.write_text(json.dumps([0, 0, *[0] * 61, 1, *[0] * 63, 1]))  # 64 and 128 tokens
    found = balance_report(Cluster(AssignmentSpec(2, 2), 400), ["padded"], path, steps=2)
    assert found["strategies"]["padded"]["padding_share"] == pytest.approx(0.25, abs=0.02)


@pytest.mark.parametrize(
    ("cluster", "options", "sentence"),
    [
        (Cluster(AssignmentSpec(4096, 8), 4096), {}, "allowed are up to 4,194,304 samples"),
        (Cluster(AssignmentSpec(4, 4), 4), {"strategies": ["best"]}, "--strategy: found best, allowed are all, "),
        (Cluster(AssignmentSpec(4, 4), 4), {"lengths": Path("/no/such")}, "--lengths: /no/such cannot be read"),
        (Cluster(AssignmentSpec(4, 4), 2), {"strategies": ["stratified"]}, "local batches of 2"),
        (Cluster(AssignmentSpec(4, 4), 2), {"steps": 1, "lengths": Path(TINY), "packing": True}, "half a sample"),
    ],
)
def test_batches_that_cannot_be_assigned_are_one_line_errors(
    cluster: Cluster, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UsageError) as error:
        balance_report(cluster, **options)
    assert sentence in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_ranks_not_divisible_into_nodes_are_an_error() -> None:
    with pytest.raises(UsageError, match="--ranks-per-node: found 3, allowed are divisors of --ranks 4"):
        Cluster.of_ranks(4, 4, 3, None, None)


def test_impossible_strategies_are_listed_with_the_reason() -> None:
    found = balance_report(Cluster(AssignmentSpec(4, 4), 2), steps=1)
    assert list(found["infeasible"]) == ["stratified", "presorted"]
    assert [*found["strategies"], *found["infeasible"]] == sorted(
        STRATEGIES, key=lambda name: (name in found["infeasible"], list(STRATEGIES).index(name))
    )
