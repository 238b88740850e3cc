"""A diagnosis for people, and as one object for programs."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from podium.doctor.findings import Finding, is_ready, summary

MARKS = {"ok": "[green]✓[/green]", "warning": "[yellow]![/yellow]", "error": "[red]✗[/red]"}


def as_json(system: str, findings: Sequence[Finding]) -> dict[str, Any]:
    return {
        "system": system,
        "ready": is_ready(findings),
        "summary": summary(findings),
        "findings": [asdict(finding) for finding in findings],
    }


def print_findings(console: Console, findings: Sequence[Finding]) -> None:
    """A line a finding, what to do where something is to be done, and the verdict last."""
    table = Table(box=None, pad_edge=False)
    for heading in ("", "check", "found", "wanted"):
        table.add_column(heading, overflow="fold")
    for finding in findings:
        table.add_row(MARKS[finding.verdict], *map(escape, (finding.check, finding.found, finding.wanted)))
    console.print(table)
    for finding in findings:
        if finding.advice:
            console.print(f"{finding.check}: {finding.advice}", markup=False, highlight=False, soft_wrap=True)
    console.print(summary(findings), style="bold green" if is_ready(findings) else "bold red", highlight=False)
