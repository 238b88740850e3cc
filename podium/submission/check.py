"""`podium submit check`: run the official and Podium's own checks; print the reports of `podium submit`."""

import math
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from podium.core.console import MARKS, UNKNOWN, number_table, print_line, summary_table, text_table
from podium.core.errors import PodiumError, UsageError
from podium.core.finding import Finding, Severity, has_errors, severity_counts
from podium.core.text import format_list, printable
from podium.mllog.benchmarks import benchmarks, find_benchmark, rounds
from podium.mllog.read import read_log
from podium.mllog.results_tree import Package, find_packages
from podium.mllog.rounds import find_round, round_from_dates
from podium.mllog.rulesets import Ruleset, ruleset_of_round, rulesets
from podium.mllog.run import Run
from podium.submission.archive import Limits, Tally, archive_stem, copy_file, copy_tree, is_archive, unpack
from podium.submission.checks.all_checks import check_package
from podium.submission.checks.runs import configurations_in
from podium.submission.official.runner import OfficialResults, Score, Verdict, run_official_tools
from podium.submission.package.select_runs import WindowSelection, scoring_seconds
from podium.submission.rcp import Convergence

if TYPE_CHECKING:  # importing these takes a quarter of the start-up time, and a check does not need them
    from podium.submission.describe import Field
    from podium.submission.package.build import BuiltPackage
    from podium.submission.package.files import SubmittedLogs, SubmittedSystem


GIVEN = "as given"


@dataclass(frozen=True)
class ChosenRuleset:
    """The ruleset of a check."""

    ruleset: Ruleset
    reason: str  # a sentence fragment


@dataclass(frozen=True)
class FileVerdict:
    """Verdicts on one log or one system description."""

    path: str
    official: Verdict  # of the official compliance checker or system description checker
    podium: Literal["passed", "failed"]  # failed: Podium's own checks found an error in the file


@dataclass(frozen=True)
class Report:
    """Verdicts, findings and scores of one or more packages."""

    path: str  # as given by the caller; other paths are relative to it, or to the package that contains it
    ruleset: str
    packages: tuple[str, ...]
    files: tuple[FileVerdict, ...]
    findings: tuple[Finding, ...]
    scores: tuple[Score, ...]
    ruleset_reason: str = GIVEN  # where the ruleset is from, as a sentence fragment

    @property
    def accepted(self) -> bool:
        return not has_errors(self.findings)


def check(
    path: Path,
    ruleset: Ruleset | None = None,
    on_start: Callable[[int], None] = lambda logs: None,
    on_checked: Callable[[int], None] = lambda logs: None,
    limits: Limits | None = None,
    runs: Path | None = None,
) -> Report:
    """Check a package, a folder of packages, results of one system, a set of runs, one log, or an archive of these.

    Without a ruleset it is inferred from the path or the logs: `infer_ruleset`.
    Works on a temporary copy. One callback gets the number of logs before the check, the other the number of logs
    checked since its last call, from any thread. `runs` is a folder of Podium's own runs: their logs are compared with
    their configurations. Raises UsageError where `path` has no results.
    """
    if runs is not None and not runs.is_dir():
        raise UsageError(f"--runs {runs}: no such folder; name the folder of Podium's own runs, such as runs/laptop")
    if not path.exists():
        raise UsageError(f"{path}: no such file or folder; name a package, a folder of results, or a log")
    with tempfile.TemporaryDirectory(prefix="podium-check-") as folder:
        tally = Tally(limits or Limits())
        copy = _copy_input(path.resolve(), Path(folder) / "copy", tally)
        packages = _read_packages(path, copy, tally)
        root = copy if copy.is_dir() else copy.parent
        scratch = Path(folder) / "scratch"
        scratch.mkdir()
        on_start(sum(len(result.logs) for package in packages for result in package.results))
        chosen = ChosenRuleset(ruleset, GIVEN) if ruleset is not None else infer_ruleset(path, packages)
        rules = chosen.ruleset
        own: list[Finding] = []
        configurations = configurations_in(runs) if runs is not None else {}

        def run_own_checks() -> None:
            results = [result for package in packages for result in package.results]
            has_results = any(result.benchmark in rules.benchmarks and result.logs for result in results)
            for package in packages:
                prefix = PurePosixPath(package.root.relative_to(root))
                for finding in check_package(package, rules, configurations, has_results):
                    own.append(replace(finding, path=printable(str(prefix / finding.path))))

        official = run_official_tools(packages, root, scratch, rules, on_checked, meanwhile=run_own_checks)
    return _build_report(path, chosen, packages, official, [*tally.findings, *official.findings, *own])


