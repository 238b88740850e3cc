"""Tables of the comparison page."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from podium.comparison.cost import Cost, Costs
from podium.comparison.page.charts import PHASE_RUNS, PhaseTimes, Records, phase_times
from podium.comparison.page.families import family_of
from podium.comparison.result import Result
from podium.comparison.table import ScalingPoint, format_rate
from podium.html.table import DETAIL, ESSENTIAL, Cell, Column, Table, Value, number, share, text

Row = TypeVar("Row")
Columns = Sequence[tuple[Column, Callable[[Row], Value]]]

_SYSTEM: Columns[Result] = ((text("System"), lambda result: result.system),)
_ORIGIN: Columns[Result] = (
    (text("Submitter"), lambda result: result.submitter),
    (text("Round"), lambda result: result.round or "own"),
    (text("Benchmark"), lambda result: result.benchmark),
)
# Columns that are left out of a table in which no result has a value.
_OPTIONAL: Columns[Result] = (
    (
        text(
            "RCP",
            "whether the samples to the target pass the check against the reference convergence points",
            priority=DETAIL,
        ),
        lambda result: result.rcp,
    ),
    (
        number(
            "Scaling factor",
            4,
            "of the score, where the runs needed fewer samples than the reference allows",
            priority=DETAIL,
        ),
        lambda result: result.scaling_factor,
    ),
    (number("Energy (MJ)", 1, "of a run"), lambda result: _megajoules(result)),
)
_SCORE: Columns[Result] = (
    (
        number("Score (min)", 3, "the official score: scaled where the rules scale it", priority=ESSENTIAL),
        lambda result: result.score_minutes_scaled,
    ),
    (number("Accel.", priority=ESSENTIAL), lambda result: result.accelerators),
    (text("Accelerator"), lambda result: _accelerator(result)),
)
_RESULTS: Columns[Result] = (
    (text("Division"), lambda result: result.division),
    (
        number("Measured (min)", 3, "the score before it is scaled", priority=DETAIL),
        lambda result: result.score_minutes,
    ),
    (
        share("Spread", help="standard deviation of the runs' times divided by their mean"),
        lambda result: result.spread.relative if result.spread else None,
    ),
    (
        text("Cause", "whether the samples to the target or the throughput cause most of the spread", priority=DETAIL),
        lambda result: result.spread.cause if result.spread else None,
    ),
    (
        number("Samples to target", help="mean of the runs that succeeded", priority=DETAIL),
        lambda result: result.samples_to_target,
    ),
    (number("GBS", help="global batch size, in samples"), lambda result: result.global_batch_size),
    (
        Column("Samples/s", format_rate, "samples divided by time, evaluation included", priority=DETAIL),
        lambda result: result.samples_per_second,
    ),
    (Column("Samples/s per accel.", format_rate), lambda result: result.samples_per_second_per_accelerator),
    (
        share("MFU", help="model FLOPs utilization: fraction of the accelerator's peak"),
        lambda result: result.utilization,
    ),
    (
        share("Evaluation", help="fraction of the runs' time", priority=DETAIL),
        lambda result: result.evaluation_share,
    ),
    *_OPTIONAL,
    (
        number("Runs", help="runs that succeeded, of all runs"),
        lambda result: Cell(f"{len(result.converged)} of {len(result.runs)}", float(len(result.converged))),
    ),
    (
        text("Same runs as", "the earlier result in which these runs were submitted", priority=DETAIL),
        lambda result: result.repeats,
    ),
)


def results_table(title: str, results: Sequence[Result], records: Records, caption: str = "") -> Table:
    """Return the table of results, a row for each."""
    unused = [column for column, cell in _OPTIONAL if all(cell(result) is None for result in results)]
    columns = [*_SYSTEM, *_SCORE, *_ORIGIN, *(one for one in _RESULTS if one[0] not in unused)]
    rows = [[cell(result) for _, cell in columns] for result in results]
    return _table(title, [column for column, _ in columns], rows, results, records, caption)


def time_table(results: Sequence[Result], records: Records) -> Table:
    """Return the table of the runs' phases in seconds, a row for each result with a plausible time."""
    columns: Columns[PhaseTimes] = (
        (number("Run (s)", 1, priority=ESSENTIAL), lambda spent: spent.seconds),
        (number("Starting (s)", 1, priority=ESSENTIAL), lambda spent: spent.starting),
        (number("Training (s)", 1), lambda spent: spent.training),
        (number("Evaluation (s)", 1), lambda spent: spent.evaluation),
        (number("After the target (s)", 1), lambda spent: spent.closing),
        (number("Initialisation, before the clock (s)", 1), lambda spent: spent.initialisation),
    )
    rows = [(result, spent) for result in results if (spent := phase_times(result)) is not None]
    return _named_table("Time of every result", columns, rows, records, PHASE_RUNS)


