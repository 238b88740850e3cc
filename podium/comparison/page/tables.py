"""Tables of the comparison page."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from podium.comparison.cost import Cost, Costs
from podium.comparison.page.charts import TimeSpent, time_spent
from podium.comparison.result import Result
from podium.comparison.table import Scaled
from podium.html.table import Cell, Column, Table, Value, number, share, text

UNKNOWN = "unknown"
Row = TypeVar("Row")
Columns = Sequence[tuple[Column, Callable[[Row], Value]]]

_NAMES: Columns[Result] = (
    (text("System"), lambda result: result.system),
    (text("Submitter", choices=True), lambda result: result.submitter),
    (text("Round", choices=True), lambda result: result.round or "own"),
)
_RESULTS: Columns[Result] = (
    (text("Division", choices=True, missing=UNKNOWN), lambda result: result.division),
    (number("Accel.", missing=UNKNOWN), lambda result: result.accelerators),
    (text("Accelerator", choices=True, missing=UNKNOWN), lambda result: _accelerator(result)),
    (
        number("Score (min)", 3, "as it counts: scaled where the rules scale it"),
        lambda result: result.score_minutes_scaled,
    ),
    (number("Measured (min)", 3, "before it is scaled"), lambda result: result.score_minutes),
    (
        share("Spread", help="standard deviation of the runs' times by their mean"),
        lambda result: result.spread.relative if result.spread else None,
    ),
    (
        text("Cause", "whether the runs' times differ by the samples to the target or by the throughput"),
        lambda result: result.spread.cause if result.spread else None,
    ),
    (number("Samples to target", help="mean of the runs that converged"), lambda result: result.samples_to_target),
    (number("Batch size"), lambda result: result.global_batch_size),
    (number("Seq/s", 0, "samples to the target by time, evaluation included"), lambda r: r.sequences_per_second),
    (number("Seq/s per accel.", 1), lambda result: result.sequences_per_second_per_accelerator),
    (
        share("MFU", help="of the accelerator's peak; unknown where that is not known", missing=UNKNOWN),
        lambda result: result.utilization,
    ),
    (share("Evaluation", help="of the runs' time", missing=UNKNOWN), lambda result: result.evaluation_share),
    (
        number("Runs", help="that converged, of all"),
        lambda result: Cell(f"{len(result.converged)} of {len(result.runs)}", float(len(result.converged))),
    ),
    (text("Same runs as", "the earlier result that these runs were handed in as"), lambda result: result.repeats),
)


def results_table(title: str, results: Sequence[Result], caption: str = "") -> Table:
    return _table(title, _RESULTS, [(result, result) for result in results], caption)


def time_table(results: Sequence[Result]) -> Table:
    """Where the time went, in seconds, for each result of which a run converged."""
    columns: Columns[TimeSpent] = (
        (number("Run (s)", 1), lambda spent: spent.seconds),
        (number("Starting (s)", 1, missing=UNKNOWN), lambda spent: spent.starting),
        (number("Training (s)", 1, missing=UNKNOWN), lambda spent: spent.training),
        (number("Evaluation (s)", 1, missing=UNKNOWN), lambda spent: spent.evaluation),
        (number("After the target (s)", 1, missing=UNKNOWN), lambda spent: spent.closing),
        (number("Initialisation, before the clock (s)", 1, missing=UNKNOWN), lambda spent: spent.initialisation),
    )
    rows = [(result, spent) for result in results if (spent := time_spent(result)) is not None]
    return _table("Time of every result", columns, rows, "Means of the runs that converged.")


def scaling_table(scaled: Sequence[Sequence[Scaled]]) -> Table:
    """A row a size, with what is left of the smallest size's speed."""
    columns: Columns[Scaled] = (
        (text("Accelerator", choices=True, missing=UNKNOWN), lambda size: _accelerator(size.result)),
        (number("Accel."), lambda size: size.result.accelerators),
        (number("Batch size"), lambda size: size.result.global_batch_size),
        (number("Minutes", 3), lambda size: size.result.minutes),
        (share("Seq/s per accel.", help="of that of the smallest size"), lambda size: size.throughput),
        (share("Time", help="accelerator-minutes of the smallest size by those of this one"), lambda size: size.time),
    )
    caption = "Of submitters with several sizes of one kind of accelerator, against their smallest."
    return _table("Scaling", columns, [(size.result, size) for family in scaled for size in family], caption)


def cost_table(results: Sequence[Result], costs: Costs) -> Table:
    """A row for each result whose cost is known."""
    columns: Columns[Cost] = (
        (number(f"{costs.currency} to train", 2, "once, by the score as measured"), lambda cost: cost.to_train),
        (number(f"{costs.currency} an hour", 2, "of the whole system"), lambda cost: cost.per_hour),
        (number(f"Samples per {costs.currency}"), lambda cost: cost.samples_per_unit),
    )
    rows = [(result, cost) for result, cost in zip(results, costs.costs, strict=True) if cost is not None]
    notes = ("at the prices that were given", *costs.notes)
    return _table("Cost", columns, rows, " ".join(f"{note[:1].upper()}{note[1:]}." for note in notes))


def oddities_table(results: Sequence[Result]) -> Table:
    """A row an oddity."""
    columns: Columns[str] = ((text("What is odd", long=True), str),)
    rows = [(result, odd) for result in results for odd in result.oddities]
    return replace(_table("What does not fit together", columns, rows), marked=())


def _table(title: str, columns: Columns[Row], rows: Sequence[tuple[Result, Row]], caption: str = "") -> Table:
    """A row for each pair: the result's names, and what the columns show of the other; own results are marked."""
    return Table(
        title,
        [column for column, _ in (*_NAMES, *columns)],
        [[*(cell(result) for _, cell in _NAMES), *(cell(row) for _, cell in columns)] for result, row in rows],
        caption,
        [place for place, (result, _) in enumerate(rows) if result.own],
    )


def _accelerator(result: Result) -> str | None:
    return "none" if result.accelerators == 0 else result.family
