"""Finds results in packages of a round, in one package or a part of it, or in results/ of this repository.

The round of MLPerf Training that a tree of results belongs to is determined by its name, by the repository that it
was cloned from, or by its dates.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from statistics import median

from podium.core.errors import UsageError, WorkError
from podium.core.text import printable
from podium.mllog.results_tree import LOGS, Package, ResultFolder, is_package, list_folders, read_package, read_results

# Publication date of each round. BERT was in v0.7 to v5.0.
ROUNDS = {
    "v0.5": "2018-12-12",
    "v0.6": "2019-07-10",
    "v0.7": "2020-07-29",
    "v1.0": "2021-06-30",
    "v1.1": "2021-12-01",
    "v2.0": "2022-06-29",
    "v2.1": "2022-11-09",
    "v3.0": "2023-06-27",
    "v3.1": "2023-11-08",
    "v4.0": "2024-06-12",
    "v4.1": "2024-11-13",
    "v5.0": "2025-06-04",
    "v5.1": "2025-11-12",
}

_ROUND_NAME = re.compile(r"(?:^|[\W_])(?:v|round)?(\d\.\d)(?:\.0)?(?=$|[^\w.]|_)", re.IGNORECASE)
_CLONE_URL = re.compile(r"training[-_]results[-_]v?(\d\.\d)", re.IGNORECASE)
MAX_GIT_CONFIG = 1 << 16
PARENT_LEVELS = 3  # folders above a package that may name its round


def parse_round(text: str) -> str | None:
    """Return the round in a name, such as v2.1 for training_results_v2.1, 2.1 or V2.1; None if there is none."""
    found = [f"v{number}" for number in _ROUND_NAME.findall(text)]
    known = [name for name in found if name in ROUNDS]
    return known[-1] if known else None


def find_round(root: Path, top: Path) -> str | None:
    """Return the round of the package in `root`, which was found in the tree `top`; None if it is unknown.

    It is taken from the names of the folders above `root`, the nearest first, and of `top`, or from the URL that one of
    them was cloned from.
    """
    for folder in list(root.absolute().parents)[:PARENT_LEVELS]:
        name = parse_round(folder.name) or _round_from_git_config(folder)
        if name is not None:
            return name
    return parse_round(top.name) or _round_from_git_config(top)


def round_from_dates(starts_ms: Sequence[float]) -> str | None:
    """Return the round that runs which started at these times (ms since 1970) were made for.

    This is the first round that was published after the median of the newest half of the times, since runs of earlier
    rounds may be submitted again. None for no times, and for times after the last round.
    """
    if not starts_ms:
        return None
    newest = median(sorted(starts_ms)[len(starts_ms) // 2 :])
    published = {name: datetime.fromisoformat(f"{day}T00:00Z").timestamp() * 1e3 for name, day in ROUNDS.items()}
    return next((name for name, time_ms in published.items() if newest < time_ms), None)


def _round_from_git_config(folder: Path) -> str | None:
    try:
        with (folder / ".git" / "config").open("rb") as file:
            found = _CLONE_URL.search(file.read(MAX_GIT_CONFIG).decode("utf-8", errors="replace"))
    except OSError:
        return None
    return f"v{found[1]}" if found is not None and f"v{found[1]}" in ROUNDS else None


BENCHMARK = "bert"
MAX_PACKAGE_DEPTH = 3  # levels of folders below the path that are searched for packages, such as closed/ORG
MAX_FOLDERS = 20_000  # in one tree; bounds the time where a path is not a tree of results, such as /


@dataclass(frozen=True)
class PackageResults:
    """The BERT results of one package."""

    package: Package
    round: str | None  # by the names of folders; None if they name none
    results: tuple[ResultFolder, ...]  # with at least one log each
    others: int  # number of result folders of other benchmarks


def discover_results(path: Path) -> list[PackageResults]:
    """Return all BERT results in a path: a folder of rounds, a round's repository, a package, a part of one, or a log.

    Raises UsageError if there are none, WorkError if a folder cannot be read.
    """
    requested = path
    if ".." in path.parts or path.is_symlink():
        path = path.resolve()
    if not os.path.lexists(path):
        raise UsageError(f"{path}: there is no such file or folder; name a round's results, a package or a log")
    try:
        found = _package_around(path)
        if not found and path.is_dir():
            found = _search_packages(path)
    except OSError as error:
        raise WorkError(f"{printable(str(error.filename or path))}: cannot be read ({error.strerror})") from error
    all_results = [_select_bert_results(package, path, requested) for package in found]
    if not any(package_results.results for package_results in all_results):
        raise UsageError(
            f"{path}: contains no results of BERT; name a clone of a round's results or a part of it, a folder with "
            f"SYSTEM/bert/{LOGS}, or one log"
        )
    return [package_results for package_results in all_results if package_results.results]


def _select_bert_results(package: Package, top: Path, requested: Path) -> PackageResults:
    """Return the BERT results of a package. `top` is `requested`, the path of the user, with links resolved."""
    logs = [result for result in package.results if result.logs]
    bert = tuple(result for result in logs if BENCHMARK in result.benchmark.lower() or result.path == top)
    single_log = tuple(result for result in logs if len(logs) == 1 and top.is_file())
    round_name = find_round(package.root, top) or parse_round(requested.name)
    return PackageResults(package, round_name, bert or single_log, len(logs) - len(bert or single_log))


def _package_around(path: Path) -> list[Package]:
    """Return the package that a log, a folder of logs, a system's results or results/ belong to, reduced to that part.

    The list is empty if `path` is a folder that is not a part of a package.
    """
    absolute = path.absolute()
    for results in (absolute, *list(absolute.parents)[:3]):
        if results.name == "results" and is_package(results.parent):
            package = read_package(results.parent)
            inside = [result for result in package.results if _is_within(result, absolute)]
            kept = [replace(one, logs=(path,), others=()) for one in inside] if absolute.is_file() else inside
            if kept:
                return [replace(package, results=tuple(kept))]
    if absolute.is_file():
        return [
            _as_package(
                absolute.parent,
                (ResultFolder(path.parent, absolute.parent.parent.name, absolute.parent.name, (path,), ()),),
            )
        ]
    return []


def _is_within(result: ResultFolder, absolute: Path) -> bool:
    folder = result.path.absolute()
    return folder.is_relative_to(absolute) or (
        absolute.parent == folder and absolute in {p.absolute() for p in result.logs}
    )


def _search_packages(top: Path) -> list[Package]:
    """Return the packages in a tree, without hidden folders. Raises WorkError for more than MAX_FOLDERS folders."""
    found, pending, visited = list[Package](), [(top, MAX_PACKAGE_DEPTH)], 0
    while pending:
        folder, levels = pending.pop()
        visited += 1
        if visited > MAX_FOLDERS:
            raise WorkError(f"{top}: more than {MAX_FOLDERS:,} folders were searched for results; name a part of it")
        if is_package(folder):
            found.append(read_package(folder))
            continue
        absolute = folder.absolute()
        own = read_results(folder, absolute.parent.name, absolute.name)
        below = [] if own.logs else [path for path in list_folders(folder) if not path.name.startswith(".")]
        sets = [read_results(path, absolute.name, path.name) for path in below if BENCHMARK in path.name.lower()]
        if own.logs or any(one.logs for one in sets):
            found.append(_as_package(folder, (own,) if own.logs else tuple(sets)))
        elif levels:
            pending += [(path, levels - 1) for path in reversed(below)]
    return found


def _as_package(folder: Path, results: tuple[ResultFolder, ...]) -> Package:
    """Return a package without systems/ for results that are not in a package."""
    return Package(folder, folder.absolute().name, (), results)
