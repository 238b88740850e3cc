"""What a check of a submission found, for people and as one object for programs."""

from collections.abc import Iterator
from dataclasses import asdict
from itertools import groupby
from pathlib import PurePosixPath
from typing import Any

from rich.console import Console
from rich.text import Text

from benchmarks.finding import Finding, Severity, severity_counts
from benchmarks.text import printable
from podium.console import MARKS, print_line, text_table
from podium.submission.checking import FileVerdict, Report

MAX_ALIKE = 3
"""Files of a folder that are named where the same is found in more of them."""

_STYLES = {"passed": "green", "failed": "red", "unread": "red", "not run": "red"}
JSON_FIELDS = {name: name for name in ("path", "rule", "severity", "message", "source", "line")}


def as_json(report: Report) -> dict[str, Any]:
    """The report with its verdict; plain types alone."""
    findings = [finding.as_json(JSON_FIELDS) for finding in report.findings]
    return {"accepted": report.accepted, "summary": summary(report), **asdict(report), "findings": findings}


def summary(report: Report) -> str:
    """One line: what was checked, what the official checkers said of the logs, and what was found in all."""
    logs = [file for file in report.files if not file.path.endswith(".json")]
    passed = sum(file.official == "passed" for file in logs)
    found = severity_counts(report.findings) or "nothing found"
    packages = (
        f"{len(report.packages):,} package{'s' * (len(report.packages) != 1)}, " if len(report.packages) != 1 else ""
    )
    return f"{packages}{passed:,} of {len(logs):,} logs pass the official checker of {report.ruleset}; {found}"


def print_report(console: Console, report: Report) -> None:
    """A line for each folder of files that are alike, below it what was found, and the verdict last."""
    table = text_table("file", "official", "podium", "what")
    for row in _rows(report):
        table.add_row(*row)
    if table.row_count:
        console.print(table)
    for score in report.scores:
        if score.minutes is not None:
            factor = "" if score.scaling is None else f", scaled by {score.scaling:.4f} for the RCP"
            counted = " (samples by train_samples)" if score.samples_from == "train_samples" else ""
            line = f"{score.path}: official score {score.minutes:,.3f} min{factor}{counted}"
            print_line(console, line)
    print_line(console, summary(report), "bold green" if report.accepted else "bold red")


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
        alike_findings: dict[tuple[Severity, str, str, str], list[Finding]] = {}
        for finding in findings:
            key = finding.severity, finding.source, finding.rule, finding.message
            alike_findings.setdefault(key, []).append(finding)
        for (severity, source, _, message), same in alike_findings.items():
            names = Text("  " + _names(place, [_with_line(finding) for finding in same], named=True))
            yield (
                names,
                Text(),
                Text(),
                Text.assemble(MARKS[severity], " ", (source, "bold"), f": {printable(message)}"),
            )


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
        return printable(paths[0].removeprefix(f"{place}/") if named and paths[0] != place else paths[0])
    names = [path.removeprefix(f"{place}/") for path in paths]
    if named:
        rest = len(names) - MAX_ALIKE
        return printable(", ".join(names[:MAX_ALIKE]) + (f" and {rest} more" if rest > 0 else ""))
    return printable(f"{place}/ ({len(names)} files)")


def _with_line(finding: Finding) -> str:
    return finding.path if finding.line is None else f"{finding.path}:{finding.line}"


def _folder(path: str) -> str:
    """The folder that a path is told under: of a log its set of results, of anything else the one that holds it."""
    pure = PurePosixPath(path)
    return str(pure if pure.name == "bert" else pure.parent)
