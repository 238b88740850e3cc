"""The cost of training once, and files of prices."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from podium.comparison.cost import Costs, Entry, Prices, cost_json, costs, format_money, print_costs, read_prices
from podium.comparison.result import Result
from podium.core.errors import UsageError
from podium.core.paths import CODE_FOLDER
from podium.planning.accelerators import find_accelerator
from tests.podium.comparison.conftest import make_result, make_run

FILE = Path("prices.yaml")
# A score of one hour on 8 accelerators in one node, with 2.4 million samples.
HOUR = make_result([make_run(3600.0 + n) for n in (-100, -4, -3, -2, -1, 1, 2, 3, 4, 500)], scaling_factor=1.5)


def priced(result: Result, per: str = "node-hour", price: float = 10.0, **options: Any) -> Costs:
    entry = Entry.model_validate({"per": per, "price": price})
    return costs([result], Prices(currency="USD", prices=(entry,), **options), FILE)


def to_train(*arguments: Any, **options: Any) -> float:
    [cost] = priced(*arguments, **options).costs
    assert cost is not None
    return cost.to_train


@pytest.mark.parametrize(("per", "expected"), [("accelerator-hour", 160.0), ("node-hour", 20.0), ("system-hour", 10.0)])
def test_cost_by_the_unit_of_the_price(per: str, expected: float) -> None:
    found = priced(make_result(HOUR.runs, accelerators=16, nodes=2), per)
    [cost] = found.costs
    assert cost is not None and cost.per_hour == expected and cost.to_train == pytest.approx(expected)
    assert cost.samples_per_unit == pytest.approx(2.4e6 / expected) and found.notes == ()


def test_cost_is_of_the_unscaled_score_without_fastest_and_slowest() -> None:
    assert to_train(HOUR) == pytest.approx(10.0 * (HOUR.score_minutes or 0) / 60) == pytest.approx(10.0)
    slow = make_result([*HOUR.runs[:-1], make_run(9e9, status="aborted")])
    assert to_train(slow) == pytest.approx(10.0)


def test_without_a_score_the_cost_is_of_converged_runs() -> None:
    pair = make_result([make_run(1800.0), make_run(5400.0), make_run(1.0, status="aborted")])
    assert to_train(pair) == pytest.approx(10.0)
    assert priced(pair).notes[0].startswith("no score for 1 result: NVIDIA A100 SXM (1); the cost is of the runs that")


def test_initialisation_rounding_and_minimum_are_billed() -> None:
    assert to_train(HOUR, initialisation=True) == pytest.approx(10.0 * 3660 / 3600)
    assert to_train(HOUR, billing_seconds=3600.0) == pytest.approx((4 * 10 + 4 * 20) / 8)
    assert to_train(HOUR, minimum_minutes=90.0) == pytest.approx(15.0)
    assert to_train(HOUR, minimum_minutes=90.0, billing_seconds=3600.0) == pytest.approx(20.0)
    assert to_train(HOUR, initialisation=True, minimum_minutes=30.0) == pytest.approx(10.0 * 3660 / 3600)


@pytest.mark.parametrize(
    ("result", "per", "options", "reason"),
    [
        (make_result(HOUR.runs, accelerators=0), "accelerator-hour", {}, "the description has no accelerators"),
        (
            make_result(HOUR.runs, accelerators=None),
            "accelerator-hour",
            {},
            "does not state its number of accelerators",
        ),
        (make_result(HOUR.runs, nodes=None), "node-hour", {}, "does not state its number of nodes"),
        (make_result([make_run(1.0, status="aborted")]), "node-hour", {}, "no run reached the target"),
        (
            make_result([make_run(n, init_seconds=None) for n in (1.0, 2.0, 3.0)]),
            "node-hour",
            {"initialisation": True},
            "a log has no start of initialisation",
        ),
        (
            make_result([make_run(n * 1e304) for n in (3.0, 4.0)], nodes=9999999),
            "node-hour",
            {},
            "too large or too small to compute with",
        ),
    ],
)
def test_unknown_costs_have_a_reason(result: Result, per: str, options: dict[str, Any], reason: str) -> None:
    found = priced(result, per, **options)
    assert found.costs == (None,) and reason in found.notes[0] and found.notes[0].startswith("no cost for 1 result: ")


def test_unknown_samples_give_no_samples_per_unit() -> None:
    [cost] = priced(make_result([make_run(n, None) for n in (1.0, 2.0, 3.0)])).costs
    assert cost is not None and cost.samples_per_unit is None


def test_results_without_a_price_and_unused_entries_are_noted() -> None:
    entries = tuple(Entry(per="node-hour", price=1, accelerator=kind) for kind in ("*A100*", "*H100*", "*A100 SXM"))
    tpus = [make_result(system=f"t{n}", accelerator="TPU-v4", kind=None) for n in range(12)]
    others = [make_result(system=f"x{n}", accelerator=f"X{n}", kind=None) for n in range(7)]
    found = costs([HOUR, *tpus, *others], Prices(currency="USD", prices=entries), FILE)
    assert [cost is not None for cost in found.costs] == [True] + [False] * 19
    assert found.notes[0].startswith("no price for 19 results: TPU-v4 (12), X0 (1)")
    assert found.notes[0].endswith("X4 (1) and 2 others; add entries to prices.yaml")
    assert found.notes[1].startswith("prices.yaml: prices.1, prices.2: not used; they match none of these results")


def test_costs_are_printed_cheapest_first_and_as_json() -> None:
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
    assert "\x1b" not in text and text.index("[bold]") < text.index("dear") and "does not state its number" in text
    objects = [json.loads(json.dumps(cost_json(cost, "USD"), allow_nan=False)) for cost in found.costs]
    assert [one["cost_to_train"] for one in objects] == [pytest.approx(30.0), pytest.approx(10.0), None]
    assert objects[0]["cost_per_hour"] == 30.0 and objects[2]["currency"] == "USD"


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0.0012345, "0.0012"), (0.5, "0.50"), (12.345, "12.35"), (12345.6, "12,346"), (1.5e15, "1.5e+15")],
)
def test_format_of_amounts(amount: float, text: str) -> None:
    assert format_money(amount) == text


PLAIN = "currency: USD\nprices:\n  - {per: node-hour, price: 2}\n"


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "prices.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def refusal(tmp_path: Path, text: str) -> str:
    path = write(tmp_path, text)
    with pytest.raises(UsageError) as refused:
        read_prices(path)
    message = str(refused.value)
    assert all(line.startswith(str(path)) for line in message.splitlines() if not line.startswith("and "))
    return message.replace(f"{path}: ", "")


def test_the_example_is_valid_and_marked_as_invented() -> None:
    example = CODE_FOLDER / "docs" / "prices.yaml"
    assert "These prices are invented" in example.read_text(encoding="utf-8")
    prices = read_prices(example)
    assert len(prices.prices) == 5 and prices.prices[0].price == 27.2 and prices.billing_seconds == 1
    assert prices.prices[4] == Entry(per="system-hour", price=0.02, system="laptop")


@pytest.mark.parametrize(
    ("price", "message"),
    [
        ("-1", "found '-1'; allowed: greater than 0"),
        ("0", "found '0'; allowed: greater than 0"),
        (".nan", "found '.nan'"),
        ("nan", "found 'nan'; allowed: a finite number"),
        ("inf", "found 'inf'; allowed: a finite number"),
        ("1e999", "found '1e999'; allowed: a finite number"),
        ("1e10", "found '1e10'; allowed: less than or equal to 1000000000"),
        ("2:50", "found '2:50'; allowed: a number"),
        ("0x10", "found '0x10'; allowed: a number"),
        ("2,50", "found '2,50'"),
        ("[2]", "found ['2']; allowed: a number"),
        ("{a: 2}", "allowed: a number"),
        ("true", "found 'true'; allowed: a number"),
        ("", "found ''; allowed: a number"),
        ("9" * 5000, "prices.0.price"),
    ],
)
def test_invalid_prices_are_errors(tmp_path: Path, price: str, message: str) -> None:
    block = f"currency: USD\nprices:\n  - per: node-hour\n    price: {price}\n"
    found = refusal(tmp_path, block)
    assert found.startswith("prices.0.price: found ") and message in found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("currency: USD\n", "prices: is missing; add it"),
        (PLAIN.replace("price: 2", "price: 2, prize: 3"), "prices.0.prize: there is no such key (did you mean price?)"),
        (PLAIN.replace("node-hour", "node-day"), "prices.0.per: found 'node-day'; allowed are 'accelerator-hour'"),
        (PLAIN + "currency: EUR\n", "the key 'currency' is given twice"),
        (PLAIN.replace("price: 2", "price: 2, price: 3"), "the key 'price' is given twice"),
        (PLAIN + "minimum_minutes: -1\n", "minimum_minutes: found '-1'"),
        (PLAIN + "billing_seconds: 0\n", "billing_seconds: found '0'"),
        (PLAIN + "initialisation: maybe\n", "initialisation: found 'maybe'"),
        (PLAIN.replace("USD", '"\\e[2J"'), "currency: found '\\x1b[2J'"),
        (PLAIN.replace("USD", "=SUM(A1)"), "currency: found '=SUM(A1)'"),
        ("currency: USD\nprices: []\n", "prices: found 0 entries; allowed are 1 to 1,000"),
        ("currency: USD\nprices: 3\n", "prices: found '3'"),
        ("currency: USD\nprices: [3]\n", "prices.0: found '3'"),
        ("- 1\n", "contains no keys"),
        ("", "contains no keys"),
        ("a: !!python/object/apply:os.system [x]\n", "there is no such key"),
        ("a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n", "aliases (*name) are not supported"),
        ("a: " + "[" * 100_000, "is not valid YAML"),
        (PLAIN.replace("per:", f"system: {'x' * 300}, per:"), "prices.0.system: found 'xxx"),
        (PLAIN + "#" * (1 << 17), "is larger than the allowed 131,072 bytes"),
    ],
)
def test_invalid_files_are_errors(tmp_path: Path, text: str, message: str) -> None:
    assert message in refusal(tmp_path, text)


def test_unreadable_files_are_errors(tmp_path: Path) -> None:
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(UsageError, match="cannot be read"):
            read_prices(path)
    (tmp_path / "latin.yaml").write_bytes(b"currency: \xff\n")
    with pytest.raises(UsageError, match="is not UTF-8 text"):
        read_prices(tmp_path / "latin.yaml")
    huge = tmp_path / "huge.yaml"
    with huge.open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(UsageError, match="is larger than"):
        read_prices(huge)


def test_only_the_first_errors_are_printed(tmp_path: Path) -> None:
    text = "currency: USD\nprices:\n" + "  - {per: node-hour, price: -1}\n" * 50
    assert refusal(tmp_path, text).endswith("\nand 40 more errors")
    assert "prices: found 1,050 entries" in refusal(
        tmp_path, text.replace("-1", "1") + "  - {per: node-hour, price: 1}\n" * 1000
    )


@pytest.mark.parametrize(
    ("patterns", "matches"),
    [
        ({}, True),
        ({"accelerator": "nvidia a100 sxm"}, True),  # the usual name
        ({"accelerator": "NVIDIA A100-SXM4-80GB"}, True),  # the description's name
        ({"accelerator": "A100"}, False),
        ({"accelerator": "*a100*"}, True),
        ({"accelerator": "nvidia.*"}, False),
        ({"system": "s?s", "submitter": "OR*", "round": "V2.0"}, True),
        ({"system": "s?s", "submitter": "OR*", "round": "v2.1"}, False),
        ({"system": "[rs]ys"}, True),
    ],
)
def test_patterns_match_names(patterns: dict[str, str], matches: bool) -> None:
    assert Entry(per="node-hour", price=1, **patterns).matches(make_result()) == matches


def test_patterns_match_own_results_and_cpu_systems() -> None:
    cpu = make_result(accelerators=0, accelerator=None, kind=None, round=None)
    assert Entry(per="node-hour", price=1, round="own").matches(cpu)
    assert not Entry(per="node-hour", price=1, accelerator="*").matches(cpu)


def test_matching_a_pattern_does_not_backtrack() -> None:
    slow = Entry(per="node-hour", price=1, system="*a" * 100)
    assert not slow.matches(make_result(system="a" * 150 + "b"))


def test_the_first_matching_entry_is_used() -> None:
    kinds = ("NVIDIA H100*", "*A100*", "*")
    entries = [Entry(per="node-hour", price=n + 1, accelerator=kind) for n, kind in enumerate(kinds)]
    prices = Prices(currency="EUR", prices=tuple(entries))
    tpu = make_result(accelerator="TPU-v4", kind=find_accelerator("TPU-v4"))
    assert [prices.entry_for(one) for one in (make_result(), tpu)] == [1, 2]
    assert prices.entry_for(make_result(accelerator=None, kind=None)) is None


@pytest.mark.parametrize("width", [40, 60, 80])
def test_no_cost_is_cut_at_any_width(width: int) -> None:
    result = make_result(HOUR.runs, submitter="A-submitter-of-a-long-name", system="a_system_of_a_long_name_too")
    console = Console(width=width, record=True, file=io.StringIO())
    print_costs(console, [result], priced(result))
    shown = console.export_text()
    assert all(f" {text} " in shown for text in ("60.000", "10.00", "240,000", "per USD"))
