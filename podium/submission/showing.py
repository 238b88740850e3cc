"""What describing and packaging tell people, and programs as one object."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from benchmarks.bert.rules import RUNS
from podium.console import UNKNOWN, figure_table, print_line, summary_table, text_table
from podium.submission.describing import Field
from podium.submission.packaging.choosing import Choice, scored_seconds
from podium.submission.packaging.making import Chosen, Packaged
from podium.submission.packaging.scaling import Convergence
from podium.submission.telling import JSON_FIELDS

STYLES = {"same": "green", "differs": "red", "not stated": "yellow", "cannot be told": "dim"}


def print_fields(console: Console, system: str, fields: Sequence[Field]) -> None:
    """A line a field: what the file says beside what this machine tells."""
    table = text_table(
        "field", "file", "detected", "verdict", title=f"{system}: described and detected", no_wrap="field"
    )
    for one in fields:
        cells = map(Text, (one.name, one.stated, one.detected or UNKNOWN))
        table.add_row(*cells, Text(one.verdict, STYLES[one.verdict]))
    console.print(table)


def print_packaged(console: Console, packaged: Packaged) -> None:
    """For each system the windows, where there is more than one, and what it comes to; then where the package is."""
    for one in packaged.systems:
        if len(one.choice.scores) > 1:
            console.print(_windows(one))
        console.print(_system(one))
    for finding in packaged.findings:
        print_line(console, f"warning: {finding.rule}: {finding.path}: {finding.message} ({finding.source})")
    print_line(console, str(packaged.folder))


def packaged_json(packaged: Packaged) -> dict[str, Any]:
    return {
        "package": str(packaged.folder),
        "systems": [_json(one) for one in packaged.systems],
        "findings": [finding.as_json(JSON_FIELDS) for finding in packaged.findings],
    }


def _json(one: Chosen) -> dict[str, Any]:
    choice, found = one.choice, one.convergence
    return {
        "system": one.name,
        "division": one.now.division,
        "score_seconds": choice.score,
        "scaled_score_seconds": choice.score * _factor(found),
        "runs": [{"file": str(run.path), "seconds": _finite(scored_seconds(run))} for run in choice.runs],
        "window_scores": [_finite(score) for score in choice.scores],
        "window": choice.window,
        "convergence": None if found is None else {k: v for k, v in asdict(found).items() if k != "scaling"},
        "scaled": found is not None and found.scaling is not None,
        "commit": one.code.commit,
        "commit_made_the_runs": one.code.made_the_runs,
    }


def _windows(one: Chosen) -> Table:
    choice = one.choice
    even = len(choice.scores) % 2 == 0
    title = f"{one.name}: {len(choice.scores)} windows of {RUNS} consecutive runs"
    caption = "the median window is taken" + (
        "; of the two in the middle, the slower: the choice must never gain anything" if even else ""
    )
    table = figure_table(title, "from", "to", "score", "rank", "", caption=caption)
    ranks = sorted(range(len(choice.scores)), key=lambda window: (choice.scores[window], window))
    for window, score in enumerate(choice.scores):
        names = (choice.runs[window].name, choice.runs[window + RUNS - 1].name)
        rank = str(1 + ranks.index(window))
        table.add_row(*map(Text, names), _seconds(score), rank, "taken" if window == choice.window else "")
    return table


def _system(one: Chosen) -> Table:
    table = summary_table(f"{one.name}, {one.now.division} division")
    choice, found = one.choice, one.convergence
    table.add_row("MLPerf score", _seconds(choice.score))
    if found is not None:
        for row in _convergence(found, choice):
            table.add_row(*row)
    table.add_row("code", f"commit {one.code.commit[:12]}" + ("" if one.code.made_the_runs else ", not sure"))
    if one.code.doubt:
        table.add_row("", escape(one.code.doubt))
    return table


def _convergence(found: Convergence, choice: Choice) -> list[tuple[str, str]]:
    rows = [("RCP check", f"{'passed' if found.passed else 'FAILED'}: {escape(found.words)}")]
    if found.samples is not None and found.reference_samples is not None and found.least_samples is not None:
        rows.append(("samples to target", f"{found.samples:,.0f}"))
        batch = f"batch {found.reference_batch_size:,}"
        rows.append(("  of the reference", f"{found.reference_samples:,.0f} ({batch})"))
        rows.append(("  least accepted", f"{found.least_samples:,.0f}"))
    if found.scaling is not None:
        rows.append(("scaled by (scaling.json)", f"{found.factor:.6f}"))
        rows.append(("  scaled score", _seconds(choice.score * found.factor)))
    elif found.factor > 1:
        rows.append(("factor", f"{found.factor:.6f}, not applied under this ruleset"))
    else:
        rows.append(("scaled", "no"))
    return rows


def _factor(found: Convergence | None) -> float:
    return found.factor if found is not None and found.scaling is not None else 1.0


def _finite(seconds: float) -> float | None:
    return seconds if math.isfinite(seconds) else None


def _seconds(seconds: float) -> str:
    return f"{seconds:.3f} s, {seconds / 60:.6f} min" if math.isfinite(seconds) else "not converged"
