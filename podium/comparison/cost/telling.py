"""What training costs, for people and for programs."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.text import printable
from podium.comparison.cost.costs import Cost, Costs
from podium.comparison.result import Result
from podium.console import UNKNOWN, print_line, result_table


def cost_json(cost: Cost | None, currency: str) -> dict[str, Any]:
    """The fields that a result's object gets."""
    return {
        "currency": currency,
        "cost_to_train": None if cost is None else cost.to_train,
        "cost_per_hour": None if cost is None else cost.per_hour,
        "samples_per_currency_unit": None if cost is None else cost.samples_per_unit,
    }


def print_costs(console: Console, results: Sequence[Result], costs: Costs) -> None:
    """A line for each result whose cost is known, the least cost first; then the notes."""
    known = [(cost, result) for result, cost in zip(results, costs.costs, strict=True) if cost is not None]
    if known:
        console.print(_table(sorted(known, key=lambda pair: pair[0].to_train), costs.currency))
    for note in costs.notes:
        print_line(console, note)


def money(amount: float) -> str:
    """With cents where they say something; no more digits than can be read."""
    if amount >= 1e12:
        return f"{amount:.3g}"
    return f"{amount:,.0f}" if amount >= 1000 else f"{amount:,.2f}" if amount >= 0.1 else f"{amount:.2g}"


def _table(known: Sequence[tuple[Cost, Result]], currency: str) -> Table:
    title = f"{currency} to train once, by the score as measured"
    figures = ("minutes", "an hour", "to train", f"samples a\n{currency}")
    table = result_table(title, ("round, submitter, system", "accelerators"), figures)
    for cost, result in known:
        count = "" if not result.accelerators else f"{result.accelerators:,}×"
        names = (result.name, f"{count}{result.family or UNKNOWN}")
        minutes = UNKNOWN if result.minutes is None else f"{result.minutes:,.3f}"
        samples = UNKNOWN if cost.samples_per_unit is None else f"{cost.samples_per_unit:,.0f}"
        numbers = (minutes, money(cost.per_hour), money(cost.to_train), samples)
        table.add_row(*(Text(printable(name)) for name in names), *numbers)
    return table
