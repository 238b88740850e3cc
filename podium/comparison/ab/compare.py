"""A/B comparison of two sides: whether they differ, by how much, in which settings, and what limits the verdict."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from podium.comparison.ab.operands import Difference, Side, differences, mixed_settings, settings_from_logs
from podium.core.console import (
    UNKNOWN,
    describe_left_out,
    least_width,
    print_figures,
    print_line,
    result_table,
    text_table,
)
from podium.core.errors import UsageError
from podium.core.text import format_list, printable, truncate
from podium.mllog.run import Run
from podium.mllog.significance import RcpTest, Summary, Welch, format_p_value, rcp_test, summarize, welch_test


@dataclass(frozen=True)
class Quantity:
    """One quantity of the runs that converged, on both sides."""

    kind: str  # a key of QUANTITY_KINDS
    a: Summary
    b: Summary
    test: Welch | str  # Welch's t-test, or the reason why there is none


def verdict(a: str, b: str, quantities: Mapping[str, Quantity]) -> str:
    """Return whether side `a` is faster than side `b`, and whether samples or throughput are the cause."""
    time, cause = quantities["seconds"].test, _describe_cause(quantities)
    names = f"A ({a})", f"B ({b})"
    if isinstance(time, str):
        return f"Whether {names[0]} is faster than {names[1]} cannot be tested: {time}.{cause}"
    low, high = time.interval or (0.0, math.inf)
    confidence = f"{low:.3f} to {high:.3f} with 95% confidence, " if math.isfinite(high) else ""
    takes = f"{time.ratio:.3f} times as long ({confidence}{format_p_value(time.p)})"
    if not time.significant:
        return (
            f"No significant difference in time-to-train between {names[0]} and {names[1]}: A takes {takes}. "
            f"{_describe_detectable(time)}{cause}"
        )
    direction = "faster" if time.ratio < 1 else "slower"
    return f"{names[0]} is {direction} than {names[1]}: it takes {takes}.{cause}"


def _describe_detectable(test: Welch) -> str:
    if test.detectable_ratio is None:
        return "Even a hundredfold difference would rarely be detected by this number of runs."
    percent = 100 * (test.detectable_ratio - 1)
    formatted = f"{percent:,.0f}" if percent >= 10 else f"{percent:.2g}"
    return f"A difference of {formatted}% would be detected in four of five such comparisons."


def _describe_cause(quantities: Mapping[str, Quantity]) -> str:
    """Return a sentence on the two factors of the time: samples to the target and throughput."""
    parts = []
    for kind, verb, what in (
        ("samples", "needs", "samples"),
        ("samples_per_second", "trains", "samples per second"),
    ):
        test = quantities[kind].test
        if isinstance(test, Welch):
            more = "more" if test.ratio > 1 else "fewer"
            if test.significant:
                amount = f"significantly {more} {what}"
            else:
                amount = f"as many {what}, with no significant difference"
            parts.append(f"{verb} {amount} ({test.ratio:.3f}, {format_p_value(test.p)})")
    return f" A {', and '.join(parts)}." if parts else ""


FEW_RUNS = 5  # a side with fewer runs gets a warning: a t-test has little power then
RECIPE = "recipe"  # a name for a set of other settings, so that it is not counted as a further difference
MAX_LISTED_KEYS = 8  # settings that a warning lists


@dataclass(frozen=True)
class QuantityKind:
    """A quantity of runs that is compared."""

    title: str
    unit: str
    of: Callable[[Run], float | None]  # the value of a run; None if its log does not contain it


# Time, samples and throughput to the target; then throughput without evaluation, and without start-up.
QUANTITY_KINDS: Mapping[str, QuantityKind] = MappingProxyType(
    {
        "seconds": QuantityKind("seconds", "s", lambda run: run.seconds),
        "samples": QuantityKind("samples", "", lambda run: run.samples),
        "samples_per_second": QuantityKind("samples/s", "/s", lambda run: run.rate),
        "samples_per_second_without_evaluation": QuantityKind("in training", "/s", lambda run: run.training_rate),
        "samples_per_second_between_evaluations": QuantityKind("steady", "/s", lambda run: run.steady_rate),
    }
)


@dataclass(frozen=True)
class ABComparison:
    """The result of comparing side A with side B."""

    a: Side
    b: Side
    verdict: str
    quantities: tuple[Quantity, ...]  # in the order of QUANTITY_KINDS
    # MLPerf's test of A's samples with B as the reference, or the reason why there is none.
    a_rcp_test: RcpTest | str
    b_rcp_test: RcpTest | str
    differing: tuple[Difference, ...]  # settings and system properties in which the sides differ
    warnings: tuple[str, ...]  # limits of the verdict, as sentence fragments
    notes: tuple[str, ...]


def compare_sides(a: Side, b: Side) -> ABComparison:
    """Compare side A with side B. Raises UsageError if one of them trained BERT-large and the other another size."""
    if a.full_size != b.full_size:
        small, large = ("A", "B") if b.full_size else ("B", "A")
        raise UsageError(
            f"--ab {a.operand!r} {b.operand!r}: {small} did not train BERT-large and {large} did: "
            "they cannot be compared"
        )
    quantities = tuple(_quantity(kind, a, b) for kind in QUANTITY_KINDS)
    # A configuration and a log have different keys, so both sides' settings must be of the same kind.
    both = a.configured and b.configured
    settings = [side.settings if both else settings_from_logs(side.runs) for side in (a, b)]
    differing = differences({**settings[0], **a.facts}, {**settings[1], **b.facts})
    return ABComparison(
        a,
        b,
        f"A ({a.name}) and B ({b.name}) are the same runs: there is nothing to compare."
        if len(a.runs) == len(b.runs) == _count_common_runs(a, b) > 0
        else verdict(a.name, b.name, {quantity.kind: quantity for quantity in quantities}),
        quantities,
        _rcp_test(a, b),
        _rcp_test(b, a),
        differing,
        tuple(_warnings(a, b, quantities, differing)),
        tuple(_notes(a, b)),
    )


def converged(side: Side) -> tuple[Run, ...]:
    """Return the runs of a side that reached the target; only these are compared."""
    return tuple(run for run in side.runs if run.converged)


def _quantity(kind: str, a: Side, b: Side) -> Quantity:
    values = [
        [value for run in converged(side) if (value := QUANTITY_KINDS[kind].of(run)) is not None] for side in (a, b)
    ]
    summaries = summarize(values[0]), summarize(values[1])
    return Quantity(kind, *summaries, welch_test(*summaries))


def _rcp_test(side: Side, reference: Side) -> RcpTest | str:
    """Return MLPerf's test of a side's samples, or the reason why there is none."""
    samples = [[run.samples for run in converged(one) if run.samples is not None] for one in (side, reference)]
    if any(len(known) < len(converged(one)) for known, one in zip(samples, (side, reference), strict=True)):
        return "not every log has the samples to the target"
    return rcp_test(samples[0], len(side.runs) - len(converged(side)), samples[1])


def _warnings(a: Side, b: Side, quantities: Sequence[Quantity], differing: Sequence[Difference]) -> Iterator[str]:
    both = _count_common_runs(a, b)
    if both:
        yield f"{both} run{'s are' if both > 1 else ' is'} on both sides, where a test needs independent ones"
    for name, side in (("A", a), ("B", b)):
        runs, left_out = len(converged(side)), len(side.runs) - len(converged(side))
        if left_out:
            all_runs = f"{left_out} of {name}'s {len(side.runs)} runs"
            yield f"{all_runs} did not reach the target and are left out, in {name}'s favour"
        if runs < FEW_RUNS:
            yield f"{name} has few runs ({runs}): with these, a test detects only large differences"
        mixed = mixed_settings({**side.settings, **side.facts})
        if mixed:
            yield f"{name}'s runs do not have the same settings: they differ in {format_list(mixed, MAX_LISTED_KEYS)}"
    for quantity in quantities:
        for name, side, found in (("A", a, quantity.a), ("B", b, quantity.b)):
            if 0 < found.n < len(converged(side)):
                title = QUANTITY_KINDS[quantity.kind].title
                yield f"{title}: known of {found.n} of {name}'s {len(converged(side))} runs"
            if quantity.kind == "samples" and found.n > 1 and found.sd == 0:
                yield (
                    f"all runs of {name} need the same {found.mean:,.0f} samples: evaluations are too far apart to "
                    "measure their spread"
                )
    keys = [one.key for one in differing if one.key != RECIPE]
    if len(keys) > 1:
        yield (
            f"the sides differ in {len(keys)} settings, and the test cannot separate their effects: "
            f"{format_list(keys, MAX_LISTED_KEYS)}"
        )


def _notes(a: Side, b: Side) -> Iterator[str]:
    sides = (("A", a), ("B", b))
    unknown = [name for name, side in sides if not side.configured]
    if len(unknown) == 1:
        yield f"the settings in the logs are compared: {unknown[0]}'s configuration is not known"
    yield from (f"{name}: {note}" for name, side in sides for note in side.notes)


def _count_common_runs(a: Side, b: Side) -> int:
    """Count A's runs that are also B's: with the same log, or the same seconds (to 1 ms) and samples."""
    digests = {run.digest for run in b.runs}
    fingerprints = {(run.seconds, run.samples) for run in converged(b)}
    return sum(
        run.digest in digests or (run.converged and (run.seconds, run.samples) in fingerprints) for run in a.runs
    )


MAX_DIFFERENCES = 24  # in the terminal; the JSON has all of them
# Explanations of the titles of QUANTITY_KINDS that need one.
EXPLANATIONS = {
    "samples_per_second_without_evaluation": "in training: samples/s without the time in evaluation",
    "samples_per_second_between_evaluations": "steady: samples/s from the first to the last evaluation",
}
MAX_VALUE_LENGTH = 60  # characters of a setting's value in the terminal


def as_json(ab: ABComparison) -> dict[str, Any]:
    """Return the comparison as one JSON object; unknown values are null, never NaN."""
    return {
        "verdict": ab.verdict,
        "a": _side_json(ab.a),
        "b": _side_json(ab.b),
        "quantities": {one.kind: _quantity_json(one) for one in ab.quantities},
        "rcp_test": {"a_needs_fewer": _rcp_test_json(ab.a_rcp_test), "b_needs_fewer": _rcp_test_json(ab.b_rcp_test)},
        "differing": [asdict(one) for one in ab.differing],
        "warnings": list(ab.warnings),
        "notes": list(ab.notes),
    }


def print_ab(console: Console, ab: ABComparison) -> None:
    """Print the verdict, the quantities, MLPerf's test, the differing settings, warnings and notes."""
    print_line(console, ab.verdict, style="bold")
    table, left_out = _table(ab, console.width)
    print_figures(console, table)
    if left_out:
        print_line(console, describe_left_out(left_out, "--json"), style="dim")
    print_line(console, "A/B: ratio of means, 95% interval (Fieller); p: Welch's t-test, two-sided", style="dim")
    for one in ab.quantities:
        if one.kind in EXPLANATIONS and one.a.n + one.b.n:
            print_line(console, EXPLANATIONS[one.kind], style="dim")
    print_line(console, _describe_rcp_test(ab))
    if ab.differing:
        console.print(_differences(ab.differing))
    else:
        print_line(console, "No known setting differs.")
    for warning in ab.warnings:
        print_line(console, f"! {warning}", style="yellow")
    for note in ab.notes:
        print_line(console, note)


