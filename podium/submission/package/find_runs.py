"""The runs to submit by how they are named: a system, a set of its runs, or its folder under results/."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from podium.config.load import UnknownConfiguration, system_names
from podium.core.errors import UsageError, attempt
from podium.core.paths import WORKING_FOLDER
from podium.mllog.read import read_log
from podium.mllog.run import RunLog
from podium.run import results as results_module
from podium.run import run_set
from podium.run.records import (
    REPLACED,
    RunRecord,
    log_folders,
    logs_in,
    newest_by_seed,
    runs_of_set,
    runs_of_system,
)
from podium.run.results import BENCHMARK
from podium.run.set_record import SET, read_set


@dataclass(frozen=True)
class Place:
    """A system, and the folder of its logs where one was named."""

    system: str  # a name in systems/, or the path of a system's YAML file
    logs: Path | None = None


def find_place(asked: str) -> Place:
    """What is named: SYSTEM, runs/SYSTEM/DATE_TIME, results/SYSTEM or results/SYSTEM/bert; UsageError for what is not.

    A folder is one of the current folder, else of the working folder.
    """
    folder = next((path for path in (Path(asked), WORKING_FOLDER / asked) if path.is_dir()), None)
    if folder is None and asked.startswith((f"{run_set.RUNS.name}/", f"{results_module.RESULTS.name}/")):
        raise UsageError(f"{asked}: there is no such folder; name a set (runs/SYSTEM/DATE_TIME) or a system")
    if asked in system_names() or folder is None:
        return Place(asked)
    folder = folder.resolve()
    if (folder / SET).is_file() and runs_of_set(folder):
        record = read_set(folder)  # a copy may have another parent
        return Place(
            record.system if record is not None and record.system in system_names() else folder.parent.name, folder
        )
    if folder.name.startswith(REPLACED):
        return Place(folder.parents[1].name, folder)
    if folder.name == BENCHMARK and logs_in(folder):
        return Place(folder.parent.name, folder)
    if logs_in(folder / BENCHMARK):
        return Place(folder.name, folder / BENCHMARK)
    if runs_of_set(folder):
        if logs_in(folder):
            raise UsageError(
                f"{folder / SET}: is missing; put back the file that `podium run` wrote beside the set's logs"
            )
        return Place(folder.parent.name, _logs_of_older(folder))
    raise UsageError(
        f"{asked}: is no set of runs; name a system, a set (runs/SYSTEM/DATE_TIME) or what results/ holds "
        "(results/SYSTEM)"
    )


def _logs_of_older(folder: Path) -> Path:
    """Where the logs of a set of the layout before are, which had them among the results until the next set."""
    seeds = {run.seed for run in runs_of_set(folder)}
    for place in log_folders([folder], folder.parents[1].parent / "results"):
        found = [attempt(read_log, log)[0] for log in logs_in(place)]
        if found and all(log is not None and log.seeds and log.seeds[0] in seeds for log in found):
            return place
    raise UsageError(
        f"{folder}: is a set of an older version of Podium, whose logs were moved by the sets after it, and no folder "
        f"has them; name that folder, results/{folder.parent.name}/{BENCHMARK} or a {REPLACED}"
    )


def logs_folder(place: Place, system: str, results: Path | None) -> Path:
    """The folder of the logs: as it was named, in `results` (a folder of systems, or one of logs), else in results/."""
    if results is not None and logs_in(results):
        return results
    if results is None and place.logs is not None:
        return place.logs
    return (results or results_module.RESULTS) / system / BENCHMARK


def runs_folder(logs: Path, system: str, runs: Path | None) -> Path:
    """runs/SYSTEM: of `runs` where that is named, else of the set or what a set found, else this installation's."""
    if runs is not None:
        return runs / system
    if (logs / SET).is_file():
        return logs.parent
    return logs.parents[1] if logs.name.startswith(REPLACED) else run_set.RUNS / system


def read_runs(results: Path) -> list[RunLog]:
    """All result_*.txt of a folder, the earliest run first; UsageError for none, and for what is no plain file."""
    logs = sorted(results.glob("result_*.txt"))
    if not logs:
        raise UsageError(
            f"{results}: holds no result_*.txt; name a set of runs (runs/SYSTEM/DATE_TIME), or make ten runs with "
            "`podium run SYSTEM --runs 10`"
        )
    for path in logs:
        if path.is_symlink() or not path.is_file():
            kind = "a link" if path.is_symlink() else "no file"
            raise UsageError(f"{path}: is {kind}; a run's log is a plain file: put back what `podium run` left there")
    return sorted(map(read_log, logs), key=lambda run: (run.start_ms or math.inf, run.name))


def find_records(runs: Sequence[RunLog], folder: Path) -> dict[Path, RunRecord]:
    """The record of each run by its log, where there is one: of a set's own logs in the set, else the newest with the
    run's seed in `folder`, runs/SYSTEM.

    UsageError for a configuration that cannot be read, or not by this version of Podium.
    """
    logs = runs[0].path.parent
    by_seed = newest_by_seed(runs_of_set(logs) if (logs / SET).is_file() else runs_of_system(folder))
    found = {run.path: by_seed[run.seeds[0]] for run in runs if len(run.seeds) == 1 and run.seeds[0] in by_seed}
    for record in found.values():
        try:
            record.config  # noqa: B018 — read here, where its errors can be explained
        except UnknownConfiguration as error:
            path = record.folder.config
            reason = str(error).splitlines()[0].removeprefix(f"{path}: ")
            raise UsageError(
                f"{path}: another version of Podium made this run ({reason}), and this one cannot package it; package "
                "it with the version that made it, or make a new set"
            ) from None
    return found