def scaling_table(scaled: Sequence[Sequence[ScalingPoint]], records: Records) -> Table:
    """Return the table of scaling, a row for each size, relative to the smallest size of its family."""
    columns: Columns[ScalingPoint] = (
        (number("Accel.", priority=ESSENTIAL), lambda size: size.result.accelerators),
        (
            share("Time", help="accelerator-minutes of the smallest size, as measured, divided by those of this one"),
            lambda size: size.time,
        ),
        (
            share("Samples/s per accel.", help="relative to the smallest size", priority=ESSENTIAL),
            lambda size: size.throughput,
        ),
        (text("Accelerator"), lambda size: _accelerator(size.result)),
        (number("GBS"), lambda size: size.result.global_batch_size),
        (
            number("Measured (min)", 3, "before it is scaled; without a score the mean of the runs that succeeded"),
            lambda size: size.result.minutes,
        ),
        (
            number("Score (min)", 3, "the official score: scaled where the rules scale it"),
            lambda size: size.result.score_minutes_scaled,
        ),
    )
    caption = "Submitters with several sizes of one kind of accelerator; values are relative to their smallest size."
    rows = [(size.result, size) for family in scaled for size in family]
    return _named_table("Scaling", columns, rows, records, caption)


def cost_table(results: Sequence[Result], costs: Costs, records: Records) -> Table:
    """Return the table of costs, a row for each result whose cost is known."""
    columns: Columns[Cost] = (
        (
            number(f"{costs.currency} to train", 2, "once, by the score as measured", priority=ESSENTIAL),
            lambda cost: cost.to_train,
        ),
        (number(f"{costs.currency} per hour", 2, "of the whole system"), lambda cost: cost.per_hour),
        (number(f"Samples per {costs.currency}"), lambda cost: cost.samples_per_unit),
    )
    rows = [(result, cost) for result, cost in zip(results, costs.costs, strict=True) if cost is not None]
    notes = ("at the prices of --cost", *costs.notes)
    caption = " ".join(f"{note[:1].upper()}{note[1:]}." for note in notes)
    return _named_table("Cost", columns, rows, records, caption)


def anomalies_table(results: Sequence[Result], records: Records) -> Table:
    """Return the table of anomalies that may affect a figure, a row for each."""
    rows = [(result, anomaly) for result in results for anomaly in result.anomalies]
    return _anomalies("Anomalies that may affect a figure", rows, records)


def cosmetic_table(results: Sequence[Result], records: Records) -> Table:
    """Return the table of anomalies that affect no figure, a row for each."""
    rows = [(result, cosmetic.message) for result in results for cosmetic in result.cosmetic]
    return _anomalies("Cosmetic anomalies, which affect no figure", rows, records)


def _anomalies(title: str, rows: Sequence[tuple[Result, str]], records: Records) -> Table:
    columns: Columns[str] = ((text("Anomaly", long=True, priority=ESSENTIAL), str),)
    return replace(_named_table(title, columns, rows, records), marked=())


def _named_table(
    title: str, columns: Columns[Row], rows: Sequence[tuple[Result, Row]], records: Records, caption: str = ""
) -> Table:
    """Return a table with the system, `columns` of the second item of each row, and then the result's other names."""
    headings = [column for column, _ in (*_SYSTEM, *columns, *_ORIGIN)]
    values = [
        [
            *(cell(result) for _, cell in _SYSTEM),
            *(cell(row) for _, cell in columns),
            *(cell(result) for _, cell in _ORIGIN),
        ]
        for result, row in rows
    ]
    return _table(title, headings, values, [result for result, _ in rows], records, caption)


def _table(
    title: str,
    columns: Sequence[Column],
    rows: Sequence[Sequence[Value]],
    results: Sequence[Result],
    records: Records,
    caption: str,
) -> Table:
    """Return a table with a row of each of these results; marks own results."""
    marked = [index for index, result in enumerate(results) if result.own]
    return Table(title, columns, rows, caption, marked, [records[id(result)] for result in results])


def _megajoules(result: Result) -> float | None:
    return None if result.energy_joules is None else result.energy_joules / 1e6


def _accelerator(result: Result) -> str | None:
    return "none" if result.accelerators == 0 else None if result.family is None else family_of(result)
