"""A/B comparison of two operands: whether they differ, by how much, in what settings, and what limits the verdict."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from podium.comparison.ab.operands import Difference, Side, differences, logged, unequal
from podium.comparison.ab.significance import Fewer, Summary, Welch, compare, fewer, summary
from podium.core.console import print_line, result_table, text_table
from podium.core.errors import UsageError
from podium.core.text import format_list, printable, truncate
from podium.mllog.run import Run


@dataclass(frozen=True)
class Quantity:
    """One quantity of the runs that converged, on both sides."""

    kind: str  # a key of KINDS
    a: Summary
    b: Summary
    test: Welch | str  # Welch's, or why there is none


def verdict(a: str, b: str, quantities: Mapping[str, Quantity]) -> str:
    """Whether one of the sides of these names is faster, and whether samples or throughput make it so."""
    time, cause = quantities["seconds"].test, _cause(quantities)
    names = f"A ({a})", f"B ({b})"
    if isinstance(time, str):
        return f"Whether {names[0]} is faster than {names[1]} cannot be tested: {time}.{cause}"
    low, high = time.interval or (0.0, math.inf)
    sure = f"{low:.3f} to {high:.3f} with 95% confidence, " if math.isfinite(high) else ""
    takes = f"{time.ratio:.3f} times as long ({sure}{p_value(time.p)})"
    if not time.significant:
        none = f"No difference in time-to-train is shown between {names[0]} and {names[1]}"
        return f"{none}: A takes {takes}. {_seen(time)}{cause}"
    way = "faster" if time.ratio < 1 else "slower"
    return f"{names[0]} is {way} than {names[1]}: it takes {takes}.{cause}"


def p_value(p: float) -> str:
    """Such as `p = 0.031` or `p = 6e-5`."""
    if p < 1e-99:
        return "p < 1e-99"
    if p < 1e-3:
        digits, _, power = f"{p:.0e}".partition("e")
        return f"p = {digits}e{int(power)}"
    return f"p = {p:.2g}" if p < 0.995 else "p = 1.0"


def _seen(test: Welch) -> str:
    if test.detectable_ratio is None:
        return "Even a hundredfold difference would rarely have been seen."
    percent = 100 * (test.detectable_ratio - 1)
    shown = f"{percent:,.0f}" if percent >= 10 else f"{percent:.2g}"
    return f"A difference of {shown}% would have been seen in four of five such comparisons."


def _cause(quantities: Mapping[str, Quantity]) -> str:
    parts = []
    for kind, verb, what in (("samples", "needs", "samples"), ("sequences_per_second", "trains", "sequences a second")):
        test = quantities[kind].test
        if isinstance(test, Welch):
            more = "more" if test.ratio > 1 else "fewer"
            words = f"significantly {more} {what}" if test.significant else f"as many {what}, as far as can be seen"
            parts.append(f"{verb} {words} ({test.ratio:.3f}, {p_value(test.p)})")
    return f" A {', and '.join(parts)}." if parts else ""


FEW = 5  # runs of a side below which a t-test says little
RECIPE = "recipe"  # a name for other settings, and no further thing that differs
MOST_KEYS = 8  # settings that a warning names


@dataclass(frozen=True)
class Kind:
    """A quantity of runs that is compared."""

    title: str
    unit: str
    of: Callable[[Run], float | None]


# To the target: time, samples and, of both, throughput; it without evaluation, and without start-up, where known.
KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "seconds": Kind("seconds", "s", lambda run: run.seconds),
        "samples": Kind("samples", "", lambda run: run.samples),
        "sequences_per_second": Kind("sequences/s", "/s", lambda run: run.rate),
        "sequences_per_second_without_evaluation": Kind("in training", "/s", lambda run: run.training_rate),
        "sequences_per_second_between_evaluations": Kind("steady", "/s", lambda run: run.steady_rate),
    }
)


@dataclass(frozen=True)
class AB:
    """A against B."""

    a: Side
    b: Side
    verdict: str
    quantities: tuple[Quantity, ...]  # in the order of KINDS
    a_fewer: Fewer | str  # the rules' test of A's samples, B being the reference; or why there is none
    b_fewer: Fewer | str
    differing: tuple[Difference, ...]  # settings and facts that the sides do not have in common
    warnings: tuple[str, ...]  # what speaks against the verdict, a sentence each
    notes: tuple[str, ...]


def held_against(a: Side, b: Side) -> AB:
    """Compare. UsageError where one side trained BERT-large and the other something smaller."""
    if a.full_size != b.full_size:
        small, large = ("A", "B") if b.full_size else ("B", "A")
        raise UsageError(
            f"--ab {a.asked!r} {b.asked!r}: {small} did not train BERT-large and {large} did: they cannot be compared"
        )
    quantities = tuple(_quantity(kind, a, b) for kind in KINDS)
    both = a.configured and b.configured
    told = [side.settings if both else logged(side.runs) for side in (a, b)]
    differing = differences({**told[0], **a.facts}, {**told[1], **b.facts})
    return AB(
        a,
        b,
        f"A ({a.name}) and B ({b.name}) are the same runs: there is nothing to compare."
        if len(a.runs) == len(b.runs) == _in_common(a, b) > 0
        else verdict(a.name, b.name, {quantity.kind: quantity for quantity in quantities}),
        quantities,
        _fewer(a, b),
        _fewer(b, a),
        differing,
        tuple(_warnings(a, b, quantities, differing)),
        tuple(_notes(a, b)),
    )


def converged(side: Side) -> tuple[Run, ...]:
    """The runs that are compared."""
    return tuple(run for run in side.runs if run.converged)


def _quantity(kind: str, a: Side, b: Side) -> Quantity:
    values = [[value for run in converged(side) if (value := KINDS[kind].of(run)) is not None] for side in (a, b)]
    summaries = summary(values[0]), summary(values[1])
    return Quantity(kind, *summaries, compare(*summaries))


def _fewer(side: Side, reference: Side) -> Fewer | str:
    """The rules' test, where all samples are known."""
    samples = [[run.samples for run in converged(one) if run.samples is not None] for one in (side, reference)]
    if any(len(known) < len(converged(one)) for known, one in zip(samples, (side, reference), strict=True)):
        return "not every log tells the samples to the target"
    return fewer(samples[0], len(side.runs) - len(converged(side)), samples[1])


