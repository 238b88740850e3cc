"""What describing and packaging tell people, and programs as one object."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.bert.rules import RUNS
from podium.submission.describing import Field
from podium.submission.packaging.choosing import Choice
from podium.submission.packaging.making import Chosen, Packaged
from podium.submission.packaging.scaling import Convergence

STYLES = {"same": "green", "differs": "red", "not stated": "yellow", "cannot be told": "dim"}


def print_fields(console: Console, system: str, fields: Sequence[Field]) -> None:
    """A line a field: what the file says beside what this machine tells."""
    table = Table(title=f"{escape(system)}: described and detected", box=None, pad_edge=False)
    for heading in ("field", "file", "detected", "verdict"):
        table.add_column(heading, overflow="fold", no_wrap=heading == "field")
    for one in fields:
        words = (one.name, one.stated, one.detected or "–")
        table.add_row(*map(escape, words), f"[{STYLES[one.verdict]}]{one.verdict}[/]")
    console.print(table)


def print_packaged(console: Console, packaged: Packaged) -> None:
    """For each system the windows, where there is more than one, and what it comes to; then where the package is."""
    for one in packaged.systems:
        if len(one.choice.scores) > 1:
            console.print(_windows(one))
        console.print(_system(one))
    for finding in sorted(packaged.findings):
        words = f"warning: {finding.rule}: {finding.path}: {finding.message} ({finding.source})"
        console.print(words, markup=False, highlight=False, soft_wrap=True)
    console.print(str(packaged.folder), markup=False, highlight=False, soft_wrap=True)


def packaged_json(packaged: Packaged) -> dict[str, Any]:
    return {
        "package": str(packaged.folder),
        "systems": [_json(one) for one in packaged.systems],
        "findings": [asdict(finding) for finding in sorted(packaged.findings)],
    }


def _json(one: Chosen) -> dict[str, Any]:
    choice, found = one.choice, one.convergence
    return {
        "system": one.name,
        "division": one.now.division,
        "score_seconds": choice.score,
        "scaled_score_seconds": choice.score * _factor(found),
        "runs": [{"file": str(run.path), "seconds": _finite(run.seconds)} for run in choice.runs],
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
    title = f"{escape(one.name)}: {len(choice.scores)} windows of {RUNS} consecutive runs"
    caption = "the median window is taken" + (
        "; of the two in the middle, the slower: the choice must never gain anything" if even else ""
    )
    table = Table(title=title, caption=caption)
    for heading in ("from", "to", "score", "rank", ""):
        table.add_column(heading, justify="left" if heading == "" else "right")
    ranks = sorted(range(len(choice.scores)), key=lambda window: (choice.scores[window], window))
    for window, score in enumerate(choice.scores):
        names = (choice.runs[window].name, choice.runs[window + RUNS - 1].name)
        rank = str(1 + ranks.index(window))
        table.add_row(*map(escape, names), _seconds(score), rank, "taken" if window == choice.window else "")
    return table


def _system(one: Chosen) -> Table:
    table = Table(title=f"{escape(one.name)}, {one.now.division} division", show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right", overflow="fold")
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
