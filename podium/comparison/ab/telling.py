"""A comparison of two sides, for people and for programs."""

from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.text import cut, printable
from podium.comparison.ab.comparing import AB, KINDS, converged
from podium.comparison.ab.olympic import Fewer
from podium.comparison.ab.settings import Difference
from podium.comparison.ab.sides import Side
from podium.comparison.ab.significance import Summary, Welch
from podium.comparison.ab.verdict import Quantity, p_value
from podium.console import print_line, result_table, text_table

MOST_DIFFERENCES = 24
"""That are shown; as JSON there are all."""
EXPLAINED = {
    "sequences_per_second_without_evaluation": "in training: sequences/s without the time in evaluation",
    "sequences_per_second_between_evaluations": "steady: sequences/s from the first to the last evaluation",
}
"""Quantities whose titles do not tell what they are."""
LONGEST_VALUE = 60
"""Characters of a setting's value that are shown."""


def as_json(ab: AB) -> dict[str, Any]:
    """One object; null for what is not known, and never NaN."""
    return {
        "verdict": ab.verdict,
        "a": _side_json(ab.a),
        "b": _side_json(ab.b),
        "quantities": {one.kind: _quantity_json(one) for one in ab.quantities},
        "rcp_test": {"a_needs_fewer": _fewer_json(ab.a_fewer), "b_needs_fewer": _fewer_json(ab.b_fewer)},
        "differing": [asdict(one) for one in ab.differing],
        "warnings": list(ab.warnings),
        "notes": list(ab.notes),
    }


def print_ab(console: Console, ab: AB) -> None:
    """The verdict, the quantities, the rules' own test, what differs, and warnings last."""
    print_line(console, ab.verdict, style="bold")
    console.print(_table(ab))
    print_line(console, "A/B: ratio of means, 95% interval (Fieller); p: Welch's t-test, two-sided", style="dim")
    for one in ab.quantities:
        if one.kind in EXPLAINED and one.a.n + one.b.n:
            print_line(console, EXPLAINED[one.kind], style="dim")
    print_line(console, _rules(ab))
    if ab.differing:
        console.print(_differences(ab.differing))
    else:
        print_line(console, "No setting that is known differs.")
    for warning in ab.warnings:
        print_line(console, f"! {warning}", style="yellow")
    for note in ab.notes:
        print_line(console, note)


def _table(ab: AB) -> Table:
    table = result_table(None, [""], ["", "n", "mean", "sd", "median", "A/B", "p"])
    for quantity in ab.quantities:
        if quantity.a.n == quantity.b.n == 0:
            continue
        scale = max(abs(one.mean or 0.0) for one in (quantity.a, quantity.b))
        ratio, p = "–", Text("–")
        if isinstance(quantity.test, Welch):
            interval = quantity.test.interval
            ends = "no interval" if interval is None else f"{interval[0]:.3f}–{interval[1]:.3f}"
            ratio = f"{quantity.test.ratio:.3f} ({ends})"
            style = "bold" if quantity.test.significant else ""
            p = Text(p_value(quantity.test.p).removeprefix("p ").removeprefix("= "), style=style)
        table.add_row(KINDS[quantity.kind].title, "A", *_cells(quantity.a, ab.a, scale), ratio, p)
        table.add_row("", "B", *_cells(quantity.b, ab.b, scale), "", "")
    return table


def _cells(one: Summary, side: Side, scale: float) -> list[str]:
    """n, mean, standard deviation and median."""
    runs = len(side.runs)
    n = f"{one.n}" if one.n == runs else f"{one.n} of {runs}"
    return [n, *("–" if value is None else _number(value, scale) for value in (one.mean, one.sd, one.median))]


def _number(value: float, scale: float) -> str:
    """With as many decimals as a mean of that size has."""
    size = abs(scale)
    return f"{value:.3e}" if size >= 1e12 else f"{value:,.{0 if size >= 1e4 else 1 if size >= 1e3 else 2}f}"


def _rules(ab: AB) -> str:
    """What the rules' test says of the side that needs fewer samples."""
    tests = {"A": ab.a_fewer, "B": ab.b_fewer}
    found = {name: test for name, test in tests.items() if isinstance(test, Fewer) and test.mean <= test.reference}
    if not found:
        words = next((test for test in tests.values() if isinstance(test, str)), "neither side needs fewer")
        return f"MLPerf's own test of the samples (olympic, pooled, one-sided): none, as {words}."
    name, test = next(iter(found.items()))
    other = "B" if name == "A" else "A"
    words = "significantly fewer" if test.significant else "not significantly fewer"
    return (
        f"MLPerf's own test of the samples (olympic, pooled, one-sided): {name} needs {words} than {other}, "
        f"{test.mean:,.0f} against {test.reference:,.0f} ({p_value(test.p)}; significant below {test.least:,.0f})."
    )


def _differences(differing: tuple[Difference, ...]) -> Table:
    table = text_table("differs", "A", "B", no_wrap="differs")
    for one in differing[:MOST_DIFFERENCES]:
        table.add_row(Text(printable(one.key)), *(Text(_values(values)) for values in (one.a, one.b)))
    if len(differing) > MOST_DIFFERENCES:
        table.add_row(f"and {len(differing) - MOST_DIFFERENCES:,} more", "", "")
    return table


def _values(values: tuple[str, ...]) -> str:
    return cut(printable(", ".join(values)), LONGEST_VALUE)


def _side_json(side: Side) -> dict[str, Any]:
    return {
        "asked": side.asked,
        "name": side.name,
        "runs": len(side.runs),
        "converged": len(converged(side)),
        "full_size": side.full_size,
        "settings_from": "configuration" if side.configured else "logs",
        "settings": {key: list(values) for key, values in {**side.settings, **side.facts}.items()},
    }


def _quantity_json(one: Quantity) -> dict[str, Any]:
    found = one.test if isinstance(one.test, Welch) else None
    return {
        "unit": KINDS[one.kind].unit,
        "a": asdict(one.a),
        "b": asdict(one.b),
        "welch": None if found is None else {**asdict(found), "significant": found.significant},
        "untested": one.test if isinstance(one.test, str) else None,
    }


def _fewer_json(found: Fewer | str) -> dict[str, Any]:
    if isinstance(found, str):
        return {"p": None, "untested": found}
    return {**asdict(found), "significant": found.significant, "untested": None}
