"""Compares two accelerators over all benchmarks that both ran: ratios of times, and their geometric mean.

A ratio is of two results of one benchmark with the same number of accelerators, division and quality targets: of each
side the fastest. The geometric mean is over benchmarks, each of which counts once, whatever its number of sizes.
"""

import operator
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from podium.comparison.cost import Cost
from podium.comparison.result import Result
from podium.comparison.table import select_accelerators
from podium.core.console import UNKNOWN, print_figures, print_line, result_table
from podium.core.errors import UsageError
from podium.core.text import format_list, printable, shorten_middle
from podium.mllog.benchmarks import round_number

NEWEST = (1 << 31,)
MAX_NAMES = 12  # of accelerators in a message


@dataclass(frozen=True)
class Pair:
    """The fastest results of both sides in one benchmark and at one number of accelerators."""

    a: Result
    b: Result
    a_cost: Cost | None = None
    b_cost: Cost | None = None

    @property
    def time_ratio(self) -> float:
        """Time of A divided by that of B: below 1, A is faster."""
        return self.a.ranking_minutes() / self.b.ranking_minutes()

    @property
    def energy_ratio(self) -> float | None:
        """Energy of A divided by that of B; None if one is unknown."""
        return _ratio(self.a.energy_joules, self.b.energy_joules)

    @property
    def cost_ratio(self) -> float | None:
        """Cost of A divided by that of B; None if one is unknown."""
        both = (self.a_cost, self.b_cost)
        return _ratio(*(None if cost is None else cost.to_train for cost in both))


Ratio = Callable[[Pair], float | None]
TIME: Ratio = operator.attrgetter("time_ratio")
ENERGY: Ratio = operator.attrgetter("energy_ratio")
COST: Ratio = operator.attrgetter("cost_ratio")


@dataclass(frozen=True)
class Versus:
    """Two accelerators, by the texts that selected them."""

    a: str
    b: str
    a_families: tuple[str, ...]  # accelerators that the text selects, by model and memory
    b_families: tuple[str, ...]
    pairs: tuple[Pair, ...]  # by benchmark and number of accelerators
    omitted: Mapping[str, str]  # what both ran and is left out, by benchmark, and why
    left_out: tuple[Sequence[str], Sequence[str]] = ((), ())  # accelerators that differ in memory, of A and of B

    @property
    def benchmarks(self) -> tuple[str, ...]:
        """The benchmarks that the comparison rests on."""
        return tuple(dict.fromkeys(pair.a.benchmark for pair in self.pairs))

    def mean(self, ratio: Ratio) -> float | None:
        """Geometric mean over benchmarks of the geometric means over sizes; None if no pair has the ratio."""
        means = []
        for benchmark in self.benchmarks:
            found = [value for pair in self.pairs if pair.a.benchmark == benchmark and (value := ratio(pair))]
            if found:
                means.append(geometric_mean(found))
        return geometric_mean(means) if means else None


def compare_accelerators(
    a: str, b: str, results: Sequence[Result], costs: Sequence[Cost | None] | None = None
) -> Versus:
    """Compare the results of two accelerators, named by a part of their names; `costs` are those of the results.

    Raises UsageError if a name selects no result, or if both select the same accelerator.
    """
    (side_a, left_a), (side_b, left_b) = (_one_memory_size(_select(text, results)) for text in (a, b))
    a_families, b_families = (tuple(sorted({one.variant or "" for one in side})) for side in (side_a, side_b))
    common = set(a_families).intersection(b_families)
    if common:
        names = printable(format_list(sorted(common), MAX_NAMES))
        raise UsageError(f"--versus {printable(a)} {printable(b)}: both select {names}; name others")
    by_result = {id(one): cost for one, cost in zip(results, costs or (), strict=bool(costs))}
    pairs: list[Pair] = []
    omitted: dict[str, str] = {}
    for benchmark in sorted({one.benchmark for one in side_a} & {one.benchmark for one in side_b}):
        of_a, of_b = ([one for one in side if one.benchmark == benchmark] for side in (side_a, side_b))
        found, reasons = _pairs(of_a, of_b)
        if reasons:
            omitted[benchmark] = "; ".join(reasons)
        for one, other in found:
            pairs.append(Pair(one, other, by_result.get(id(one)), by_result.get(id(other))))
    return Versus(a, b, a_families, b_families, tuple(pairs), omitted, (left_a, left_b))