def infer_ruleset(path: Path, packages: Sequence[Package]) -> ChosenRuleset:
    """Infer the ruleset: of the round that the path names, else of the logs' dates, else the newest that fits.

    A round fits if its ruleset includes every benchmark of the results, by their folders' names.
    """
    folders = {result.benchmark for package in packages for result in package.results if result.logs}
    wanted = {name for name in folders if find_benchmark(name) is not None} or _logged_benchmarks(packages)
    named = find_round(path.resolve(), path.resolve())
    found = None if named is None else ruleset_of_round(named)
    if found is not None and (not wanted or wanted & found.benchmarks.keys()):
        return ChosenRuleset(found, f"the path names round {named}")
    fitting = [one for one in rulesets().values() if wanted <= one.benchmarks.keys()]
    dated = round_from_dates(_start_times(packages))
    found = None if dated is None else ruleset_of_round(dated)
    if found is not None and found in fitting:
        return ChosenRuleset(found, f"the logs' dates are those of round {dated}")
    if fitting and named is not None:
        nearest = min(fitting, key=lambda one: abs(_ordinal(one.round) - _ordinal(named)))
        return ChosenRuleset(nearest, f"the nearest to round {named}, which has no ruleset for these results")
    if fitting:
        return ChosenRuleset(fitting[-1], f"the newest that includes {', '.join(sorted(wanted)) or 'the results'}")
    return ChosenRuleset([*rulesets().values()][-1], "the newest; none includes all benchmarks of the results")


def _ordinal(round_name: str) -> int:
    """Return a round's place among all rounds."""
    return list(rounds()).index(round_name)


def _first_logs(packages: Sequence[Package]) -> Iterator[Run]:
    for package in packages:
        for result in package.results:
            for log in result.logs[:1]:
                with suppress(PodiumError):
                    yield read_log(log)


def _logged_benchmarks(packages: Sequence[Package]) -> set[str]:
    return {log.benchmark for log in _first_logs(packages) if find_benchmark(log.benchmark) and log.benchmark}


def _start_times(packages: Sequence[Package]) -> list[float]:
    return [log.start_ms for log in _first_logs(packages) if log.start_ms is not None]


def _copy_input(path: Path, target: Path, tally: Tally) -> Path:
    """Copy the input and return the copy's path; its two parent folders keep their names, which identify a log."""
    if path.is_file() and is_archive(path):
        target.mkdir(parents=True)
        unpack(path, target / archive_stem(path), tally)
        return target / archive_stem(path)
    root, parts = _select_scope(path)
    copied = target / (root.parent.parent.name or "_") / (root.parent.name or "_") / (root.name or "_")
    copied.parent.mkdir(parents=True)
    if root.is_file():
        copy_file(root, copied, tally, PurePosixPath(root.name))
    elif not parts:
        copy_tree(root, copied, tally)
    else:
        for part in parts:
            (copied / part).parent.mkdir(parents=True, exist_ok=True)
            if (root / part).is_dir():
                copy_tree(root / part, copied / part, tally, part)
            else:
                copy_file(root / part, copied / part, tally, part)
    return copied


def _select_scope(path: Path) -> tuple[Path, tuple[PurePosixPath, ...]]:
    """Return the folder or file to copy for a check of `path`, and which parts of it; no parts mean all of it.

    For the results of one system or one of its sets, that is their package with this system only.
    """
    for system in (path, path.parent) if path.is_dir() else ():
        root = system.parent.parent
        description = PurePosixPath("systems") / f"{system.name}.json"
        if system.parent.name == "results" and _has_systems(root) and os.path.lexists(root / description):
            return root, (description, PurePosixPath(path.relative_to(root)))
    if path.name == "results" and path.is_dir() and _has_systems(path.parent):
        return path.parent, (PurePosixPath("systems"), PurePosixPath("results"))
    return path, ()


