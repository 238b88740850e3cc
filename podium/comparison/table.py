"""The comparison as a table in the terminal, and its rows as JSON and CSV; filters, scaling, own against published."""

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from podium.comparison.discover import round_named
from podium.comparison.load import Comparison
from podium.comparison.result import Result
from podium.core.console import UNKNOWN, result_table
from podium.core.errors import UsageError


@dataclass(frozen=True)
class Scaled:
    """One size of a family of systems."""

    result: Result  # of several results of this size the one with the greatest throughput
    throughput: float  # sequences/s of an accelerator, by that of the family's smallest size: 1 where nothing is lost
    # Accelerator-minutes of the smallest size by those of this one: also what larger batches cost in samples.
    time: float


def families(results: Sequence[Result]) -> list[list[Scaled]]:
    """Comparable results of one round, submitter, division and kind of accelerator in two sizes or more, by size."""
    groups: dict[tuple[str | None, ...], dict[int, Scaled]] = {}
    for result in results:
        rate = result.sequences_per_second_per_accelerator
        if rate is None or result.minutes is None or not result.full_size or not result.accelerators:
            continue
        sizes = groups.setdefault((result.round, result.submitter, result.division, result.family), {})
        best = sizes.get(result.accelerators)
        if best is None or rate > best.throughput:
            sizes[result.accelerators] = Scaled(result, rate, result.minutes * result.accelerators)
    return [_relative([sizes[size] for size in sorted(sizes)]) for sizes in groups.values() if len(sizes) > 1]


def _relative(sizes: Sequence[Scaled]) -> list[Scaled]:
    """Sizes with their sequences/s of an accelerator and accelerator-minutes, each in units of the first."""
    first = sizes[0]
    return [Scaled(one.result, one.throughput / first.throughput, first.time / one.time) for one in sizes]


def own_sentences(results: Sequence[Result], others: Sequence[Result] = ()) -> list[str]:
    """How each of one's own results stands against the published ones of the same kind and number of accelerators.

    `others` are more published ones. Of one size those of one's own division count, where there are any; others are
    named. Where none has that number of accelerators, throughput an accelerator is held against the nearest number.
    """
    published = [one for one in (*results, *others) if not one.own and one.full_size and one.minutes is not None]
    return [_sentence(result, published) for result in results if result.own]


def _sentence(result: Result, published: Sequence[Result]) -> str:
    name = f"your {result.system} ({result.hardware('size not known', 'no accelerators')})"
    if not result.full_size:
        return f"{name} did not train BERT-large, and is not held against results that did"
    if result.minutes is None:
        return f"{name} has no run that reached the target"
    alike = [one for one in published if one.family == result.family and one.accelerators]
    if result.family is None or not result.accelerators or not alike:
        return f"{name}: none of the results is of this accelerator, or their sizes are not known"
    told = _length(result)
    if result.evaluation_share is not None:
        told += f"; {result.evaluation_share:.0%} of it is evaluation"
    same = [one for one in alike if one.accelerators == result.accelerators]
    same = [one for one in same if one.division == result.division] or same
    if same:
        best = min(same, key=lambda one: one.counted_minutes())
        ratio = result.counted_minutes() / best.counted_minutes()
        return f"{name} is at {ratio:.2f}× the best published time ({_named(best)}): {told}"
    rate = result.sequences_per_second_per_accelerator
    rated = [(other, one) for one in alike if (other := one.sequences_per_second_per_accelerator)]
    if not rate or not rated:
        return f"{name}: no published result has as many accelerators; {told}"
    size = result.accelerators
    other, nearest = min(rated, key=lambda pair: (abs((pair[1].accelerators or 0) - size), -pair[0]))
    return (
        f"{name} trains {rate:,.1f} sequences/s an accelerator, {rate / other:.2f}× as many as the nearest "
        f"published size, {nearest.accelerators:,} ({_named(nearest)}): {told}"
    )


def _length(result: Result) -> str:
    if result.score_minutes is None:
        return f"{result.minutes:.2f} min, the mean of {len(result.converged)} run(s) and no score yet"
    scaled = "" if result.scaling_factor is None else f" ({result.score_minutes_scaled:.2f} min as the rules scale it)"
    return f"{result.score_minutes:.2f} min{scaled}"


def _named(result: Result) -> str:
    division = "" if result.division == "closed" else f", {result.division or 'division not known'}"
    return f"{result.name}, {result.counted_minutes():.2f} min{division}"


NODE = "node"


class Column(NamedTuple):
    """A column of figures."""

    heading: str
    least_width: int  # of a terminal that shows it
    cell: Callable[[Result, str], str]  # of a result and of what throughput is shown for


