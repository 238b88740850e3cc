"""Prints the report as tables in the terminal, and builds its JSON object."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from podium.core.console import print_line
from podium.core.text import printable
from podium.report.page import (
    REPORT_FIELDS,
    SETTINGS,
    ReportField,
    format_mean_sd,
    format_setting,
    outcome_counts,
    select_settings,
)
from podium.report.run import ReportedRun, ReportedSet
from podium.run.outcome import GOOD, Outcome

_STYLES = {**dict.fromkeys(GOOD, "green"), Outcome.MISSED: "red", Outcome.FAILED: "red"}
MAX_RUN_COLUMNS = 3  # runs of a set that have a column each; more have a line each with fewer values
_BRIEF_KEYS = ("seconds", "samples", "accuracy", "sequences_per_second")


def as_json(sets: Sequence[ReportedSet], notes: Sequence[str]) -> dict[str, Any]:
    """Return the report as plain types for JSON, without curves, which metrics.jsonl has."""
    return {"sets": [_set_json(one) for one in sets], "notes": list(notes)}


def _set_json(one: ReportedSet) -> dict[str, Any]:
    over = {field.key: one.statistics(field.key) for field in REPORT_FIELDS}
    return {
        "folder": str(one.path),
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
        "not_finite": {quantity: asdict(found) for quantity, found in metrics.not_finite.items()},
        "rates": [asdict(rate) for rate in run.rates],
        "evaluations": [asdict(evaluation) for evaluation in metrics.evaluations],
        "notes": list(run.notes),
    }


def print_sets(console: Console, sets: Sequence[ReportedSet], notes: Sequence[str]) -> None:
    """Print the tables of each set, the settings that its runs share, notes, and failures."""
    for one in sets:
        if len(one.runs) > MAX_RUN_COLUMNS:
            console.print(_brief_table(one))
        console.print(_full_table(one))
        if settings := _common_settings_sentence(one):
            console.print(Text(settings))
    for note in [*notes, *(f"{one.name}/{run.name}: {note}" for one in sets for run in one.runs for note in run.notes)]:
        print_line(console, note, "yellow")
    for one in sets:
        for run in one.runs:
            if run.failure:
                print_line(console, f"{one.name}/{run.name} {run.outcome}: {run.failure}", "red")


def _brief_table(one: ReportedSet) -> Table:
    table = Table(title=Text(printable(one.name)))
    table.add_column("run")
    fields = [field for field in REPORT_FIELDS if field.key in _BRIEF_KEYS]
    seeds = "seed" in one.differing_settings
    if seeds:
        table.add_column("seed", justify="right")
    for field in fields:
        table.add_column(field.short_title, justify="right", overflow="fold")
    table.add_column("outcome", overflow="fold")
    for run in one.runs:
        cells = [_cell(run, field) for field in fields]
        known = "seed" in run.settings
        seed = [printable(format_setting(run.settings["seed"])) if known else ""] if seeds else []
        table.add_row(*map(Text, (printable(run.name), *seed, *cells)), _outcome(run))
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
