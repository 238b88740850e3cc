"""`podium submit check`: runs the official and Podium's own checks on a package; prints what `podium submit` finds."""

import math
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from benchmarks.bert.rules import RUNS
from podium.core.console import MARKS, UNKNOWN, figure_table, print_line, summary_table, text_table
from podium.core.errors import UsageError
from podium.core.finding import Finding, Severity, has_errors, severity_counts
from podium.core.text import printable
from podium.mllog.results_tree import Package, find_packages
from podium.mllog.rulesets import Ruleset
from podium.submission.archive import Limits, Tally, archive_stem, copy_file, copy_tree, is_archive, unpack
from podium.submission.checks.all_checks import check_package
from podium.submission.checks.runs import configurations_in
from podium.submission.official.runner import Official, Score, Verdict, ask_official
from podium.submission.package.select_runs import Choice, scored_seconds
from podium.submission.rcp import Convergence

if TYPE_CHECKING:  # a check does without these, which take a quarter of its start
    from podium.submission.describe import Field
    from podium.submission.package.build import Packaged
    from podium.submission.package.files import Submitted


@dataclass(frozen=True)
class FileVerdict:
    """What was found about one log or one system's description."""

    path: str
    official: Verdict  # of the official compliance checker or system description checker alone
    podium: Literal["passed", "failed"]  # whether Podium's own checks found no error in it


@dataclass(frozen=True)
class Report:
    """What was found about a package, or several."""

    path: str  # as it was asked for; all other paths are relative to it
    ruleset: str
    packages: tuple[str, ...]
    files: tuple[FileVerdict, ...]
    findings: tuple[Finding, ...]
    scores: tuple[Score, ...]

    @property
    def accepted(self) -> bool:
        return not has_errors(self.findings)


def check(
    path: Path,
    ruleset: Ruleset,
    starting: Callable[[int], None] = lambda logs: None,
    told: Callable[[int], None] = lambda logs: None,
    limits: Limits | None = None,
    runs: Path | None = None,
) -> Report:
    """Check a package, a folder of packages, one system's results, one log, or an archive of any of these.

    Works on a copy that is gone afterwards, whatever happens. `starting` is called with the number of logs, `told` with
    the numbers of logs judged since, from any thread. `runs` is a folder of Podium's own runs: logs of these must say
    what they were configured with. Raises UsageError where `path` holds no results.
    """
    if runs is not None and not runs.is_dir():
        raise UsageError(
            f"--runs {runs}: there is no such folder; name the one with Podium's own runs, such as runs/laptop"
        )
    if not path.exists():
        raise UsageError(f"{path}: there is no such file or folder; name a package, a folder of results, or a log")
    with tempfile.TemporaryDirectory(prefix="podium-check-") as folder:
        tally = Tally(limits or Limits())
        copy = _copy(path.resolve(), Path(folder) / "copy", tally)
        packages = _packages(path, copy, tally)
        root = copy if copy.is_dir() else copy.parent
        scratch = Path(folder) / "scratch"
        scratch.mkdir()
        starting(sum(len(result.logs) for package in packages for result in package.results))
        own: list[Finding] = []
        configurations = configurations_in(runs) if runs is not None else {}

        def check_own() -> None:
            judged = any(result.benchmark == "bert" and result.logs for one in packages for result in one.results)
            for package in packages:
                prefix = PurePosixPath(package.root.relative_to(root))
                for finding in check_package(package, ruleset, configurations, judged):
                    own.append(replace(finding, path=printable(str(prefix / finding.path))))

        official = ask_official(packages, root, scratch, ruleset, told, meanwhile=check_own)
    return _report(path, ruleset, packages, official, [*tally.findings, *official.findings, *own])