def _one_memory_size(results: Sequence[Result]) -> tuple[list[Result], tuple[str, ...]]:
    """Return results of one memory size for each model, that with the most results, and the variants left out.

    Results that do not state the size stay.
    """
    sizes: dict[str | None, Counter[int]] = {}
    for one in results:
        if one.memory_gb is not None:
            sizes.setdefault(one.family, Counter())[one.memory_gb] += 1
    usual = {family: max(found, key=lambda size: (found[size], size)) for family, found in sizes.items()}
    kept = [one for one in results if one.memory_gb is None or one.memory_gb == usual[one.family]]
    left = {one.variant or "" for one in results} - {one.variant or "" for one in kept}
    return kept, tuple(sorted(left))


def _select(text: str, results: Sequence[Result]) -> list[Result]:
    """Return comparable results whose accelerator the text selects."""
    usable = [one for one in results if one.minutes is not None and one.comparable and one.accelerators and one.family]
    found = select_accelerators(text, usable)
    if not found:
        known = sorted({one.family for one in usable if one.family is not None})
        raise UsageError(
            f"--versus {printable(text)}: no result with a time has this accelerator; "
            f"there are {printable(format_list(known, MAX_NAMES)) or 'none'}"
        )
    return found


def _pairs(side_a: Sequence[Result], side_b: Sequence[Result]) -> tuple[list[tuple[Result, Result]], list[str]]:
    """Return the pair of each division and number of accelerators that both sides have, and why others are left out."""
    groups: list[dict[tuple[str, int], list[Result]]] = [{}, {}]
    for side, group in zip((side_a, side_b), groups, strict=True):
        for one in side:
            group.setdefault((one.division or "", one.accelerators or 0), []).append(one)
    common = sorted(groups[0].keys() & groups[1].keys(), key=lambda key: (key[1], key[0]))
    if not common:
        sizes = [sorted({size for _, size in group}) for group in groups]
        if set(sizes[0]).intersection(sizes[1]):
            return [], ["the results with as many accelerators are of different divisions"]
        named = " and ".join(format_list([f"{size:,}" for size in side], 8) for side in sizes)
        return [], [f"no number of accelerators in common ({named})"]
    found: list[tuple[Result, Result]] = []
    reasons: list[str] = []
    for key in common:
        of_a, of_b = (group[key] for group in groups)
        rounds = {_round(one) for one in of_a} & {_round(one) for one in of_b}
        if rounds:  # the same round: no progress of software between the two
            of_a, of_b = ([one for one in side if _round(one) == max(rounds)] for side in (of_a, of_b))
        else:
            of_a, of_b = ([one for one in s if _round(one) == max(map(_round, s))] for s in (of_a, of_b))
        best_a, best_b = (min(side, key=lambda one: one.ranking_minutes()) for side in (of_a, of_b))
        if _targets(best_a) == _targets(best_b):
            found.append((best_a, best_b))
        else:
            names = f"{best_a.round or 'own'} and {best_b.round or 'own'}"
            reasons.append(f"different targets in {names} ({key[1]:,} accelerators)")
    return found, reasons


def _round(result: Result) -> tuple[int, ...]:
    """Return the round as a sort key; local results are the newest."""
    return NEWEST if result.round is None else round_number(result.round)


def _targets(result: Result) -> object:
    batch = result.global_batch_size
    return None if result.rules is None else result.rules.targets_in(result.round, batch)


def _ratio(numerator: float | None, denominator: float | None) -> float | None:
    return None if numerator is None or not denominator else numerator / denominator


def describe_versus(versus: Versus) -> list[str]:
    """Return sentences: which side is faster, by the geometric mean over how many benchmarks, and what is left out."""
    a, b = printable(versus.a), printable(versus.b)
    lines = []
    mean = versus.mean(TIME)
    if mean is None:
        lines.append(f"{a} and {b} have no pair of results to compare.")
    else:
        count, pairs = len(versus.benchmarks), len(versus.pairs)
        ratios = [pair.time_ratio for pair in versus.pairs]
        rests = (
            f"geometric mean over {count} benchmark{'s' * (count != 1)}, {pairs} pair{'s' * (pairs != 1)} of results"
        )
        lines.append(f"{a} takes {mean:.3f} times as long as {b} ({_span(ratios)}; {rests}).")
        for what, ratio in (("energy", ENERGY), ("money", COST)):
            known = [value for pair in versus.pairs if (value := ratio(pair)) is not None]
            found = versus.mean(ratio)
            if found is not None:
                rests = f"over {len(known)} pair{'s' * (len(known) != 1)}"
                lines.append(f"{a} takes {found:.3f} times the {what} of {b} ({_span(known)}; {rests}).")
        if count == 1:
            lines.append("One benchmark is no general comparison: the ratio depends on the model.")
        differing = sorted({pair.a.benchmark for pair in versus.pairs if pair.a.round != pair.b.round})
        if differing:
            lines.append(f"Different rounds, and so software of different age, in {', '.join(differing)}.")
    for families, text in ((versus.a_families, a), (versus.b_families, b)):
        if len(families) > 1:
            lines.append(f"{text} selects {printable(format_list(families, MAX_NAMES))}.")
    for side, (left, text) in enumerate(zip(versus.left_out, (a, b), strict=True)):
        if left:
            names = printable(format_list(left, MAX_NAMES))
            arguments = [versus.a, versus.b]
            arguments[side] = left[0]
            lines.append(
                f"{text}: {names} left out: memory of another size. To compare "
                f"{'it' if len(left) == 1 else 'one of them'}: --versus {printable(shlex.join(arguments))}"
            )
    for benchmark, reason in versus.omitted.items():
        lines.append(f"{printable(benchmark)}: left out: {reason}.")
    return lines


