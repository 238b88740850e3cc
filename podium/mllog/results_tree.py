"""A package of results in the layout of ORG/systems and ORG/results: its files and its system descriptions.

Only system descriptions are opened. Symbolic links and special files are never followed or opened: they are listed
as files of another kind.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from podium.core.errors import UsageError, WorkError
from podium.mllog.lines import parse

MAX_DESCRIPTION = 1 << 20
LOGS = "result_*.txt"
SCALING = "scaling.json"  # the factor by which a score is scaled for its convergence, beside the logs


@dataclass(frozen=True)
class SystemFile:
    """systems/NAME.json."""

    path: Path
    name: str
    fields: Mapping[str, Any] | None  # what it says; None where it cannot be read
    problem: str | None  # why it cannot be read, or what is odd about it, as a sentence fragment


@dataclass(frozen=True)
class ResultFolder:
    """results/SYSTEM/BENCHMARK, a set of runs."""

    path: Path
    system: str
    benchmark: str
    logs: tuple[Path, ...]  # result_*.txt, in the order of the numbers in their names
    others: tuple[Path, ...]  # whatever else the folder holds


@dataclass(frozen=True)
class Package:
    """What one organisation submits."""

    root: Path
    name: str
    systems: tuple[SystemFile, ...]
    results: tuple[ResultFolder, ...]

    def system(self, name: str) -> SystemFile | None:
        return next((system for system in self.systems if system.name == name), None)

    def relative(self, path: Path) -> str:
        """As findings name a file of the package."""
        return path.relative_to(self.root).as_posix()


def find_packages(path: Path) -> list[Package]:
    """The packages in `path`, in the order of their names.

    `path` is an ORG folder; a folder of such folders, as a round's repository; the results of several systems, of one
    system, or of one benchmark of it; or one log. Raises UsageError where it is none of these, WorkError where it
    cannot be read.
    """
    try:
        found = _find(path)
    except OSError as error:
        raise WorkError(f"{error.filename or path}: cannot be read ({error.strerror})") from error
    if not found:
        raise UsageError(
            f"{path}: holds no results; name a folder with systems/ and results/, a folder of such folders, a folder "
            f"with {LOGS}, or one log"
        )
    return found


def _find(path: Path) -> list[Package]:
    if not path.exists():
        raise UsageError(f"{path}: there is no such file or folder; name a package, a folder of results, or a log")
    if not path.is_dir():
        folder = path.absolute().parent
        alone = ResultFolder(path.parent, folder.parent.name, folder.name, (path,), ())
        return [Package(path.parent, folder.name, (), (alone,))]
    if is_package(path):
        return [read_package(path)]
    whole = path.absolute()
    result = read_results(path, whole.parent.name, whole.name)
    if result.logs:
        return [Package(path, whole.name, (), (result,))]
    results = [read_results(folder, whole.name, folder.name) for folder in folders(path)]
    results = results if any(result.logs for result in results) else _results_of_systems(path)
    if any(result.logs for result in results):
        return [Package(path, whole.name, (), tuple(results))]
    return [read_package(folder) for folder in folders(path) if is_package(folder)]


def is_package(folder: Path) -> bool:
    """Whether it has systems/ or results/, as an ORG folder has."""
    return any(part.is_dir() and not part.is_symlink() for part in (folder / "systems", folder / "results"))


def read_package(root: Path) -> Package:
    """The package of that ORG folder. OSError where a folder of it cannot be listed."""
    systems = [
        SystemFile(path, path.stem, *_description(path))
        for path in _entries(root / "systems")
        if path.suffix == ".json" and _is_file(path)
    ]
    return Package(root, root.absolute().name, tuple(systems), tuple(_results_of_systems(root / "results")))


def _results_of_systems(folder: Path) -> list[ResultFolder]:
    """Of a folder SYSTEM/BENCHMARK, such as results/."""
    return [
        read_results(benchmark, system.name, benchmark.name)
        for system in folders(folder)
        for benchmark in folders(system)
    ]


def read_results(folder: Path, system: str, benchmark: str) -> ResultFolder:
    """What a folder of logs holds. OSError where it cannot be listed."""
    logs: list[Path] = []
    others: list[Path] = []
    for path in _entries(folder):
        (logs if path.match(LOGS) and _is_file(path) else others).append(path)
    return ResultFolder(folder, system, benchmark, in_order(logs), tuple(others))


def _description(path: Path) -> tuple[Mapping[str, Any] | None, str | None]:
    with path.open("rb") as file:
        content = file.read(MAX_DESCRIPTION + 1)
    if len(content) > MAX_DESCRIPTION:
        return None, f"is larger than {MAX_DESCRIPTION:,} bytes"
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        return None, f"is not UTF-8 at byte {error.start:,}"
    if text.startswith("\ufeff"):
        return None, "begins with a byte order mark, which JSON does not allow"
    try:
        fields, odd = parse(text)
    except ValueError as error:
        return None, str(error)
    if not isinstance(fields, dict):
        return None, "is no JSON object"
    return fields, "; ".join(odd) or None


def _entries(folder: Path) -> list[Path]:
    """What a folder holds, by name; nothing where it is no folder or a link to one."""
    return sorted(folder.iterdir(), key=lambda path: path.name) if folder.is_dir() and not folder.is_symlink() else []


def folders(folder: Path) -> Iterator[Path]:
    """The folders in a folder, by name, without links to some. OSError where it cannot be listed."""
    return (path for path in _entries(folder) if path.is_dir() and not path.is_symlink())


def _is_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def in_order(logs: Iterable[Path]) -> tuple[Path, ...]:
    """result_2.txt before result_10.txt."""
    return tuple(sorted(logs, key=lambda path: ([int(n) for n in re.findall(r"\d{1,4000}", path.stem)], path.name)))