def _copy(path: Path, target: Path, tally: Tally) -> Path:
    """Where the copy is; with the names of the two folders above, by which a log is known."""
    if path.is_file() and is_archive(path):
        target.mkdir(parents=True)
        unpack(path, target / archive_stem(path), tally)
        return target / archive_stem(path)
    root, parts = _scope(path)
    place = target / (root.parent.parent.name or "_") / (root.parent.name or "_") / (root.name or "_")
    place.parent.mkdir(parents=True)
    if root.is_file():
        copy_file(root, place, tally, PurePosixPath(root.name))
    elif not parts:
        copy_tree(root, place, tally)
    else:
        for part in parts:
            (place / part).parent.mkdir(parents=True, exist_ok=True)
            if (root / part).is_dir():
                copy_tree(root / part, place / part, tally, part)
            else:
                copy_file(root / part, place / part, tally, part)
    return place


def _scope(path: Path) -> tuple[Path, tuple[PurePosixPath, ...]]:
    """What belongs to the check of `path`: a folder or file, and the parts of it that are copied, or none for all.

    Of one system's results, or one set of them, it is the package that they belong to, with that system alone.
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
    """Whether it has the systems/ of a package, be it empty; a user's own systems/ of Podium holds YAML files alone."""
    folder = root / "systems"
    if not folder.is_dir() or folder.is_symlink():
        return False
    return any(folder.glob("*.json")) or not any(folder.glob("*.yaml"))


def _packages(path: Path, copy: Path, tally: Tally) -> list[Package]:
    """The packages of the copy; none where it is not whole, or where nothing but what was refused is in it."""
    if not tally.whole:
        return []
    try:
        return find_packages(copy)
    except UsageError as error:
        if tally.findings:
            return []
        raise UsageError(str(error).replace(str(copy), str(path))) from None


def _report(
    path: Path, ruleset: Ruleset, packages: list[Package], official: Official, findings: list[Finding]
) -> Report:
    failed = {finding.path for finding in findings if finding.source == "podium" and finding.severity == "error"}
    files = [
        FileVerdict(name, verdict, "failed" if name in failed else "passed")
        for name, verdict in sorted(official.verdicts.items(), key=lambda item: natural(item[0]))
    ]
    return Report(
        path=str(path),
        ruleset=ruleset.name,
        packages=tuple(package.name for package in packages),
        files=tuple(files),
        findings=tuple(
            sorted(set(findings), key=lambda f: (natural(f.path), f.severity, f.rule, f.line or 0, f.message))
        ),
        scores=tuple(sorted(official.scores, key=lambda score: natural(score.path))),
    )


def natural(path: str) -> tuple[tuple[int, int, str], ...]:
    """Sorts result_2.txt before result_10.txt, and a folder before what is in it."""
    parts = re.findall(r"\d{1,18}|\D+", path)
    return tuple((0, int(part), "") if part[0].isascii() and part.isdigit() else (1, 0, part) for part in parts)


MAX_ALIKE = 3  # files of a folder that are named where the same is found in more of them

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
    packages = f"{len(report.packages):,} packages, " if len(report.packages) != 1 else ""
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
            print_line(console, f"{score.path}: official score {score.minutes:,.3f} min{factor}{counted}")
    print_line(console, summary(report), "bold green" if report.accepted else "bold red")


def _rows(report: Report) -> Iterator[tuple[Text, ...]]:
    """Of each folder the verdicts, files of the same verdicts together, then the findings, those alike together."""
    by_folder: dict[str, list[FileVerdict]] = {}
    for file in report.files:
        by_folder.setdefault(_folder(file.path), []).append(file)
    places = dict.fromkeys([*by_folder, *(_folder(finding.path) for finding in report.findings)])
    for place in sorted(places):
        by_verdicts: dict[tuple[str, str], list[str]] = {}
        for file in by_folder.get(place, []):
            by_verdicts.setdefault((file.official, file.podium), []).append(file.path)
        for verdicts, paths in sorted(by_verdicts.items()):
            official, podium = (Text(verdict, _STYLES[verdict]) for verdict in verdicts)
            yield Text(_names(place, paths)), official, podium, Text()
        alike: dict[tuple[Severity, str, str, str], list[str]] = {}
        for finding in report.findings:
            if _folder(finding.path) == place:
                key = finding.severity, finding.source, finding.rule, finding.message
                line = "" if finding.line is None else f":{finding.line}"
                alike.setdefault(key, []).append(finding.path + line)
        for (severity, source, _, message), paths in alike.items():
            found = Text.assemble(MARKS[severity], " ", (source, "bold"), f": {printable(message)}")
            yield Text("  " + _names(place, paths, named=True)), Text(), Text(), found


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