def _warnings(a: Side, b: Side, quantities: Sequence[Quantity], differing: Sequence[Difference]) -> Iterator[str]:
    both = _in_common(a, b)
    if both:
        yield f"{both} run{'s are' if both > 1 else ' is'} on both sides, where a test needs independent ones"
    for name, side in (("A", a), ("B", b)):
        runs, left_out = len(converged(side)), len(side.runs) - len(converged(side))
        if left_out:
            all_runs = f"{left_out} of {name}'s {len(side.runs)} runs"
            yield f"{all_runs} did not reach the target and are left out, in {name}'s favour"
        if runs < FEW:
            yield f"{name} has few runs ({runs}): a test of so few sees nothing but large differences"
        mixed = unequal({**side.settings, **side.facts})
        if mixed:
            yield f"{name}'s runs are not of one setting: they differ in {format_list(mixed, MOST_KEYS)}"
    for quantity in quantities:
        for name, side, found in (("A", a, quantity.a), ("B", b, quantity.b)):
            if 0 < found.n < len(converged(side)):
                yield f"{KINDS[quantity.kind].title}: known of {found.n} of {name}'s {len(converged(side))} runs"
            if quantity.kind == "samples" and found.n > 1 and found.sd == 0:
                yield (
                    f"all runs of {name} need the same {found.mean:,.0f} samples: evaluations are too far apart to "
                    "show how they spread"
                )
    things = [one.key for one in differing if one.key != RECIPE]
    if len(things) > 1:
        keys = format_list(things, MOST_KEYS)
        yield f"the sides differ in {len(things)} things, and the test does not tell which of them it is: {keys}"


def _notes(a: Side, b: Side) -> Iterator[str]:
    sides = (("A", a), ("B", b))
    unknown = [name for name, side in sides if not side.configured]
    if len(unknown) == 1:
        yield f"settings are compared by what the logs tell of them: {unknown[0]}'s configuration is not known"
    yield from (f"{name}: {note}" for name, side in sides for note in side.notes)


def _in_common(a: Side, b: Side) -> int:
    """How many of A's runs are B's too: of one log, or as long to the millisecond and of as many samples."""
    digests = {run.digest for run in b.runs}
    prints = {(run.seconds, run.samples) for run in converged(b)}
    return sum(run.digest in digests or (run.converged and (run.seconds, run.samples) in prints) for run in a.runs)


MOST_DIFFERENCES = 24  # that are shown; as JSON there are all
# Quantities whose titles do not tell what they are.
EXPLAINED = {
    "sequences_per_second_without_evaluation": "in training: sequences/s without the time in evaluation",
    "sequences_per_second_between_evaluations": "steady: sequences/s from the first to the last evaluation",
}
LONGEST_VALUE = 60  # characters of a setting's value that are shown


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
    return truncate(printable(", ".join(values)), LONGEST_VALUE)


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
