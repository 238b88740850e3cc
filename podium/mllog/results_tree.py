"""Submission packages in the layout ORG/systems and ORG/results: finds their files, reads system descriptions.

Only system descriptions are opened. Symbolic links and special files are never followed or opened, since packages are
untrusted; they are listed among the other files.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from podium.core.errors import UsageError, WorkError
from podium.mllog.lines import parse_bounded_json

MAX_DESCRIPTION = 1 << 20
LOGS = "result_*.txt"
SCALING = "scaling.json"  # the factor by which a score is scaled for its convergence, beside the logs


@dataclass(frozen=True)
class SystemFile:
    """A system description, systems/NAME.json."""

    path: Path
    name: str
    fields: Mapping[str, Any] | None  # None where it cannot be read
    problem: str | None  # why it cannot be read, or its anomalies, as a sentence fragment


@dataclass(frozen=True)
class ResultFolder:
    """A set of runs, results/SYSTEM/BENCHMARK."""

    path: Path
    system: str
    benchmark: str
    logs: tuple[Path, ...]  # result_*.txt, in the order of the numbers in their names
    others: tuple[Path, ...]  # all other files of the folder


@dataclass(frozen=True)
class Package:
    """The submission of one organisation."""

    root: Path
    name: str
    systems: tuple[SystemFile, ...]
    results: tuple[ResultFolder, ...]

    def system(self, name: str) -> SystemFile | None:
        """Return the description of that name, or None."""
        return next((system for system in self.systems if system.name == name), None)

    def relative(self, path: Path) -> str:
        """Return a file's path within the package, as findings name it."""
        return path.relative_to(self.root).as_posix()


def find_packages(path: Path) -> list[Package]:
    """Find the packages in `path`, sorted by name.

    `path` is an ORG folder; a folder of such folders, as a round's repository; the results of several systems, of one
    system, or of one benchmark of it; or one log. Raises UsageError for anything else, WorkError if it cannot be read.
    """
    try:
        found = _find_packages(path)
    except OSError as error:
        raise WorkError(f"{error.filename or path}: cannot be read ({error.strerror})") from error
    if not found:
        raise UsageError(
            f"{path}: has no results; give a folder with systems/ and results/, a folder of such folders, a folder "
            f"with {LOGS}, or one log"
        )
    return found


def _find_packages(path: Path) -> list[Package]:
    if not path.exists():
        raise UsageError(f"{path}: there is no such file or folder; give a package, a folder of results, or a log")
    if not path.is_dir():
        folder = path.absolute().parent
        alone = ResultFolder(path.parent, folder.parent.name, folder.name, (path,), ())
        return [Package(path.parent, folder.name, (), (alone,))]
    if is_package(path):
        return [read_package(path)]
    absolute = path.absolute()
    result = read_results(path, absolute.parent.name, absolute.name)
    if result.logs:
        return [Package(path, absolute.name, (), (result,))]
    results = [read_results(folder, absolute.name, folder.name) for folder in list_folders(path)]
    results = results if any(result.logs for result in results) else _read_system_results(path)
    if any(result.logs for result in results):
        return [Package(path, absolute.name, (), tuple(results))]
    return [read_package(folder) for folder in list_folders(path) if is_package(folder)]


def is_package(folder: Path) -> bool:
    """Whether a folder has systems/ or results/, as an ORG folder does."""
    return any(part.is_dir() and not part.is_symlink() for part in (folder / "systems", folder / "results"))


def read_package(root: Path) -> Package:
    """Read an ORG folder. Raises OSError if a folder in it cannot be listed."""
    systems = [
        SystemFile(path, path.stem, *read_description(path))
        for path in _list_entries(root / "systems")
        if path.suffix == ".json" and _is_regular_file(path)
    ]
    return Package(root, root.absolute().name, tuple(systems), tuple(_read_system_results(root / "results")))


def _read_system_results(folder: Path) -> list[ResultFolder]:
    """Read the sets of runs of a folder with SYSTEM/BENCHMARK, such as results/."""
    return [
        read_results(benchmark, system.name, benchmark.name)
        for system in list_folders(folder)
        for benchmark in list_folders(system)
    ]


def read_results(folder: Path, system: str, benchmark: str) -> ResultFolder:
    """List a folder of logs. Raises OSError if it cannot be listed."""
    logs: list[Path] = []
    others: list[Path] = []
    for path in _list_entries(folder):
        (logs if path.match(LOGS) and _is_regular_file(path) else others).append(path)
    return ResultFolder(folder, system, benchmark, sort_logs(logs), tuple(others))


def read_description(path: Path) -> tuple[Mapping[str, Any] | None, str | None]:
    """Read a system description; return its fields, or None, and what is wrong with it."""
    with path.open("rb") as file:
        content = file.read(MAX_DESCRIPTION + 1)
    if len(content) > MAX_DESCRIPTION:
        return None, f"is larger than {MAX_DESCRIPTION:,} bytes"
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        return None, f"is not UTF-8 at byte {error.start:,}"
    if text.startswith("\ufeff"):
        return None, "starts with a byte order mark, which JSON does not allow"
    try:
        fields, odd = parse_bounded_json(text)
    except ValueError as error:
        return None, str(error)
    if not isinstance(fields, dict):
        return None, "is not a JSON object"
    return fields, "; ".join(odd) or None


def _list_entries(folder: Path) -> list[Path]:
    """List a folder, sorted by name; empty for a link or anything else than a folder."""
    return sorted(folder.iterdir(), key=lambda path: path.name) if folder.is_dir() and not folder.is_symlink() else []


def list_folders(folder: Path) -> Iterator[Path]:
    """Yield the folders in a folder, sorted by name, without links. Raises OSError if it cannot be listed."""
    return (path for path in _list_entries(folder) if path.is_dir() and not path.is_symlink())


def _is_regular_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def sort_logs(logs: Iterable[Path]) -> tuple[Path, ...]:
    """Sort logs by the numbers in their names: result_2.txt comes before result_10.txt."""
    # At most 4,000 digits a number: int() of untrusted digits is quadratic, and refuses more than 4,300.
    return tuple(sorted(logs, key=lambda path: ([int(n) for n in re.findall(r"\d{1,4000}", path.stem)], path.name)))
