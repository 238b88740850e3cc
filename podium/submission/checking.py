"""Checks somebody's package: the official tools and what they let through, with a verdict for every file."""

import os
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Literal

from benchmarks.errors import UsageError
from benchmarks.finding import Finding, has_errors
from benchmarks.text import printable
from podium.reading.package import Package, find_packages
from podium.submission.checks import check_package
from podium.submission.checks.configured import configurations_in
from podium.submission.copying import Limits, Tally, copy_file, copy_tree
from podium.submission.official.asking import Official, Score, Verdict, ask_official
from podium.submission.rulesets import Ruleset
from podium.submission.unpacking import archive_stem, is_archive, unpack


@dataclass(frozen=True)
class FileVerdict:
    """What was found about one log or one system's description."""

    path: str
    official: Verdict
    """Of the official compliance checker or system description checker alone."""
    podium: Literal["passed", "failed"]
    """Whether Podium's own checks found no error in it."""


@dataclass(frozen=True)
class Report:
    """What was found about a package, or several."""

    path: str
    """As it was asked for; all other paths are relative to it."""
    ruleset: str
    packages: tuple[str, ...]
    files: tuple[FileVerdict, ...]
    findings: tuple[Finding, ...]
    scores: tuple[Score, ...]

    @property
    def accepted(self) -> bool:
        return not has_errors(self.findings)


@dataclass(frozen=True)
class _Scope:
    """What of the file system belongs to a check."""

    root: Path
    parts: tuple[PurePosixPath, ...] | None
    """Of `root`, what is copied; None for all."""


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
    scope = _scope(path) if path.is_dir() else _Scope(path, None)
    root = scope.root
    place = target / (root.parent.parent.name or "_") / (root.parent.name or "_") / (root.name or "_")
    place.parent.mkdir(parents=True)
    if root.is_file():
        copy_file(root, place, tally, PurePosixPath(root.name))
    elif scope.parts is None:
        copy_tree(root, place, tally)
    else:
        for part in scope.parts:
            (place / part).parent.mkdir(parents=True, exist_ok=True)
            if (root / part).is_dir():
                copy_tree(root / part, place / part, tally, part)
            else:
                copy_file(root / part, place / part, tally, part)
    return place


def _scope(path: Path) -> _Scope:
    """The package that one system's results, or one set of them, belong to, with that system alone; else `path`."""
    for system in (path, path.parent):
        root = system.parent.parent
        description = PurePosixPath("systems") / f"{system.name}.json"
        if system.parent.name == "results" and _has_systems(root) and os.path.lexists(root / description):
            return _Scope(root, (description, PurePosixPath(path.relative_to(root).as_posix())))
    if path.name == "results" and _has_systems(path.parent):
        return _Scope(path.parent, (PurePosixPath("systems"), PurePosixPath("results")))
    return _Scope(path, None)


def _has_systems(root: Path) -> bool:
    return (root / "systems").is_dir() and not (root / "systems").is_symlink()


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