def _has_systems(root: Path) -> bool:
    """Whether `root` has the systems/ of a package, possibly empty; a working folder's systems/ has YAML files only."""
    folder = root / "systems"
    if not folder.is_dir() or folder.is_symlink():
        return False
    return any(folder.glob("*.json")) or not any(folder.glob("*.yaml"))


def _read_packages(path: Path, copy: Path, tally: Tally) -> list[Package]:
    """Return the packages of the copy; none where it is incomplete, or has only entries that were not copied."""
    if not tally.whole:
        return []
    try:
        return find_packages(copy)
    except UsageError as error:
        if tally.findings:
            return []
        raise UsageError(str(error).replace(str(copy), str(path))) from None


def _build_report(
    path: Path, chosen: ChosenRuleset, packages: list[Package], official: OfficialResults, findings: list[Finding]
) -> Report:
    failed = {finding.path for finding in findings if finding.source == "podium" and finding.severity == "error"}
    files = [
        FileVerdict(name, verdict, "failed" if name in failed else "passed")
        for name, verdict in sorted(official.verdicts.items(), key=lambda item: natural_sort_key(item[0]))
    ]
    return Report(
        path=str(path),
        ruleset=chosen.ruleset.name,
        ruleset_reason=chosen.reason,
        packages=tuple(package.name for package in packages),
        files=tuple(files),
        findings=tuple(
            sorted(set(findings), key=lambda f: (natural_sort_key(f.path), f.severity, f.rule, f.line or 0, f.message))
        ),
        scores=tuple(sorted(official.scores, key=lambda score: natural_sort_key(score.path))),
    )


