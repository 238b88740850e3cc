"""Prints the report as tables in the terminal, and builds its JSON object."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from podium.core.console import number_table, print_line
from podium.core.text import printable
from podium.report.page import (
    MAX_SLOWEST,
    REPORT_FIELDS,
    SETS_TITLE,
    ReportField,
    format_mean_sd,
    format_values,
    outcome_counts,
    select_settings,
)
from podium.report.run import SETTINGS, ReportedRun, ReportedSet, format_setting
from podium.report.sets import (
    QUANTITIES,
    ComparedSet,
    SlowRank,
    compare_sets,
    format_p,
    p_caption,
    slowest_ranks,
    welch_json,
)
from podium.run.outcome import GOOD, Outcome

_STYLES = {**dict.fromkeys(GOOD, "green"), Outcome.MISSED: "red", Outcome.FAILED: "red"}
MAX_RUN_COLUMNS = 3  # runs of a set that have a column each; more have a line each with fewer values
_BRIEF_KEYS = ("seconds", "samples", "accuracy", "sequences_per_second")


def as_json(sets: Sequence[ReportedSet], notes: Sequence[str]) -> dict[str, Any]:
    """Return the report as plain types for JSON, without curves, which metrics.jsonl has."""
    return {"sets": [_set_json(one) for one in compare_sets(sets)], "notes": list(notes)}


def _set_json(compared: ComparedSet) -> dict[str, Any]:
    one = compared.set
    over = {field.key: one.statistics(field.key) for field in REPORT_FIELDS}
    return {
        "folder": str(one.path),
        "name": compared.name,
        "differing_settings": dict(compared.differing),
        "n": len(one.good_runs),
        "tested_against": compared.reference if compared.tests else None,
        "against_first": {key: welch_json(test) for key, test in compared.tests.items()},
        "score_seconds": one.score_seconds,
        "over_runs": {key: asdict(spread) for key, spread in over.items() if spread is not None},
        "accuracy_over_runs": [
            {"samples": samples, **asdict(spread)} for samples, spread in one.accuracy_by_samples.items()
        ],
        "runs": [_run_json(run) for run in one.runs],
    }


def _run_json(run: ReportedRun) -> dict[str, Any]:
    metrics = run.metrics
    return {
        "folder": str(run.folder),
        "outcome": run.outcome,
        "seed": run.seed,
        "failure": run.failure,
        "settings": select_settings(run),
        "code": run.code,
        "commit": run.commit,
        **{field.key: run.totals_so_far.get(field.key) for field in REPORT_FIELDS},
        "steps": metrics.steps,
        "skipped_steps": metrics.skipped,
        "restarts": list(run.restarts),
        "phases_ms": dict(run.phases_ms),
        "balance_quantiles": dict(zip(("0.5", "0.95", "1"), metrics.balance.quantiles((0.5, 0.95, 1)), strict=False)),
        "slowest_ranks": [asdict(rank) for rank in slowest_ranks(run)],
        "not_finite": {quantity: asdict(found) for quantity, found in metrics.not_finite.items()},
        "rates": [asdict(rate) for rate in run.rates],
        "evaluations": [asdict(evaluation) for evaluation in metrics.evaluations],
        "notes": list(run.notes),
    }


def print_sets(console: Console, sets: Sequence[ReportedSet], notes: Sequence[str]) -> None:
    """Print the tables of each set, the settings that its runs share, notes, and failures.

    Of several sets: a table with a row for each set, and one with a row for each run.
    """
    compared = compare_sets(sets)
    names = {one.set.path: one.name for one in compared}
    if len(sets) > 1:
        console.print(_sets_table(compared))
        console.print(_brief_table(sets))
    for one in sets if len(sets) == 1 else ():
        if len(one.runs) > MAX_RUN_COLUMNS:
            console.print(_brief_table([one]))
        console.print(_full_table(one))
        if settings := _common_settings_sentence(one):
            console.print(Text(settings))
    for one in sets:
        for run in one.runs:
            if slowest := slowest_ranks(run):
                console.print(_slowest_table(f"{names[one.path]}, {run.name}" if len(sets) > 1 else run.name, slowest))
    for note in [*notes, *(f"{one.name}/{run.name}: {note}" for one in sets for run in one.runs for note in run.notes)]:
        print_line(console, note, "yellow")
    for one in sets:
        for run in one.runs:
            if run.failure:
                name = f"{names[one.path]}, {run.name}" if len(sets) > 1 else f"{one.name}/{run.name}"
                print_line(console, f"{name} {run.failure_with_outcome}", "red")


def _sets_table(compared: Sequence[ComparedSet]) -> Table:
    """Build the table of several sets: means over the runs that succeeded, and tests against the first with any."""
    table = Table(title=f"{len(compared)} sets: {SETS_TITLE}", caption=p_caption(compared), caption_justify="left")
    table.add_column("set", overflow="fold")
    for title in ("n", "time-to-train", "p", "samples", "p", "seq./s"):
        table.add_column(title, justify="right")
    all_good = all(len(one.set.good_runs) == len(one.set.runs) for one in compared)
    if not all_good:
        table.add_column("outcomes", overflow="fold")
    for number, one in enumerate(compared, 1):
        seconds, samples, rate = (format_values(one, key) for key in QUANTITIES)
        p_seconds, p_samples, _ = (format_p(one.tests.get(key)) for key in QUANTITIES)
        cells = [str(len(one.set.good_runs)), seconds, p_seconds, samples, p_samples, rate]
        outcomes = [] if all_good else [outcome_counts(one.set.runs)]
        table.add_row(*map(Text, (f"{number} {printable(one.name)}", *cells, *outcomes)))
    return table


def _brief_table(sets: Sequence[ReportedSet]) -> Table:
    """Build the table of runs; of several sets, with the number of each run's set."""
    several = len(sets) > 1
    table = Table(title=None if several else Text(printable(sets[0].name)))
    if several:
        table.add_column("set", justify="right")
    table.add_column("run")
    fields = [field for field in REPORT_FIELDS if field.key in _BRIEF_KEYS]
    table.add_column("seed", justify="right")
    for field in fields:
        table.add_column(field.short_title, justify="right", overflow="fold")
    table.add_column("outcome", overflow="fold")
    for number, one in enumerate(sets, 1):
        for run in one.runs:
            seed = printable(format_setting(run.settings["seed"])) if "seed" in run.settings else ""
            cells = [*([str(number)] if several else []), printable(run.name), seed]
            table.add_row(*map(Text, (*cells, *(_cell(run, field) for field in fields))), _outcome(run))
        table.add_section()
    return table


