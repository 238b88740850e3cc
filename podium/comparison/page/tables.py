"""Tables of the comparison page."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from podium.comparison.cost import Cost, Costs
from podium.comparison.page.charts import PhaseTimes, phase_times
from podium.comparison.result import Result
from podium.comparison.table import ScalingPoint, format_rate
from podium.html.table import Cell, Column, Table, Value, number, share, text

UNKNOWN = "unknown"
Row = TypeVar("Row")
Columns = Sequence[tuple[Column, Callable[[Row], Value]]]

_NAMES: Columns[Result] = (
    (text("System"), lambda result: result.system),
    (text("Submitter", choices=True), lambda result: result.submitter),
    (text("Round", choices=True), lambda result: result.round or "own"),
    (text("Benchmark", choices=True), lambda result: result.benchmark),
)
# Columns that are left out of a table in which no result has a value.
_OPTIONAL: Columns[Result] = (
    (
        text("RCP", "whether the samples to the target pass the check against the reference convergence points", True),
        lambda result: result.rcp,
    ),
    (
        number("Scaling factor", 4, "of the score, where the runs needed fewer samples than the reference allows"),
        lambda result: result.scaling_factor,
    ),
    (number("Energy (MJ)", 1, "of a run"), lambda result: _megajoules(result)),
)
_RESULTS: Columns[Result] = (
    (text("Division", choices=True, missing=UNKNOWN), lambda result: result.division),
    (number("Accel.", missing=UNKNOWN), lambda result: result.accelerators),
    (text("Accelerator", choices=True, missing=UNKNOWN), lambda result: _accelerator(result)),
    (
        number("Score (min)", 3, "the official score: scaled where the rules scale it"),
        lambda result: result.score_minutes_scaled,
    ),
    (number("Measured (min)", 3, "before it is scaled"), lambda result: result.score_minutes),
    (
        share("Spread", help="standard deviation of the runs' times divided by their mean"),
        lambda result: result.spread.relative if result.spread else None,
    ),
    (
        text("Cause", "whether the samples to the target or the throughput cause most of the spread"),
        lambda result: result.spread.cause if result.spread else None,
    ),
    (number("Samples to target", help="mean of the runs that converged"), lambda result: result.samples_to_target),
    (number("GBS", help="global batch size, in samples"), lambda result: result.global_batch_size),
    (
        Column("Samples/s", format_rate, "samples divided by time, evaluation included"),
        lambda result: result.samples_per_second,
    ),
    (Column("Samples/s per accel.", format_rate), lambda result: result.samples_per_second_per_accelerator),
    (
        share("MFU", help="model FLOPs utilization: fraction of the accelerator's peak", missing=UNKNOWN),
        lambda result: result.utilization,
    ),
    (share("Evaluation", help="fraction of the runs' time", missing=UNKNOWN), lambda result: result.evaluation_share),
    *_OPTIONAL,
    (
        number("Runs", help="converged runs of all runs"),
        lambda result: Cell(f"{len(result.converged)} of {len(result.runs)}", float(len(result.converged))),
    ),
    (text("Same runs as", "the earlier result in which these runs were submitted"), lambda result: result.repeats),
)


def results_table(title: str, results: Sequence[Result], caption: str = "") -> Table:
    """Return the table of results, a row for each."""
    unused = [column for column, cell in _OPTIONAL if all(cell(result) is None for result in results)]
    columns = [one for one in _RESULTS if one[0] not in unused]
    return _table(title, columns, [(result, result) for result in results], caption)


def time_table(results: Sequence[Result]) -> Table:
    """Return the table of the runs' phases in seconds, a row for each result with a converged run."""
    columns: Columns[PhaseTimes] = (
        (number("Run (s)", 1), lambda spent: spent.seconds),
        (number("Starting (s)", 1, missing=UNKNOWN), lambda spent: spent.starting),
        (number("Training (s)", 1, missing=UNKNOWN), lambda spent: spent.training),
        (number("Evaluation (s)", 1, missing=UNKNOWN), lambda spent: spent.evaluation),
        (number("After the target (s)", 1, missing=UNKNOWN), lambda spent: spent.closing),
        (number("Initialisation, before the clock (s)", 1, missing=UNKNOWN), lambda spent: spent.initialisation),
    )
    rows = [(result, spent) for result in results if (spent := phase_times(result)) is not None]
    return _table("Time of every result", columns, rows, "Means of the runs that converged.")


def scaling_table(scaled: Sequence[Sequence[ScalingPoint]]) -> Table:
    """Return the table of scaling, a row for each size, relative to the smallest size of its family."""
    columns: Columns[ScalingPoint] = (
        (text("Accelerator", choices=True, missing=UNKNOWN), lambda size: _accelerator(size.result)),
        (number("Accel."), lambda size: size.result.accelerators),
        (number("GBS"), lambda size: size.result.global_batch_size),
        (number("Minutes", 3), lambda size: size.result.minutes),
        (share("Samples/s per accel.", help="relative to the smallest size"), lambda size: size.throughput),
        (
            share("Time", help="accelerator-minutes of the smallest size divided by those of this one"),
            lambda size: size.time,
        ),
    )
    caption = "Submitters with several sizes of one kind of accelerator; values are relative to their smallest size."
    return _table("Scaling", columns, [(size.result, size) for family in scaled for size in family], caption)


def cost_table(results: Sequence[Result], costs: Costs) -> Table:
    """Return the table of costs, a row for each result whose cost is known."""
    columns: Columns[Cost] = (
        (number(f"{costs.currency} to train", 2, "once, by the score as measured"), lambda cost: cost.to_train),
        (number(f"{costs.currency} per hour", 2, "of the whole system"), lambda cost: cost.per_hour),
        (number(f"Samples per {costs.currency}"), lambda cost: cost.samples_per_unit),
    )
    rows = [(result, cost) for result, cost in zip(results, costs.costs, strict=True) if cost is not None]
    notes = ("at the prices of --cost", *costs.notes)
    return _table("Cost", columns, rows, " ".join(f"{note[:1].upper()}{note[1:]}." for note in notes))


def anomalies_table(results: Sequence[Result]) -> Table:
    """Return the table of anomalies in logs and descriptions, a row for each."""
    columns: Columns[str] = ((text("Anomaly", long=True), str),)
    rows = [(result, anomaly) for result in results for anomaly in result.anomalies]
    return replace(_table("Anomalies in logs and descriptions", columns, rows), marked=())


def _table(title: str, columns: Columns[Row], rows: Sequence[tuple[Result, Row]], caption: str = "") -> Table:
    """Return a table with the result's names and then `columns` of the second item of each row; marks own results."""
    return Table(
        title,
        [column for column, _ in (*_NAMES, *columns)],
        [[*(cell(result) for _, cell in _NAMES), *(cell(row) for _, cell in columns)] for result, row in rows],
        caption,
        [index for index, (result, _) in enumerate(rows) if result.own],
    )


def _megajoules(result: Result) -> float | None:
    return None if result.energy_joules is None else result.energy_joules / 1e6


def _accelerator(result: Result) -> str | None:
    return "none" if result.accelerators == 0 else result.family