def natural_sort_key(path: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key that puts result_2.txt before result_10.txt, and a folder before its content."""
    parts = re.findall(r"\d{1,18}|\D+", path)
    return tuple((0, int(part), "") if part[0].isascii() and part.isdigit() else (1, 0, part) for part in parts)


NUMBERS = re.compile(r"\d[\d,.]*\d|\d")
MAX_ROWS_WITHOUT_SUMMARY = 20  # of a table that the summary only follows
MAX_LISTED_FILES = 3  # files named beside a finding that more files of the folder share

_VERDICT_STYLES = {"passed": "green", "failed": "red", "unread": "red", "not run": "red"}
JSON_FIELDS = {name: name for name in ("path", "rule", "severity", "message", "source", "line")}


def as_json(report: Report) -> dict[str, Any]:
    """Return the report with its verdict and summary as a JSON object."""
    findings = [finding.as_json(JSON_FIELDS) for finding in report.findings]
    scores = [asdict(score) | {"official_minutes": score.official_minutes} for score in report.scores]
    parts = asdict(report) | {"findings": findings, "scores": scores}
    return {"accepted": report.accepted, "summary": summary(report), **parts}


def summary(report: Report) -> str:
    """Return one line: the packages, how many logs pass the official checker, and the number of findings."""
    logs = [file for file in report.files if not file.path.endswith(".json")]
    passed = sum(file.official == "passed" for file in logs)
    found = severity_counts(report.findings) or "nothing found"
    packages = f"{len(report.packages):,} packages, " if len(report.packages) != 1 else ""
    return f"{packages}{passed:,} of {len(logs):,} logs pass the official checker of {report.ruleset}; {found}"


def print_report(console: Console, report: Report) -> None:
    """Print a row for each folder and pair of verdicts, below it the findings, then scores and the summary.

    The summary also precedes a long table.
    """
    table = text_table("file", "official", "podium", "finding")
    for row in _table_rows(report):
        table.add_row(*row)
    if table.row_count > MAX_ROWS_WITHOUT_SUMMARY:
        print_line(console, summary(report), "bold green" if report.accepted else "bold red")
    if table.row_count:
        console.print(table)
    for score in report.scores:
        if score.official_minutes is not None:
            factor = "" if score.scaling is None else f" ({score.minutes:,.3f} × {score.scaling:.4f} for the RCP)"
            counted = " (samples by train_samples)" if score.samples_from == "train_samples" else ""
            print_line(console, f"{score.path}: official score {score.official_minutes:,.3f} min{factor}{counted}")
    if report.ruleset_reason != GIVEN:
        print_line(console, f"ruleset {report.ruleset}: {report.ruleset_reason}; --ruleset NAME takes another")
    print_line(console, summary(report), "bold green" if report.accepted else "bold red")


def _table_rows(report: Report) -> Iterator[tuple[Text, ...]]:
    """Yield for each folder a row per pair of verdicts, then a row per finding; files that share one are merged."""
    by_folder: dict[str, list[FileVerdict]] = {}
    for file in report.files:
        by_folder.setdefault(_display_folder(file.path), []).append(file)
    findings: dict[str, list[Finding]] = {}
    for finding in report.findings:
        findings.setdefault(_display_folder(finding.path), []).append(finding)
    for folder in sorted({*by_folder, *findings}):
        by_verdicts: dict[tuple[str, str], list[str]] = {}
        for file in by_folder.get(folder, []):
            by_verdicts.setdefault((file.official, file.podium), []).append(file.path)
        for verdicts, paths in sorted(by_verdicts.items()):
            official, podium = (Text(verdict, _VERDICT_STYLES[verdict]) for verdict in verdicts)
            yield Text(_format_paths(folder, paths)), official, podium, Text()
        merged: dict[tuple[Severity, str, str, str], list[Finding]] = {}
        for finding in findings.get(folder, []):
            # Warnings of one rule that differ only in their numbers are one row; errors are each listed.
            alike = NUMBERS.sub("#", finding.message) if finding.severity == "warning" else finding.message
            key = finding.severity, finding.source, finding.rule, alike
            merged.setdefault(key, []).append(finding)
        for (severity, source, _, _), alike_ones in merged.items():
            paths = [one.path if one.line is None else f"{one.path}:{one.line}" for one in alike_ones]
            messages = list(dict.fromkeys(one.message for one in alike_ones))
            rest = f" (and {len(messages) - 1:,} with other numbers; --json has all)" if len(messages) > 1 else ""
            found = Text.assemble(MARKS[severity], " ", (source, "bold"), f": {printable(messages[0])}{rest}")
            yield Text("  " + _format_paths(folder, paths, named=True)), Text(), Text(), found


def _format_paths(folder: str, paths: list[str], named: bool = False) -> str:
    """Return one path, or a folder with its number of files; with `named`, up to MAX_LISTED_FILES names instead."""
    paths = list(dict.fromkeys(paths))
    if named and paths == [folder]:
        return "the whole folder"
    if len(paths) == 1:
        return printable(paths[0].removeprefix(f"{folder}/") if named and paths[0] != folder else paths[0])
    names = [path.removeprefix(f"{folder}/") for path in paths]
    if named:
        rest = len(names) - MAX_LISTED_FILES
        return printable(", ".join(names[:MAX_LISTED_FILES]) + (f" and {rest} more" if rest > 0 else ""))
    return printable(f"{folder}/ ({len(names)} files)")


def _display_folder(path: str) -> str:
    """Return the folder under which a path is listed: a set of results itself, any other path's parent."""
    pure = PurePosixPath(path)
    is_set = pure.name in benchmarks() or pure.parts[-3:-2] == ("results",)
    return str(pure if is_set and not pure.suffix else pure.parent)


FIELD_STYLES = {
    "same": "green",
    "differs": "red",
    "not stated": "yellow",
    "not detected": "dim",
    "not checked: needs all nodes": "yellow",
    "not checked: this machine is not one of its nodes": "yellow",
}


def print_fields(console: Console, system: str, fields: Sequence["Field"]) -> None:
    """Print a row for each field: its value in the file, the detected value, and the verdict."""
    table = text_table(
        "field", "file", "detected", "verdict", title=f"{system}: description and detected values", no_wrap="field"
    )
    for row in fields:
        cells = map(Text, (row.name, row.stated, row.detected or UNKNOWN))
        table.add_row(*cells, Text(row.verdict, FIELD_STYLES[row.verdict]))
    console.print(table)


def print_package(console: Console, packaged: "BuiltPackage") -> None:
    """Print for each system its windows, if several, its score and notes; then the warnings and the package's path."""
    for submitted in packaged.systems:
        if len(submitted.selection.scores) > 1:
            console.print(_window_table(submitted))
        console.print(_system_table(submitted))
        for text in submitted.compared:
            print_line(console, f"compared: {submitted.label}: {text}")
        for note in submitted.notes:
            print_line(console, f"note: {submitted.label}: {note}")
    grouped: dict[tuple[str, str, str], list[str]] = {}
    for finding in packaged.findings:
        grouped.setdefault((finding.rule, finding.message, finding.source), []).append(finding.path)
    for (rule, message, source), paths in grouped.items():
        where = paths[0] if len(paths) == 1 else f"{len(paths)} files ({format_list(paths, 3)})"
        print_line(console, f"warning: {rule}: {where}: {message} ({source})")
    print_line(console, str(packaged.folder))


def package_json(packaged: "BuiltPackage") -> dict[str, Any]:
    """Return the result of `podium submit package` as a JSON object."""
    return {
        "package": str(packaged.folder),
        "systems": [_system_json(submitted) for submitted in packaged.systems],
        "findings": [finding.as_json(JSON_FIELDS) for finding in packaged.findings],
    }


def _system_json(submitted: "SubmittedSystem | SubmittedLogs") -> dict[str, Any]:
    selection, found = submitted.selection, submitted.convergence
    return {
        "system": submitted.system,
        "benchmark": submitted.benchmark,
        "division": submitted.division,
        "score_seconds": selection.score,
        "scaled_score_seconds": selection.score * _scaling_factor(found),
        "runs": [{"file": str(run.path), "seconds": _finite_or_none(scoring_seconds(run))} for run in selection.runs],
        "window_scores": [_finite_or_none(score) for score in selection.scores],
        "window": selection.window,
        "convergence": None if found is None else {k: v for k, v in asdict(found).items() if k != "scaling"},
        "scaled": found is not None and found.scaling is not None,
        **submitted.code_json,
        "compared": list(submitted.compared),
        "notes": list(submitted.notes),
    }


def _window_table(submitted: "SubmittedSystem | SubmittedLogs") -> Table:
    selection = submitted.selection
    title = f"{submitted.label}: {len(selection.scores)} windows of {selection.length} consecutive runs"
    caption = "the median window is submitted"
    if len(selection.scores) % 2 == 0:
        caption += "; of the two in the middle, the slower, so that the selection cannot improve the score"
    table = number_table(title, "from", "to", "score", "rank", "", caption=caption)
    ranks = sorted(range(len(selection.scores)), key=lambda window: (selection.scores[window], window))
    for window, score in enumerate(selection.scores):
        names = (selection.runs[window].name, selection.runs[window + selection.length - 1].name)
        rank = str(1 + ranks.index(window))
        table.add_row(
            *map(Text, names), _format_seconds(score), rank, "submitted" if window == selection.window else ""
        )
    return table


def _system_table(submitted: "SubmittedSystem | SubmittedLogs") -> Table:
    table = summary_table(f"{submitted.label}, {submitted.division} division")
    selection, found = submitted.selection, submitted.convergence
    table.add_row("MLPerf score", _format_seconds(selection.score))
    if found is not None:
        for row in _convergence_rows(found, selection, submitted.unit):
            table.add_row(*row)
    for name, text in submitted.code_rows:
        table.add_row(name, escape(text))
    return table


def _convergence_rows(found: Convergence, selection: WindowSelection, unit: str) -> list[tuple[str, str]]:
    rows = [("RCP check", f"{'passed' if found.passed else 'FAILED'}: {escape(found.message)}")]
    if found.samples is not None and found.reference_samples is not None and found.least_samples is not None:
        from podium.submission.package.files import format_progress

        batch = f"batch {found.reference_batch_size:,}"
        rows.append((f"{unit} to target", format_progress(found.samples, unit)))
        rows.append(("  of the reference", f"{format_progress(found.reference_samples, unit)} ({batch})"))
        rows.append(("  minimum accepted", format_progress(found.least_samples, unit)))
    if found.scaling is not None:
        rows.append(("scaled by (scaling.json)", f"{found.factor:.6f}"))
        rows.append(("  scaled score", _format_seconds(selection.score * found.factor)))
    elif found.factor > 1:
        rows.append(("factor", f"{found.factor:.6f}, not applied under this ruleset"))
    else:
        rows.append(("scaled", "no"))
    return rows


def _scaling_factor(found: Convergence | None) -> float:
    return found.factor if found is not None and found.scaling is not None else 1.0


def _finite_or_none(seconds: float) -> float | None:
    return seconds if math.isfinite(seconds) else None


def _format_seconds(seconds: float) -> str:
    return f"{seconds:.3f} s, {seconds / 60:.6f} min" if math.isfinite(seconds) else "not converged"