COLUMNS = (
    Column("minutes", 0, lambda one, per: _minutes(one)),
    Column("spread", 70, lambda one, per: _spread(one)),
    Column("samples", 110, lambda one, per: _shown(one.samples_to_target, "{:,.0f}")),
    Column("batch", 110, lambda one, per: _shown(one.global_batch_size, "{:,.0f}")),
    Column("seq/s a\n{per}", 50, lambda one, per: _rate_text(one, per)),
    Column("MFU", 70, lambda one, per: _shown(one.utilization, "{:.1%}")),
    Column("eval.", 70, lambda one, per: _shown(one.evaluation_share, "{:.1%}")),
)


def print_comparison(console: Console, comparison: Comparison, per: str, oddities: bool) -> None:
    """The results in their order; how sizes scale; own results against published ones; what is odd, or how much is."""
    results = comparison.results
    for name in dict.fromkeys(one.round for one in results):
        console.print(_table([one for one in results if one.round == name], per, console.width))
    console.print(_marks(results), style="dim")
    scaled = families(results)
    if scaled:
        console.print(_scaling(scaled))
    for sentence in own_sentences(results, comparison.others):
        console.print(f"• {sentence}", markup=False, highlight=False)
    found = [(one, what) for one in results for what in one.oddities]
    if oddities:
        for one, what in found:
            console.print(f"{one.name}: {what}", markup=False, highlight=False, style="dim")
    elif found:
        count = sum(bool(one.oddities) for one in results)
        console.print(
            f"{count} of {len(results)} have something odd in logs or descriptions; see --oddities", style="dim"
        )


def _table(results: Sequence[Result], per: str, width: int) -> Table:
    """Of one round, with the columns that a terminal of this width has room for."""
    columns = [column for column in COLUMNS if width >= column.least_width]
    title = f"{results[0].round or 'own'}: {len(results)} result(s)"
    headings = [column.heading.format(per=per) for column in columns]
    table = result_table(title, ("submitter, system", "accelerators"), headings)
    for one in results:
        table.add_row(_name(one), escape(one.hardware(UNKNOWN)), *(column.cell(one, per) for column in columns))
    return table


def _marks(results: Sequence[Result]) -> str:
    """What the marks in the tables mean, as far as there are any."""
    marks = (
        ("* scaled by the reference convergence points", any(one.scaling_factor is not None for one in results)),
        ("o open division", any(one.division == "open" for one in results)),
        ("n mean of other than ten runs, no score", any(_unscored(one) for one in results)),
        ("r repeats an earlier result", any(one.repeats for one in results)),
        ("s, t spread mostly by samples to target, by throughput", any(one.spread for one in results)),
        (f"{UNKNOWN} not known", True),
    )
    return " · ".join(text for text, there in marks if there)


def _unscored(result: Result) -> bool:
    return result.score_minutes is None and result.minutes is not None


def _name(result: Result) -> str:
    marks = "".join(
        mark
        for mark, there in (("o", result.division == "open"), ("r", result.repeats), ("n", _unscored(result)))
        if there
    )
    return f"{escape(result.submitter)} [bold]{escape(result.system)}[/bold] {marks}".strip()


def _rate_text(result: Result, per: str) -> str:
    rate = result.per_node if per == NODE else result.per_accelerator
    return _shown(rate(result.sequences_per_second), "{:,.1f}")


def _minutes(result: Result) -> str:
    if result.scaling_factor is not None and result.score_minutes is not None:
        return f"{result.score_minutes:.3f}\n{result.score_minutes_scaled:.3f}*"
    return _shown(result.minutes, "{:.3f}")


def _spread(result: Result) -> str:
    if result.spread is None:
        return UNKNOWN
    cause = {"samples": " s", "throughput": " t", None: ""}[result.spread.cause]
    return f"{result.spread.relative:.1%}{cause}"


def _shown(value: float | None, form: str) -> str:
    return UNKNOWN if value is None else form.format(value)


def _scaling(scaled: Sequence[Sequence[Scaled]]) -> Table:
    """Sequences/s an accelerator and accelerator-minutes, of each size against the smallest."""
    figures = ("number", "batch", "minutes", "seq/s", "time")
    table = result_table("Scaling, against a submitter's smallest size", ["round, submitter, accelerator"], figures)
    for family in scaled:
        for number, size in enumerate(family):
            one = size.result
            table.add_row(
                "" if number else escape(f"{one.round or 'own'} {one.submitter}, {one.family}"),
                f"{one.accelerators:,}",
                _shown(one.global_batch_size, "{:,.0f}"),
                _shown(one.minutes, "{:.3f}"),
                f"{size.throughput:.0%}",
                f"{size.time:.0%}",
                end_section=number == len(family) - 1,
            )
    return table


