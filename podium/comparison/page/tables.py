"""Tables of a comparison's page."""

from collections.abc import Callable, Sequence

from podium.comparison.page.time_spent import TimeSpent, time_spent
from podium.comparison.result import Result
from podium.page.table import Cell, Column, Table, Value, number, share, text

UNKNOWN = "unknown"
Told = tuple[Column, Callable[[Result], Value]]

_NAMES: tuple[Told, ...] = (
    (text("System"), lambda result: result.system),
    (text("Submitter", choices=True), lambda result: result.submitter),
    (text("Round", choices=True), lambda result: result.round or "own"),
)
_RESULTS: tuple[Told, ...] = (
    *_NAMES,
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
    (number("Seq/s per accel.", 1), lambda result: result.per_accelerator(result.sequences_per_second)),
    (
        share("MFU", help="of the accelerator's peak; unknown where that is not known", missing=UNKNOWN),
        lambda result: result.utilization,
    ),
    (share("Evaluation", help="of the runs' time", missing=UNKNOWN), lambda result: result.evaluation_share),
    (number("Runs", help="that converged, of all"), lambda result: _runs(result)),
    (text("Same runs as", "the earlier result that these runs were handed in as"), lambda result: result.repeats),
)


def results_table(title: str, results: Sequence[Result], caption: str = "") -> Table:
    return Table(
        title,
        [column for column, _ in _RESULTS],
        [[say(result) for _, say in _RESULTS] for result in results],
        caption,
        _own(results),
    )


def time_table(results: Sequence[Result]) -> Table:
    """Where the time went, in seconds, for each result of which a run converged."""
    spent = [(result, found) for result in results if (found := time_spent(result)) is not None]
    columns: tuple[tuple[Column, Callable[[TimeSpent], Value]], ...] = (
        (number("Run (s)", 1), lambda spent: spent.seconds),
        (number("Starting (s)", 1, missing=UNKNOWN), lambda spent: spent.starting),
        (number("Training (s)", 1, missing=UNKNOWN), lambda spent: spent.training),
        (number("Evaluation (s)", 1, missing=UNKNOWN), lambda spent: spent.evaluation),
        (number("After the target (s)", 1, missing=UNKNOWN), lambda spent: spent.closing),
        (number("Initialisation, before the clock (s)", 1, missing=UNKNOWN), lambda spent: spent.initialisation),
    )
    return Table(
        "Time of every result",
        [column for column, _ in (*_NAMES, *columns)],
        [[*(say(result) for _, say in _NAMES), *(say(found) for _, say in columns)] for result, found in spent],
        "Means of the runs that converged.",
        _own([result for result, _ in spent]),
    )


def oddities_table(results: Sequence[Result]) -> Table:
    """A row an oddity."""
    rows = [[*(say(result) for _, say in _NAMES), odd] for result in results for odd in result.oddities]
    return Table(
        "What does not fit together", [*(column for column, _ in _NAMES), text("What is odd", long=True)], rows
    )


def _own(results: Sequence[Result]) -> list[int]:
    return [number for number, result in enumerate(results) if result.own]


def _accelerator(result: Result) -> str | None:
    return "none" if result.accelerators == 0 else result.family


def _runs(result: Result) -> Cell:
    return Cell(f"{len(result.converged)} of {len(result.runs)}", float(len(result.converged)))
