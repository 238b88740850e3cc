"""What a check of a submission found, for people and as one object for programs."""

from collections.abc import Iterator
from dataclasses import asdict
from itertools import groupby
from pathlib import PurePosixPath
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from podium.submission.checking import FileVerdict, Report
from podium.submission.copying import shown
from podium.submission.findings import Finding

MAX_ALIKE = 3
"""Files of a folder that are named where the same is found in more of them."""

_STYLES = {"passed": "green", "failed": "red", "unread": "red", "not run": "red"}
_MARKS = {"error": ("✗", "red"), "warning": ("!", "yellow")}


def as_json(report: Report) -> dict[str, Any]:
    """The report with its verdict; plain types alone."""
    whole = asdict(report)
    return {"accepted": report.accepted, "summary": summary(report), **whole}


def summary(report: Report) -> str:
    """One line: what was checked, what the official checkers said of the logs, and what was found in all."""
    logs = [file for file in report.files if not file.path.endswith(".json")]
    passed = sum(file.official == "passed" for file in logs)
    counts = [(sum(f.severity == severity for f in report.findings), severity) for severity in ("error", "warning")]
    found = (
        ", ".join(f"{count:,} {severity}{'s' * (count != 1)}" for count, severity in counts if count) or "nothing found"
    )
    packages = (
        f"{len(report.packages):,} package{'s' * (len(report.packages) != 1)}, " if len(report.packages) != 1 else ""
    )
    return f"{packages}{passed:,} of {len(logs):,} logs pass the official checker of {report.ruleset}; {found}"


def print_report(console: Console, report: Report) -> None:
    """A line for each folder of files that are alike, below it what was found, and the verdict last."""
    table = Table(box=None, pad_edge=False)
    for heading in ("file", "official", "podium", "what"):
        table.add_column(heading, overflow="fold")
    for row in _rows(report):
        table.add_row(*row)
    if table.row_count:
        console.print(table)
    for score in report.scores:
        if score.minutes is not None:
            factor = "" if score.scaling is None else f", scaled by {score.scaling:.4f} for the RCP"
            counted = " (samples by train_samples)" if score.samples_from == "train_samples" else ""
            line = f"{score.path}: official score {score.minutes:,.3f} min{factor}{counted}"
            console.print(shown(line), markup=False, highlight=False, soft_wrap=True)
    style = "bold green" if report.accepted else "bold red"
    console.print(shown(summary(report)), style=style, markup=False, highlight=False, soft_wrap=True)


def _rows(report: Report) -> Iterator[tuple[Text, ...]]:
    """Of each folder the verdicts, files of the same verdicts together, then the findings, those alike together."""
    by_folder: dict[str, list[FileVerdict]] = {}
    for file in report.files:
        by_folder.setdefault(_folder(file.path), []).append(file)
    places = dict.fromkeys([*by_folder, *(_folder(finding.path) for finding in report.findings)])
    for place in sorted(places):
        for verdicts, alike in _groups(by_folder.get(place, [])):
            official, podium = (Text(verdict, _STYLES[verdict]) for verdict in verdicts)
            yield Text(_names(place, [file.path for file in alike])), official, podium, Text()
        findings = [finding for finding in report.findings if _folder(finding.path) == place]
        alike_findings: dict[tuple[str, str, str, str], list[Finding]] = {}
        for finding in findings:
            key = finding.severity, finding.source, finding.rule, finding.message
            alike_findings.setdefault(key, []).append(finding)
        for (severity, source, _, message), same in alike_findings.items():
            names = Text("  " + _names(place, [_with_line(finding) for finding in same], named=True))
            yield names, Text(), Text(), Text.assemble(_MARKS[severity], " ", (source, "bold"), f": {shown(message)}")


def _groups(files: list[FileVerdict]) -> list[tuple[tuple[str, str], list[FileVerdict]]]:
    def verdicts(file: FileVerdict) -> tuple[str, str]:
        return file.official, file.podium

    return [(key, list(group)) for key, group in groupby(sorted(files, key=verdicts), verdicts)]


def _names(place: str, paths: list[str], named: bool = False) -> str:
    """One path, or a folder and how many of its files; with `named`, a few of them by name."""
    paths = list(dict.fromkeys(paths))
    if named and paths == [place]:
        return "all of it"
    if len(paths) == 1:
        return shown(paths[0].removeprefix(f"{place}/") if named and paths[0] != place else paths[0])
    names = [path.removeprefix(f"{place}/") for path in paths]
    if named:
        rest = len(names) - MAX_ALIKE
        return shown(", ".join(names[:MAX_ALIKE]) + (f" and {rest} more" if rest > 0 else ""))
    return shown(f"{place}/ ({len(names)} files)")


def _with_line(finding: Finding) -> str:
    return finding.path if finding.line is None else f"{finding.path}:{finding.line}"


def _folder(path: str) -> str:
    """The folder that a path is told under: of a log its set of results, of anything else the one that holds it."""
    pure = PurePosixPath(path)
    return str(pure if pure.name == "bert" else pure.parent)
