"""A comparison for people: a table in the terminal, and what scales how."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from podium.comparison.efficiency import Scaled, families
from podium.comparison.gathering import Comparison
from podium.comparison.own import own_sentences
from podium.comparison.result import Result
from podium.console import UNKNOWN, result_table

NODE = "node"


class Column(NamedTuple):
    """A column of figures."""

    heading: str
    least_width: int
    """Of a terminal that shows it."""
    cell: Callable[[Result, str], str]
    """Of a result and of what throughput is shown for."""


COLUMNS = (
    Column("minutes", 0, lambda one, per: _minutes(one)),
    Column("spread", 70, lambda one, per: _spread(one)),
    Column("samples", 110, lambda one, per: _shown(one.samples_to_target, "{:,.0f}")),
    Column("batch", 110, lambda one, per: _shown(one.global_batch_size, "{:,.0f}")),
    Column("seq/s a\n{per}", 50, lambda one, per: _rate(one, per)),
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
        table.add_row(_name(one), escape(accelerators(one)), *(column.cell(one, per) for column in columns))
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


def _rate(result: Result, per: str) -> str:
    rate = result.per_node if per == NODE else result.per_accelerator
    return _shown(rate(result.sequences_per_second), "{:,.1f}")


def accelerators(result: Result) -> str:
    """Such as 8×NVIDIA A100 SXM."""
    if result.accelerators == 0:
        return "none (CPU)"
    return UNKNOWN if result.accelerators is None else f"{result.accelerators:,}×{result.family or 'unknown'}"


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
