"""What training once costs."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from podium.comparison.cost.costs import Costs, costs
from podium.comparison.cost.prices import Entry, Prices
from podium.comparison.cost.telling import cost_json, money, print_costs
from podium.comparison.result import Result
from tests.podium.comparison.conftest import make_result, make_run

FILE = Path("prices.yaml")
HOUR = make_result([make_run(3600.0 + n) for n in (-100, -4, -3, -2, -1, 1, 2, 3, 4, 500)], scaling_factor=1.5)
"""Of an hour by its score: 8 accelerators in one node, 2.4 million samples."""


def priced(result: Result, per: str = "node-hour", price: float = 10.0, **options: Any) -> Costs:
    entry = Entry.model_validate({"per": per, "price": price})
    return costs([result], Prices(currency="USD", prices=(entry,), **options), FILE)


def to_train(*given: Any, **options: Any) -> float:
    [cost] = priced(*given, **options).costs
    assert cost is not None
    return cost.to_train


@pytest.mark.parametrize(("per", "expected"), [("accelerator-hour", 160.0), ("node-hour", 20.0), ("system-hour", 10.0)])
def test_by_the_unit(per: str, expected: float) -> None:
    found = priced(make_result(HOUR.runs, accelerators=16, nodes=2), per)
    [cost] = found.costs
    assert cost is not None and cost.per_hour == expected and cost.to_train == pytest.approx(expected)
    assert cost.samples_per_unit == pytest.approx(2.4e6 / expected) and cost.entry == 0 and found.notes == ()


def test_the_score_as_measured_counts() -> None:
    """Without the fastest and the slowest, and not scaled."""
    assert to_train(HOUR) == pytest.approx(10.0 * (HOUR.score_minutes or 0) / 60) == pytest.approx(10.0)
    slow = make_result([*HOUR.runs[:-1], make_run(9e9, status="aborted")])
    assert to_train(slow) == pytest.approx(10.0)


def test_without_a_score_the_runs_that_converged_count() -> None:
    pair = make_result([make_run(1800.0), make_run(5400.0), make_run(1.0, status="aborted")])
    assert to_train(pair) == pytest.approx(10.0)
    assert priced(pair).notes[0].startswith("no score for 1 result: NVIDIA A100 SXM (1); the cost is of the runs that")


def test_initialisation_rounding_and_minimum() -> None:
    assert to_train(HOUR, initialisation=True) == pytest.approx(10.0 * 3660 / 3600)
    assert to_train(HOUR, billing_seconds=3600.0) == pytest.approx((4 * 10 + 4 * 20) / 8)
    assert to_train(HOUR, minimum_minutes=90.0) == pytest.approx(15.0)
    assert to_train(HOUR, minimum_minutes=90.0, billing_seconds=3600.0) == pytest.approx(20.0)
    assert to_train(HOUR, initialisation=True, minimum_minutes=30.0) == pytest.approx(10.0 * 3660 / 3600)


@pytest.mark.parametrize(
    ("result", "per", "options", "why"),
    [
        (make_result(HOUR.runs, accelerators=0), "accelerator-hour", {}, "the description has no accelerators"),
        (make_result(HOUR.runs, accelerators=None), "accelerator-hour", {}, "does not tell its number of accelerators"),
        (make_result(HOUR.runs, nodes=None), "node-hour", {}, "does not tell its number of nodes"),
        (make_result([make_run(1.0, status="aborted")]), "node-hour", {}, "no run reached the target"),
        (
            make_result([make_run(n, init_seconds=None) for n in (1.0, 2.0, 3.0)]),
            "node-hour",
            {"initialisation": True},
            "a log does not tell when initialisation began",
        ),
        (
            make_result([make_run(n * 1e304) for n in (3.0, 4.0)], nodes=9999999),
            "node-hour",
            {},
            "none that can be comp",
        ),
    ],
)
def test_what_is_not_known_is_told(result: Result, per: str, options: dict[str, Any], why: str) -> None:
    found = priced(result, per, **options)
    assert found.costs == (None,) and why in found.notes[0] and found.notes[0].startswith("no cost for 1 result: ")


def test_samples_that_are_not_known() -> None:
    [cost] = priced(make_result([make_run(n, None) for n in (1.0, 2.0, 3.0)])).costs
    assert cost is not None and cost.samples_per_unit is None


def test_results_and_entries_without_each_other() -> None:
    entries = tuple(Entry(per="node-hour", price=1, accelerator=kind) for kind in ("*A100*", "*H100*", "*A100 SXM"))
    tpus = [make_result(system=f"t{n}", accelerator="TPU-v4", kind=None) for n in range(12)]
    others = [make_result(system=f"x{n}", accelerator=f"X{n}", kind=None) for n in range(7)]
    found = costs([HOUR, *tpus, *others], Prices(currency="USD", prices=entries), FILE)
    assert [cost is not None for cost in found.costs] == [True] + [False] * 19
    assert found.notes[0].startswith("no price for 19 results: TPU-v4 (12), X0 (1)")
    assert found.notes[0].endswith("X4 (1) and 2 others; add entries to prices.yaml")
    assert found.notes[1].startswith("prices.yaml: prices.1, prices.2 count for none of these results")


def test_told_the_cheapest_first_and_as_json() -> None:
    evil = "x\x1b[2J[bold]"
    results = [
        make_result(HOUR.runs, system="dear", nodes=3),
        make_result(HOUR.runs, system=evil),
        make_result(HOUR.runs, system="unknown", nodes=None),
    ]
    found = costs(results, Prices(currency="USD", prices=(Entry(per="node-hour", price=10),)), FILE)
    console = Console(file=io.StringIO(), width=140)
    print_costs(console, results, found)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "\x1b" not in text and text.index("[bold]") < text.index("dear") and "does not tell its number" in text
    objects = [json.loads(json.dumps(cost_json(cost, "USD"), allow_nan=False)) for cost in found.costs]
    assert [one["cost_to_train"] for one in objects] == [pytest.approx(30.0), pytest.approx(10.0), None]
    assert objects[0]["cost_per_hour"] == 30.0 and objects[2]["currency"] == "USD"


@pytest.mark.parametrize(
    ("amount", "words"),
    [(0.0012345, "0.0012"), (0.5, "0.50"), (12.345, "12.35"), (12345.6, "12,346"), (1.5e15, "1.5e+15")],
)
def test_money(amount: float, words: str) -> None:
    assert money(amount) == words
