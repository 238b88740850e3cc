"""Finds results: in packages of a round, in one package or a part of it, or in results/ of this repository.

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
from podium.mllog.results_tree import LOGS, Package, ResultFolder, folders, is_package, read_package, read_results

# When its results were published. BERT was in v0.7 to v5.0.
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

_NAMED = re.compile(r"(?:^|[\W_])(?:v|round)?(\d\.\d)(?:\.0)?(?=$|[^\w.]|_)", re.IGNORECASE)
_CLONED = re.compile(r"training[-_]results[-_]v?(\d\.\d)", re.IGNORECASE)
MAX_GIT_CONFIG = 1 << 16
PARENT_LEVELS = 3  # folders above a package that may name its round


def round_named(text: str) -> str | None:
    """The round that a name speaks of, such as v2.1 for training_results_v2.1, 2.1 or V2.1; None for none."""
    found = [f"v{number}" for number in _NAMED.findall(text)]
    known = [name for name in found if name in ROUNDS]
    return known[-1] if known else None


def round_of(root: Path, top: Path) -> str | None:
    """The round of the package in `root`, found in the tree `top`: by the names of the folders above it, the nearest
    first, down to `top`'s own and its parents', or by what `top` was cloned from. None where nothing tells."""
    for folder in list(root.absolute().parents)[:PARENT_LEVELS]:
        name = round_named(folder.name) or _cloned(folder)
        if name is not None:
            return name
    return round_named(top.name) or _cloned(top)


def round_by_dates(starts_ms: Sequence[float]) -> str | None:
    """The round that runs of these dates can have been made for: the first one that was published after the median of
    the newest half of them, as results of earlier rounds may be handed in again. None after the last round."""
    if not starts_ms:
        return None
    newest = median(sorted(starts_ms)[len(starts_ms) // 2 :])
    published = {name: datetime.fromisoformat(f"{day}T00:00Z").timestamp() * 1e3 for name, day in ROUNDS.items()}
    return next((name for name, time_ms in published.items() if newest < time_ms), None)


def _cloned(folder: Path) -> str | None:
    try:
        with (folder / ".git" / "config").open("rb") as file:
            found = _CLONED.search(file.read(MAX_GIT_CONFIG).decode("utf-8", errors="replace"))
    except OSError:
        return None
    return f"v{found[1]}" if found is not None and f"v{found[1]}" in ROUNDS else None


BENCHMARK = "bert"
LEVELS = 3  # folders between the one that is given and a package, such as closed/ORG
MAX_FOLDERS = 20_000  # that are looked into for packages, in one tree


@dataclass(frozen=True)
class Place:
    """The BERT results of one package."""

    package: Package
    round: str | None  # as names tell it
    results: tuple[ResultFolder, ...]  # those with logs
    others: int  # result folders of other benchmarks


def places(path: Path) -> list[Place]:
    """All results in a path: a folder of rounds, a round's repository, one package, a part of one, or one log.

    UsageError where there are none, WorkError where a folder cannot be read.
    """
    given = path
    if ".." in path.parts or path.is_symlink():
        path = path.resolve()
    if not os.path.lexists(path):
        raise UsageError(f"{path}: there is no such file or folder; name a round's results, a package or a log")
    try:
        found = _part(path)
        if not found and path.is_dir():
            found = _packages(path)
    except OSError as error:
        raise WorkError(f"{printable(str(error.filename or path))}: cannot be read ({error.strerror})") from error
    placed = [_place(package, path, given) for package in found]
    if not any(place.results for place in placed):
        raise UsageError(
            f"{path}: holds no results of BERT; name a clone of a round's results or a part of it, a folder with "
            f"SYSTEM/bert/{LOGS}, or one log"
        )
    return [place for place in placed if place.results]


def _place(package: Package, top: Path, given: Path) -> Place:
    """`top` is where `given`, which may be a link, leads."""
    logs = [result for result in package.results if result.logs]
    ours = tuple(result for result in logs if BENCHMARK in result.benchmark.lower() or result.path == top)
    alone = tuple(result for result in logs if len(logs) == 1 and top.is_file())
    round_name = round_of(package.root, top) or round_named(given.name)
    return Place(package, round_name, ours or alone, len(logs) - len(ours or alone))


def _part(path: Path) -> list[Package]:
    """The package that a log, a set of logs, a system's results or results/ belong to, with nothing else of it."""
    whole = path.absolute()
    for results in (whole, *list(whole.parents)[:3]):
        if results.name == "results" and is_package(results.parent):
            package = read_package(results.parent)
            inside = [result for result in package.results if _within(result, whole)]
            kept = [replace(one, logs=(path,), others=()) for one in inside] if whole.is_file() else inside
            if kept:
                return [replace(package, results=tuple(kept))]
    if whole.is_file():
        return [
            _loose(whole.parent, (ResultFolder(path.parent, whole.parent.parent.name, whole.parent.name, (path,), ()),))
        ]
    return []


def _within(result: ResultFolder, whole: Path) -> bool:
    folder = result.path.absolute()
    return folder.is_relative_to(whole) or (whole.parent == folder and whole in {p.absolute() for p in result.logs})


def _packages(top: Path) -> list[Package]:
    """WorkError where more is looked into than any tree of results has."""
    found, left, looked = list[Package](), [(top, LEVELS)], 0
    while left:
        folder, levels = left.pop()
        looked += 1
        if looked > MAX_FOLDERS:
            raise WorkError(f"{folder}: more than {MAX_FOLDERS:,} folders before it hold no package; name a part of it")
        if is_package(folder):
            found.append(read_package(folder))
            continue
        whole = folder.absolute()
        own = read_results(folder, whole.parent.name, whole.name)
        below = [] if own.logs else [path for path in folders(folder) if not path.name.startswith(".")]
        sets = [read_results(path, whole.name, path.name) for path in below if BENCHMARK in path.name.lower()]
        if own.logs or any(one.logs for one in sets):
            found.append(_loose(folder, (own,) if own.logs else tuple(sets)))
        elif levels:
            left += [(path, levels - 1) for path in reversed(below)]
    return found


def _loose(folder: Path, results: tuple[ResultFolder, ...]) -> Package:
    """Results that no package is around."""
    return Package(folder, folder.absolute().name, (), results)
