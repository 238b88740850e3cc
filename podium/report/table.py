"""The report as tables in the terminal, and as one JSON object."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from podium.core.console import print_line
from podium.core.text import printable
from podium.report.page import FIGURES, SETTINGS, Figure, outcome_counts, settings_of, with_spread, written
from podium.report.run import BROKE_OFF, MISSED, REACHED, TRAINED, ReportedRun, ReportedSet

_STYLES = {REACHED: "green", TRAINED: "green", MISSED: "red", BROKE_OFF: "red"}
BESIDE = 3  # runs of a set that are told side by side, all of their figures; of more, a line each
_BRIEF = ("seconds", "samples", "accuracy", "sequences_per_second")


def as_json(sets: Sequence[ReportedSet], notes: Sequence[str]) -> dict[str, Any]:
    """All that is told but the curves, which metrics.jsonl holds; plain types alone."""
    return {"sets": [_set_json(one) for one in sets], "notes": list(notes)}


def _set_json(one: ReportedSet) -> dict[str, Any]:
    over = {figure.key: one.over_runs(figure.key) for figure in FIGURES}
    return {
        "folder": str(one.path),
        "score_seconds": one.score_seconds,
        "over_runs": {key: asdict(spread) for key, spread in over.items() if spread is not None},
        "accuracy_over_runs": [{"samples": samples, **asdict(spread)} for samples, spread in one.accuracies.items()],
        "runs": [_run_json(run) for run in one.runs],
    }


def _run_json(run: ReportedRun) -> dict[str, Any]:
    metrics = run.metrics
    return {
        "folder": str(run.folder),
        "outcome": run.outcome,
        "failure": run.failure,
        "settings": settings_of(run),
        "code": run.code,
        "commit": run.commit,
        **{figure.key: run.figures.get(figure.key) for figure in FIGURES},
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
    """Of each set a table of runs, one of what they have in common, and what is damaged or left out."""
    for one in sets:
        if len(one.runs) > BESIDE:
            console.print(_brief_table(one))
        console.print(_whole_table(one))
        if alike := _alike(one):
            console.print(Text(alike))
    for note in [*notes, *(f"{one.name}/{run.name}: {note}" for one in sets for run in one.runs for note in run.notes)]:
        print_line(console, note, "yellow")
    for one in sets:
        for run in one.runs:
            if run.failure:
                print_line(console, f"{one.name}/{run.name} {run.outcome}: {run.failure}", "red")


def _brief_table(one: ReportedSet) -> Table:
    table = Table(title=Text(printable(one.name)))
    table.add_column("run")
    figures = [figure for figure in FIGURES if figure.key in _BRIEF]
    seeds = "seed" in one.differing_settings
    if seeds:
        table.add_column("seed", justify="right")
    for figure in figures:
        table.add_column(figure.column, justify="right", overflow="fold")
    table.add_column("outcome", overflow="fold")
    for run in one.runs:
        cells = [_cell(run, figure) for figure in figures]
        known = "seed" in run.settings
        seed = [printable(written(run.settings["seed"])) if known else ""] if seeds else []
        table.add_row(*map(Text, (printable(run.name), *seed, *cells)), _outcome(run))
    return table


def _whole_table(one: ReportedSet) -> Table:
    """A column each for few runs, or for many a column with mean ± standard deviation."""
    beside = one.runs if len(one.runs) <= BESIDE else ()
    counted = len(one.to_target)
    several = len(one.runs) > 1 and counted > 1
    table = Table(title=Text(printable(one.name)) if beside else None)
    table.add_column("")
    for run in beside:
        table.add_column(Text(printable(run.name)), justify="right", overflow="fold")
    if several or not beside:
        table.add_column(f"n = {counted}{', mean ± sd' * several}", justify="right", overflow="fold")
    for title, cells, over in _rows(one, beside):
        table.add_row(Text(title, "bold"), *cells, *([Text(over)] if several or not beside else []))
    return table


def _settings(run: ReportedRun) -> dict[str, str]:
    """Title and value of the settings that matter, and the code."""
    found = {SETTINGS[key]: printable(written(value)) for key, value in settings_of(run).items()}
    if run.code is not None:
        commit = f", commit {printable(run.commit[:12])}" if run.commit else ""
        found["code"] = f"{printable(run.code[:12])}{commit}"
    return found


def _alike(one: ReportedSet) -> str:
    """The settings that all runs share, in a sentence."""
    first, *others = (_settings(run) for run in one.runs)
    told = [f"{title} {value}" for title, value in first.items() if all(other.get(title) == value for other in others)]
    return f"Settings{' of all' * bool(others)}: {', '.join(told)}." if told else ""


def _rows(one: ReportedSet, beside: Sequence[ReportedRun]) -> Iterator[tuple[str, list[Text], str]]:
    """Title, a cell of each run, and what is told of all of them."""
    settings = [_settings(run) for run in one.runs]
    for title in dict.fromkeys(title for found in settings for title in found):
        if len({found.get(title) for found in settings}) > 1:
            yield title, [Text(found.get(title, "")) for found in settings if beside], "differ"
    yield "outcome", [_outcome(run) for run in beside], outcome_counts(one.runs)
    if one.score_seconds is not None:
        yield "MLPerf score", [Text("")] * len(beside), f"{one.score_seconds:.2f} s"
    for figure in FIGURES:
        over = one.over_runs(figure.key)
        if any(figure.key in run.figures for run in one.runs):
            cells = [Text(_cell(run, figure)) for run in beside]
            yield figure.title, cells, with_spread(figure, over) if over else ""
    yield from _phase_rows(one, beside)


def _phase_rows(one: ReportedSet, beside: Sequence[ReportedRun]) -> Iterator[tuple[str, list[Text], str]]:
    for phase in dict.fromkeys(name for run in one.runs for name in run.phases_ms):
        cells = [Text(_phase(run, phase)) for run in beside]
        known = [run.phases_ms[phase] for run in one.to_target if phase in run.phases_ms]
        mean = f"{sum(known) / len(known):,.2f} ms" if known else ""
        yield f"step: {printable(phase.replace('_', ' '))}", cells, mean


def _phase(run: ReportedRun, phase: str) -> str:
    if phase not in run.phases_ms:
        return ""
    whole = sum(run.phases_ms.values())
    share = f", {run.phases_ms[phase] / whole:5.1%}" if whole else ""
    return f"{run.phases_ms[phase]:,.2f} ms{share}"


def _cell(run: ReportedRun, figure: Figure) -> str:
    return figure.write(run.figures[figure.key]) if figure.key in run.figures else ""


def _outcome(run: ReportedRun) -> Text:
    return Text(run.outcome, _STYLES.get(run.outcome, "yellow"))