def _span(ratios: Sequence[float]) -> str:
    low, high = min(ratios), max(ratios)
    return f"{low:.3f}" if low == high else f"{low:.3f} to {high:.3f}"


def print_versus(console: Console, versus: Versus) -> None:
    """Print a row for each pair, and the sentences."""
    if versus.pairs:
        print_figures(console, _table(versus, console.width))
    for line in describe_versus(versus):
        print_line(console, line)


def _table(versus: Versus, width: int) -> Table:
    optional = (("energy\nA / B", ENERGY), ("cost\nA / B", COST))
    shown = [(heading, ratio) for heading, ratio in optional if any(ratio(pair) for pair in versus.pairs)]
    # Of the headings only the title has the accelerators' names, which users may choose at any length.
    numeric = ["accel.", "A\nminutes", "B\nminutes", "time\nA / B", *(heading for heading, _ in shown)]
    table = result_table(f"A: {printable(versus.a)}, B: {printable(versus.b)}", (), ())
    for heading in ("benchmark", "round", "A, B"):
        table.add_column(heading, no_wrap=heading == "round")  # names are folded before a figure is cut
    for heading in numeric:
        table.add_column(heading, justify="right", no_wrap=True)
    # Names have what the other columns leave: rounds, accelerators and minutes 38 characters, ratios 7 each.
    room = max(width - 38 - 7 * (1 + len(shown)), 24)
    benchmark = min(max(len(pair.a.benchmark) for pair in versus.pairs), max(room // 2, room - 18))
    room -= max(benchmark, len("benchmark"))
    for pair in versus.pairs:
        rounds = dict.fromkeys(one.round or "own" for one in (pair.a, pair.b))
        table.add_row(
            Text(printable(shorten_middle(pair.a.benchmark, benchmark))),
            "\n".join(rounds),
            Text("\n".join(printable(shorten_middle(one.short_name, room)) for one in (pair.a, pair.b))),
            f"{pair.a.accelerators:,}",
            f"{pair.a.ranking_minutes():,.3f}",
            f"{pair.b.ranking_minutes():,.3f}",
            f"{pair.time_ratio:.3f}",
            *(UNKNOWN if (value := ratio(pair)) is None else f"{value:.3f}" for _, ratio in shown),
        )
    return table


def as_json(versus: Versus) -> dict[str, Any]:
    """Return the comparison as a JSON object; ratios are of A to B."""
    means = {
        "time_ratio": versus.mean(TIME),
        "energy_ratio": versus.mean(ENERGY),
        "cost_ratio": versus.mean(COST),
    }
    return {
        "a": versus.a,
        "b": versus.b,
        "a_accelerators": list(versus.a_families),
        "b_accelerators": list(versus.b_families),
        "benchmarks": list(versus.benchmarks),
        **means,
        "pairs": [
            {
                "benchmark": pair.a.benchmark,
                "division": pair.a.division,
                "accelerators_count": pair.a.accelerators,
                **{
                    f"{side}_{name}": value
                    for side, one in (("a", pair.a), ("b", pair.b))
                    for name, value in (
                        ("round", one.round),
                        ("submitter", one.submitter),
                        ("system", one.system),
                        ("time_to_train", one.ranking_minutes()),
                    )
                },
                "time_ratio": pair.time_ratio,
                "energy_ratio": pair.energy_ratio,
                "cost_ratio": pair.cost_ratio,
            }
            for pair in versus.pairs
        ],
        "omitted": dict(versus.omitted),
        "notes": describe_versus(versus),
    }