# The statistics of a side, and those of them that every terminal shows.
STATISTICS = ("n", "mean", "sd", "median")
NARROW = ("n", "mean")


def _table(ab: ABComparison, width: int) -> tuple[Table, tuple[str, ...]]:
    """Return the table of the quantities that fits a width, and the statistics that it leaves out.

    In a narrow terminal the interval is below the ratio, and then the statistics but NARROW are left out.
    """
    table = _quantities_table(ab, STATISTICS, interval_below=False)
    if least_width(table) > width:
        table = _quantities_table(ab, STATISTICS, interval_below=True)
    if least_width(table) <= width:
        return table, ()
    left_out = tuple(name for name in STATISTICS if name not in NARROW)
    return _quantities_table(ab, NARROW, interval_below=True), left_out


def _quantities_table(ab: ABComparison, statistics: Sequence[str], interval_below: bool) -> Table:
    """Return the table with these statistics; with `interval_below` the interval of a ratio is in the row of B."""
    shown = [one for one in ab.quantities if one.a.n + one.b.n]
    table = result_table(None, (), ())
    titles = max((len(QUANTITY_KINDS[one.kind].title) for one in shown), default=1)
    table.add_column("", no_wrap=True, min_width=titles)
    for heading in ("", *statistics, "A/B", "p"):
        table.add_column(heading, justify="right", no_wrap=True)
    for quantity in shown:
        scale = max(abs(one.mean or 0.0) for one in (quantity.a, quantity.b))
        ratio, interval, p = UNKNOWN, "", Text(UNKNOWN)
        if isinstance(quantity.test, Welch):
            ends = quantity.test.interval
            ratio = f"{quantity.test.ratio:.3f}"
            interval = f"({'no interval' if ends is None else f'{ends[0]:.3f}–{ends[1]:.3f}'})"
            style = "bold" if quantity.test.significant else ""
            p = Text(format_p_value(quantity.test.p).removeprefix("p ").removeprefix("= "), style=style)
        if not interval_below:
            ratio, interval = f"{ratio} {interval}".strip(), ""
        a, b = (dict(zip(STATISTICS, _summary_cells(*one, scale), strict=True)) for one in _sides(ab, quantity))
        table.add_row(QUANTITY_KINDS[quantity.kind].title, "A", *(a[name] for name in statistics), ratio, p)
        table.add_row("", "B", *(b[name] for name in statistics), interval, "")
    return table


