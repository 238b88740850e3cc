"""Finds runs in the folders that the user gives."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from podium.config.run_folder import RunFolder
from podium.core.errors import UsageError
from podium.core.text import format_list
from podium.run.records import SET_NAME, RunRecord, runs_of_set
from podium.run.set_record import SET

# Folders of other commands, by the prefix of their names.
OTHER_COMMANDS = {
    "predict_": "a result of `podium predict`, which trains nothing; `podium predict` prints it",
    "bench_": "a result of `podium bench`, which measures steps without a run; `podium bench` prints it",
}
MAX_NAMED = 5


class FoundRuns(NamedTuple):
    """The runs that were found, and notes on what was left out."""

    sets: Mapping[Path, Sequence[Path]]  # runs by folder, sorted by their numbers
    notes: Sequence[str]


def find_runs(paths: Sequence[Path]) -> FoundRuns:
    """Find the runs of these folders, grouped by set.

    A folder is that of a run, a set, a system, which stands for its newest set, or a sweep, which stands for all its
    sets. Raises UsageError for anything else.
    """
    by_set: dict[Path, set[Path]] = {}
    notes: list[str] = []
    for path in paths:
        for run in _find_in_folder(path, notes):
            by_set.setdefault(run.parent, set()).add(run)
    return FoundRuns({path: sorted(runs, key=_sort_key) for path, runs in by_set.items()}, list(dict.fromkeys(notes)))


def _find_in_folder(path: Path, notes: list[str]) -> list[Path]:
    if not path.exists():
        raise UsageError(f"{path}: there is no such folder; give one under runs/, such as runs/laptop")
    if not path.is_dir():
        raise UsageError(f"{path}: is a file; give the folder of a run, runs/SYSTEM/DATE_TIME/run_N")
    path = path.resolve()
    if RunRecord(RunFolder(path)).written:
        return [path]
    runs = _runs_of_set(path)
    if runs:
        return runs
    sets = [folder for folder in _list_folders(path) if SET_NAME.fullmatch(folder.name) and _runs_of_set(folder)]
    if sets:
        newest = max(sets, key=lambda folder: folder.name)
        if len(sets) > 1:
            notes.append(
                f"{path}: has {len(sets):,} sets of runs; the newest is reported, {newest.name}. Others need their path"
            )
        return _runs_of_set(newest)
    sets = sorted((folder for folder in _list_folders(path) if (folder / SET).is_file()), key=_began)
    swept = [run for folder in sets for run in _runs_of_set(folder)]
    if swept:
        return swept
    raise UsageError(f"{path}: {_explain_no_runs(path)}")


def has_runs(path: Path) -> bool:
    """Whether the folder is that of a set with at least one run."""
    return bool(_runs_of_set(path))


def _runs_of_set(path: Path) -> list[Path]:
    return [run.path for run in runs_of_set(path) if run.written]


def _list_folders(path: Path) -> list[Path]:
    try:
        return sorted(folder for folder in path.iterdir() if folder.is_dir())
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}); check its permissions") from None


def _began(path: Path) -> float:
    """Return when the first run of a set began, also one that was made again: a sweep's first set is its reference."""
    return min((config.stat().st_mtime for config in path.glob("**/config.yaml")), default=0.0)


def _sort_key(run: Path) -> tuple[int, str]:
    return RunRecord(RunFolder(run)).number, run.name


def _explain_no_runs(path: Path) -> str:
    for prefix, description in OTHER_COMMANDS.items():
        if path.name.startswith(prefix):
            return f"is {description}"
    if any((path / name).exists() for name in ("tuning.svg", "trials", "study.yaml", "report.json")):
        return "is the folder of `podium tune`; see its report.json and tuning.svg, or give a trial's folder"
    systems = [
        folder.name
        for folder in _list_folders(path)
        if any(SET_NAME.fullmatch(below.name) for below in _list_folders(folder))
    ]
    sweeps = [
        str(path / folder.name)
        for folder in _list_folders(path)
        if any((below / SET).is_file() for below in _list_folders(folder))
    ]
    if sweeps and not systems:
        return f"has no set of runs besides those of a sweep; give {format_list(sweeps, MAX_NAMED)}"
    if systems:
        return f"has folders of systems; give one of them: {format_list(systems, MAX_NAMED)}"
    return "has no run; give runs/SYSTEM, a set in it (runs/SYSTEM/DATE_TIME) or a run (runs/SYSTEM/DATE_TIME/run_N)"
