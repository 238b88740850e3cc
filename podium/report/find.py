"""Finds the runs in the folders that the user names."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from podium.config.run_folder import RunFolder
from podium.core.errors import UsageError
from podium.core.text import format_list
from podium.run.records import SET_NAME, RunRecord, runs_of_set

# Folders beside those of sets, by what their names begin with.
NO_RUNS = {
    "predict_": "what `podium predict` left, which trains nothing; `podium predict` prints it",
    "bench_": "what `podium bench` left, which measures steps and makes no run; `podium bench` prints it",
}
MOST_NAMED = 5


class Found(NamedTuple):
    """Everything that was named, and what was left out of it."""

    sets: Mapping[Path, Sequence[Path]]  # the runs in each folder, in the order of their numbers
    notes: Sequence[str]


def find(paths: Sequence[Path]) -> Found:
    """The runs of these folders, those of one folder together.

    A folder is a run's, a set's, or a system's: then its newest set is meant. Raises UsageError for anything else, and
    for a folder that is not there.
    """
    by_set: dict[Path, set[Path]] = {}
    notes: list[str] = []
    for path in paths:
        for run in _runs(path, notes):
            by_set.setdefault(run.parent, set()).add(run)
    return Found({path: sorted(runs, key=_order) for path, runs in by_set.items()}, list(dict.fromkeys(notes)))


def _runs(path: Path, notes: list[str]) -> list[Path]:
    if not path.exists():
        raise UsageError(f"{path}: there is no such folder; name one under runs/, such as runs/laptop")
    if not path.is_dir():
        raise UsageError(f"{path}: is a file; name the folder of a run, runs/SYSTEM/DATE_TIME/run_N")
    path = path.resolve()
    if RunRecord(RunFolder(path)).written:
        return [path]
    runs = _runs_of_set(path)
    if runs:
        return runs
    sets = [folder for folder in _folders(path) if SET_NAME.fullmatch(folder.name) and _runs_of_set(folder)]
    if sets:
        newest = max(sets, key=lambda folder: folder.name)
        if len(sets) > 1:
            notes.append(f"{path}: of its {len(sets):,} sets of runs the newest is told, {newest.name}; others by name")
        return _runs_of_set(newest)
    raise UsageError(f"{path}: {_why_none(path)}")


def _runs_of_set(path: Path) -> list[Path]:
    return [run.path for run in runs_of_set(path) if run.written]


def _folders(path: Path) -> list[Path]:
    try:
        return sorted(folder for folder in path.iterdir() if folder.is_dir())
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}); see who may read it") from None


def _order(run: Path) -> tuple[int, str]:
    return RunRecord(RunFolder(run)).number, run.name


def _why_none(path: Path) -> str:
    for beginning, words in NO_RUNS.items():
        if path.name.startswith(beginning):
            return f"is {words}"
    if any((path / name).exists() for name in ("tuning.svg", "trials", "study.yaml", "report.json")):
        return "is what `podium tune` works in; its report.json and tuning.svg tell of it, or name a trial's folder"
    systems = [
        folder.name for folder in _folders(path) if any(SET_NAME.fullmatch(below.name) for below in _folders(folder))
    ]
    if systems:
        return f"holds folders of systems; name one of them: {format_list(systems, MOST_NAMED)}"
    return "holds no run; name runs/SYSTEM, a set in it (runs/SYSTEM/DATE_TIME) or a run (runs/SYSTEM/DATE_TIME/run_N)"
