"""Finds results in packages of a round, in one package or a part of it, or in results/ of this repository.

The round of MLPerf Training that a tree of results belongs to is determined by its name, by the repository that it
was cloned from, or by its dates.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from podium.core.errors import UsageError, WorkError
from podium.core.text import format_list, printable
from podium.mllog.benchmarks import find_benchmark
from podium.mllog.results_tree import LOGS, Package, ResultFolder, is_package, list_folders, read_package, read_results
from podium.mllog.rounds import find_round, parse_round
from podium.mllog.run import BERT

MAX_PACKAGE_DEPTH = 3  # levels of folders below the path that are searched for packages, such as closed/ORG
MAX_FOLDERS = 20_000  # in one tree; bounds the time where a path is not a tree of results, such as /


@dataclass(frozen=True)
class PackageResults:
    """The results of one package."""

    package: Package
    round: str | None  # by the names of folders; None if they name none
    results: tuple[ResultFolder, ...]  # with at least one log each
    left_out: tuple[Path, ...] = ()  # folders of a system with logs that are in no folder of a benchmark
    irregular: tuple[Path, ...] = ()  # links, pipes and devices, which are never followed or opened


def discover_results(path: Path) -> list[PackageResults]:
    """Return all results in a path: a folder of rounds, a round's repository, a package, a part of one, or a log.

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
    all_results = [_with_round(package, path, requested) for package in found]
    if not any(package_results.results for package_results in all_results):
        links = [] if not path.is_dir() else find_irregular(path)
        if links:
            names = printable(format_list([link.name for link in links]))
            raise UsageError(
                f"{path}: contains no results besides links, pipes or devices, which are not followed ({names}); name "
                "the folders that they lead to"
            )
        raise UsageError(
            f"{path}: contains no results; name a clone of a round's results or a part of it, a folder with "
            f"SYSTEM/BENCHMARK/{LOGS}, or one log"
        )
    return [package_results for package_results in all_results if package_results.results or package_results.left_out]


def _with_round(package: Package, top: Path, requested: Path) -> PackageResults:
    """Return the results of a package. `top` is `requested`, the path of the user, with links resolved."""
    round_name = find_round(package.root, top) or parse_round(requested.name)
    systems = list_folders(package.root / "results")
    left_out = tuple(system for system in systems if any(True for _ in system.glob(LOGS)))
    results = tuple(result for result in package.results if result.logs)
    irregular = tuple(path for folder in (*_listed_folders(package), top) for path in find_irregular(folder))
    left_out = () if is_within_a_system(top, package) else left_out
    return PackageResults(package, round_name, results, left_out, tuple(dict.fromkeys(irregular)))


def _listed_folders(package: Package) -> Iterator[Path]:
    """Yield the folders of a package that are listed for descriptions and logs."""
    yield from (package.root, package.root / "systems", package.root / "results")
    yield from dict.fromkeys(result.path.parent for result in package.results)
    yield from (result.path for result in package.results)


def find_irregular(folder: Path) -> list[Path]:
    """Return what a folder has besides files and folders: links, pipes, devices. Empty for a link or no folder."""
    if folder.is_symlink() or not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        found = [
            entry.name
            for entry in entries
            if not entry.is_file(follow_symlinks=False) and not entry.is_dir(follow_symlinks=False)
        ]
    return [folder / name for name in sorted(found)]


def is_within_a_system(top: Path, package: Package) -> bool:
    """Whether the path that was requested is a part of one system's results."""
    results = (package.root / "results").absolute()
    return top.absolute() != results and top.absolute().is_relative_to(results)


def _package_around(path: Path) -> list[Package]:
    """Return the package that a log, a folder of logs, a system's results or results/ belong to, reduced to that part.

    The list is empty if `path` is a folder that is not a part of a package.
    """
    absolute = path.absolute()
    for results in (absolute, *list(absolute.parents)[:3]):
        if results.name == "results" and is_package(results.parent):
            package = read_package(results.parent)
            inside = [result for result in package.results if result.logs and _is_within(result, absolute)]
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
        sets = [read_results(path, absolute.name, path.name) for path in below if is_benchmark_folder(path.name)]
        if own.logs or any(one.logs for one in sets):
            found.append(_as_package(folder, (own,) if own.logs else tuple(sets)))
        elif levels:
            pending += [(path, levels - 1) for path in reversed(below)]
    return found


def is_benchmark_folder(name: str) -> bool:
    """Whether a folder outside of a package is named after a benchmark: bert, bert_large, LLAMA31_8B."""
    name = name.lower()
    return find_benchmark(name) is not None or BERT in name


def _as_package(folder: Path, results: tuple[ResultFolder, ...]) -> Package:
    """Return a package without systems/ for results that are not in a package."""
    return Package(folder, folder.absolute().name, (), results)