def _slowest_table(name: str, ranks: Sequence[SlowRank]) -> Table:
    """Build the table of the ranks that were most often the slowest of a run's steps."""
    table = number_table(f"{name}: slowest rank of a step", "rank", "host", "steps", "share", "over the mean rank")
    for rank in ranks[:MAX_SLOWEST]:
        over = f"{rank.excess_ms:,.2f} ms, {rank.excess_share:.1%}"
        cells = (str(rank.rank), printable(rank.host or "–"), f"{rank.steps:,}", f"{rank.share:.1%}", over)
        table.add_row(*map(Text, cells))
    return table


def _full_table(one: ReportedSet) -> Table:
    """Build the table of all values: a column per run if there are few, and mean ± standard deviation of several."""
    run_columns = one.runs if len(one.runs) <= MAX_RUN_COLUMNS else ()
    counted = len(one.counted_runs)
    several = len(one.runs) > 1 and counted > 1
    table = Table(title=Text(printable(one.name)) if run_columns else None)
    table.add_column("")
    for run in run_columns:
        table.add_column(Text(printable(run.name)), justify="right", overflow="fold")
    if several or not run_columns:
        table.add_column(f"n = {counted}{', mean ± sd' * several}", justify="right", overflow="fold")
    for title, cells, over in _table_rows(one, run_columns):
        table.add_row(Text(title, "bold"), *cells, *([Text(over)] if several or not run_columns else []))
    return table


def _format_settings(run: ReportedRun) -> dict[str, str]:
    """Title and text of the main settings, and of the code."""
    found = {SETTINGS[key]: printable(format_setting(value)) for key, value in select_settings(run).items()}
    if run.code is not None:
        commit = f", commit {printable(run.commit[:12])}" if run.commit else ""
        found["code"] = f"{printable(run.code[:12])}{commit}"
    return found


def _common_settings_sentence(one: ReportedSet) -> str:
    """Format the settings that all runs share as a sentence."""
    first, *others = (_format_settings(run) for run in one.runs)
    shared = [
        f"{title} {value}" for title, value in first.items() if all(other.get(title) == value for other in others)
    ]
    return f"Settings{' of all' * bool(others)}: {', '.join(shared)}." if shared else ""


def _table_rows(one: ReportedSet, run_columns: Sequence[ReportedRun]) -> Iterator[tuple[str, list[Text], str]]:
    """Yield the rows: title, a cell per run, and the cell of all runs."""
    settings = [_format_settings(run) for run in one.runs]
    for title in dict.fromkeys(title for found in settings for title in found):
        if len({found.get(title) for found in settings}) > 1:
            yield title, [Text(found.get(title, "")) for found in settings if run_columns], "differ"
    yield "outcome", [_outcome(run) for run in run_columns], outcome_counts(one.runs)
    if one.score_seconds is not None:
        yield "MLPerf score", [Text("")] * len(run_columns), f"{one.score_seconds:.2f} s"
    for field in REPORT_FIELDS:
        over = one.statistics(field.key)
        if any(field.key in run.totals_so_far for run in one.runs):
            cells = [Text(_cell(run, field)) for run in run_columns]
            yield field.title, cells, format_mean_sd(field, over) if over else ""
    yield from _phase_rows(one, run_columns)


def _phase_rows(one: ReportedSet, run_columns: Sequence[ReportedRun]) -> Iterator[tuple[str, list[Text], str]]:
    for phase in dict.fromkeys(name for run in one.runs for name in run.phases_ms):
        cells = [Text(_format_phase(run, phase)) for run in run_columns]
        known = [run.phases_ms[phase] for run in one.counted_runs if phase in run.phases_ms]
        mean = f"{sum(known) / len(known):,.2f} ms" if known else ""
        yield f"step: {printable(phase.replace('_', ' '))}", cells, mean


def _format_phase(run: ReportedRun, phase: str) -> str:
    if phase not in run.phases_ms:
        return ""
    total = sum(run.phases_ms.values())
    share = f", {run.phases_ms[phase] / total:5.1%}" if total else ""
    return f"{run.phases_ms[phase]:,.2f} ms{share}"


def _cell(run: ReportedRun, field: ReportField) -> str:
    return field.format(run.totals_so_far[field.key]) if field.key in run.totals_so_far else ""


def _outcome(run: ReportedRun) -> Text:
    return Text(run.outcome, _STYLES.get(run.outcome, "yellow"))