def _folder(path: str) -> str:
    """The folder that a path is told under: of a log its set of results, of anything else the one that holds it."""
    pure = PurePosixPath(path)
    return str(pure if pure.name == "bert" else pure.parent)


STYLES = {"same": "green", "differs": "red", "not stated": "yellow", "cannot be told": "dim"}


def print_fields(console: Console, system: str, fields: Sequence["Field"]) -> None:
    """A line a field: what the file says beside what this machine tells."""
    table = text_table(
        "field", "file", "detected", "verdict", title=f"{system}: described and detected", no_wrap="field"
    )
    for one in fields:
        cells = map(Text, (one.name, one.stated, one.detected or UNKNOWN))
        table.add_row(*cells, Text(one.verdict, STYLES[one.verdict]))
    console.print(table)


def print_packaged(console: Console, packaged: "Packaged") -> None:
    """For each system the windows, where there is more than one, and what it comes to; then where the package is."""
    for one in packaged.systems:
        if len(one.choice.scores) > 1:
            console.print(_windows(one))
        console.print(_system(one))
        for text in one.compared:
            print_line(console, f"compared: {one.system}: {text}")
        for note in one.notes:
            print_line(console, f"note: {one.system}: {note}")
    for finding in packaged.findings:
        print_line(console, f"warning: {finding.rule}: {finding.path}: {finding.message} ({finding.source})")
    print_line(console, str(packaged.folder))


def packaged_json(packaged: "Packaged") -> dict[str, Any]:
    return {
        "package": str(packaged.folder),
        "systems": [_json(one) for one in packaged.systems],
        "findings": [finding.as_json(JSON_FIELDS) for finding in packaged.findings],
    }


def _json(one: "Submitted") -> dict[str, Any]:
    choice, found = one.choice, one.convergence
    return {
        "system": one.system,
        "division": one.config.division,
        "score_seconds": choice.score,
        "scaled_score_seconds": choice.score * _factor(found),
        "runs": [{"file": str(run.path), "seconds": _finite(scored_seconds(run))} for run in choice.runs],
        "window_scores": [_finite(score) for score in choice.scores],
        "window": choice.window,
        "convergence": None if found is None else {k: v for k, v in asdict(found).items() if k != "scaling"},
        "scaled": found is not None and found.scaling is not None,
        "commit": one.code.commit,
        "commit_made_the_runs": one.code.made_the_runs,
        "compared": list(one.compared),
        "notes": list(one.notes),
    }


def _windows(one: "Submitted") -> Table:
    choice = one.choice
    title = f"{one.system}: {len(choice.scores)} windows of {RUNS} consecutive runs"
    caption = "the median window is taken"
    if len(choice.scores) % 2 == 0:
        caption += "; of the two in the middle, the slower: the choice must never gain anything"
    table = figure_table(title, "from", "to", "score", "rank", "", caption=caption)
    ranks = sorted(range(len(choice.scores)), key=lambda window: (choice.scores[window], window))
    for window, score in enumerate(choice.scores):
        names = (choice.runs[window].name, choice.runs[window + RUNS - 1].name)
        rank = str(1 + ranks.index(window))
        table.add_row(*map(Text, names), _seconds(score), rank, "taken" if window == choice.window else "")
    return table


def _system(one: "Submitted") -> Table:
    table = summary_table(f"{one.system}, {one.config.division} division")
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