FORMULA = ("=", "+", "-", "@", "\t")  # what a text begins with that a spreadsheet takes for a formula


def rows(results: Sequence[Result]) -> list[dict[str, Any]]:
    """One object a result. What is not known is None; minutes and seconds are not rounded."""
    scaled = {id(size.result): size for family in families(results) for size in family}
    return [
        {
            "round": one.round,
            "submitter": one.submitter,
            "system": one.system,
            "division": one.division,
            "score_minutes": one.score_minutes,
            "score_minutes_scaled": one.score_minutes_scaled,
            "scaling_factor": one.scaling_factor,
            "runs_seconds": [run.seconds for run in one.runs],
            "runs_converged": [run.converged for run in one.runs],
            "runs_samples_to_target": [_whole(run.samples) for run in one.runs],
            "global_batch_size": one.global_batch_size,
            "nodes": one.nodes,
            "accelerators": one.accelerators,
            "accelerator": one.accelerator,
            "accelerator_family": one.family,
            "samples_to_target": one.samples_to_target,
            "samples_trained": one.samples_trained,
            "sequences_per_second": one.sequences_per_second,
            "sequences_per_second_without_evaluation": one.training_sequences_per_second,
            "sequences_per_second_between_evaluations": one.steady_sequences_per_second,
            "sequences_per_second_per_accelerator": one.sequences_per_second_per_accelerator,
            "sequences_per_second_per_node": one.per_node(one.sequences_per_second),
            "mfu": one.utilization,
            "evaluation_share": one.evaluation_share,
            "startup_seconds": one.startup_seconds,
            "spread": None if one.spread is None else one.spread.relative,
            "spread_from_samples": None if one.spread is None else one.spread.samples_share,
            "scaling_efficiency": scaled[id(one)].throughput if id(one) in scaled else None,
            "scaling_efficiency_time": scaled[id(one)].time if id(one) in scaled else None,
            "repeats": one.repeats,
            "full_size": one.full_size,
            "framework": one.description.get("framework"),
            "source": one.source,
            "oddities": list(one.oddities),
        }
        for one in results
    ]


def as_csv(found: Sequence[Mapping[str, Any]]) -> str:
    """Rows with a heading. Lists are joined by blanks; a text is one line, and no formula to a spreadsheet."""
    out = io.StringIO()
    if found:
        writer = csv.DictWriter(out, list(found[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: _cell(value) for key, value in row.items()} for row in found)
    return out.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, list):
        joined = "; " if value and isinstance(value[0], str) else " "
        value = joined.join("" if item is None else str(item) for item in value)
    if isinstance(value, str):
        line = " ".join(value.splitlines())
        return f"'{line}" if line.startswith(FORMULA) else line
    return "" if value is None else value


def _whole(value: float | None) -> float | int | None:
    return int(value) if value is not None and math.isfinite(value) and value == int(value) else value


OWN = "own"


def choose(
    comparison: Comparison, rounds: Sequence[str], accelerators: Sequence[str], divisions: Sequence[str]
) -> Comparison:
    """The results of any of the rounds (`own` for those of none), accelerators and divisions; all where none is named.

    The rest become the comparison's `others`. An accelerator is named by a part of its name or of its family's.
    UsageError for a name that no result has.
    """
    results = comparison.results
    wanted = {OWN if name.lower() == OWN else round_named(name) or name for name in rounds}
    there = sorted({one.round or OWN for one in results})
    for name in sorted(wanted.difference(there)):
        raise UsageError(f"--round {name}: no result is of it; there are {', '.join(there)}")
    parts = [part.lower() for part in accelerators]
    for part in parts:
        if not any(_has(one, part) for one in results):
            known = sorted({one.family for one in results if one.family is not None})
            raise UsageError(f"--accelerator {part}: no result has one; there are {', '.join(known) or 'none'}")
    for division in divisions:
        if division not in ("closed", "open"):
            raise UsageError(f"--division {division}: allowed is closed or open")
    chosen, others = list[Result](), list(comparison.others)
    for one in results:
        of_round = not wanted or (one.round or OWN) in wanted
        of_accelerator = not parts or any(_has(one, part) for part in parts)
        of_division = not divisions or one.division in divisions
        (chosen if of_round and of_accelerator and of_division else others).append(one)
    return replace(comparison, results=tuple(chosen), others=tuple(others))


def _has(result: Result, part: str) -> bool:
    return any(part in name.lower() for name in (result.accelerator, result.family) if name is not None)