def _sides(ab: ABComparison, quantity: Quantity) -> tuple[tuple[Summary, Side], tuple[Summary, Side]]:
    return (quantity.a, ab.a), (quantity.b, ab.b)


def _summary_cells(one: Summary, side: Side, scale: float) -> list[str]:
    """Format n, mean, standard deviation and median."""
    runs = len(side.runs)
    n = f"{one.n}" if one.n == runs else f"{one.n} of {runs}"
    return [n, *("–" if value is None else _format_number(value, scale) for value in (one.mean, one.sd, one.median))]


def _format_number(value: float, scale: float) -> str:
    """Format a value with the number of decimals that suits a mean of size `scale`."""
    size = abs(scale)
    return f"{value:.3e}" if size >= 1e12 else f"{value:,.{0 if size >= 1e4 else 1 if size >= 1e3 else 2}f}"


def _describe_rcp_test(ab: ABComparison) -> str:
    """Return a sentence on MLPerf's test of the side that needs fewer samples."""
    tests = {"A": ab.a_rcp_test, "B": ab.b_rcp_test}
    found = {name: test for name, test in tests.items() if isinstance(test, RcpTest) and test.mean <= test.reference}
    if not found:
        reason = next((test for test in tests.values() if isinstance(test, str)), "neither side needs fewer")
        return f"MLPerf's test of the samples (olympic, pooled, one-sided): none, since {reason}."
    name, test = next(iter(found.items()))
    other = "B" if name == "A" else "A"
    needs = "needs significantly fewer" if test.significant else "does not need significantly fewer"
    p = format_p_value(test.p)
    return (
        f"MLPerf's test of the samples (olympic, pooled, one-sided): {name} {needs} than {other}, "
        f"{test.mean:,.0f} against {test.reference:,.0f} ({p}; significant below {test.least:,.0f})."
    )


def _differences(differing: tuple[Difference, ...]) -> Table:
    table = text_table("differs", "A", "B", no_wrap="differs")
    for one in differing[:MAX_DIFFERENCES]:
        table.add_row(Text(printable(one.key)), *(Text(_format_values(values)) for values in (one.a, one.b)))
    if len(differing) > MAX_DIFFERENCES:
        table.add_row(f"and {len(differing) - MAX_DIFFERENCES:,} more", "", "")
    return table


def _format_values(values: tuple[str, ...]) -> str:
    return truncate(printable(", ".join(values)), MAX_VALUE_LENGTH)


def _side_json(side: Side) -> dict[str, Any]:
    return {
        "asked": side.operand,
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
        "unit": QUANTITY_KINDS[one.kind].unit,
        "a": asdict(one.a),
        "b": asdict(one.b),
        "welch": None if found is None else {**asdict(found), "significant": found.significant},
        "untested": one.test if isinstance(one.test, str) else None,
    }


def _rcp_test_json(found: RcpTest | str) -> dict[str, Any]:
    if isinstance(found, str):
        return {"p": None, "untested": found}
    return {**asdict(found), "significant": found.significant, "untested": None}
