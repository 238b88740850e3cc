"""Find the runs to submit by a system, a set of its runs, or its folder under results/."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from podium.config.load import IncompatibleConfiguration, system_names
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
class RunLocation:
    """A system, and the folder of its logs if one was named."""

    system: str  # a name in systems/, or the path of a system's YAML file
    logs: Path | None = None


def locate_runs(name: str) -> RunLocation:
    """Locate the runs of SYSTEM, runs/SYSTEM/DATE_TIME, results/SYSTEM or results/SYSTEM/bert.

    A folder is looked up in the current folder, then in the working folder. Raises UsageError for anything else.
    """
    folder = next((path for path in (Path(name), WORKING_FOLDER / name) if path.is_dir()), None)
    if folder is None and name.startswith((f"{run_set.RUNS.name}/", f"{results_module.RESULTS.name}/")):
        raise UsageError(f"{name}: no such folder; name a set (runs/SYSTEM/DATE_TIME) or a system")
    if name in system_names() or folder is None:
        return RunLocation(name)
    folder = folder.resolve()
    if (folder / SET).is_file() and runs_of_set(folder):
        record = read_set(folder)  # a copied set may have another parent folder, so its record has the system
        return RunLocation(
            record.system if record is not None and record.system in system_names() else folder.parent.name, folder
        )
    if folder.name.startswith(REPLACED):
        return RunLocation(folder.parents[1].name, folder)
    if folder.name == BENCHMARK and logs_in(folder):
        return RunLocation(folder.parent.name, folder)
    if logs_in(folder / BENCHMARK):
        return RunLocation(folder.name, folder / BENCHMARK)
    if runs_of_set(folder):
        if logs_in(folder):
            raise UsageError(
                f"{folder / SET}: is missing; restore the file that `podium run` wrote beside the set's logs"
            )
        return RunLocation(folder.parent.name, _find_legacy_logs(folder))
    raise UsageError(
        f"{name}: is not a set of runs; name a system, a set (runs/SYSTEM/DATE_TIME) or a folder of results "
        "(results/SYSTEM)"
    )


def _find_legacy_logs(folder: Path) -> Path:
    """Return the folder with the logs of a set of an older version, which kept them in results/ until the next set."""
    seeds = {run.seed for run in runs_of_set(folder)}
    for logs in log_folders([folder], folder.parents[1].parent / "results"):
        found = [attempt(read_log, log)[0] for log in logs_in(logs)]
        if found and all(log is not None and log.seeds and log.seeds[0] in seeds for log in found):
            return logs
    raise UsageError(
        f"{folder}: is a set of an older version of Podium, whose logs were moved by later sets, and they were not "
        f"found; name the folder that has them, results/{folder.parent.name}/{BENCHMARK} or a {REPLACED}"
    )


def logs_folder(location: RunLocation, system: str, results: Path | None) -> Path:
    """Return the folder of the logs: in `results` (a folder of systems or of logs), as located, or in results/."""
    if results is not None and logs_in(results):
        return results
    if results is None and location.logs is not None:
        return location.logs
    return (results or results_module.RESULTS) / system / BENCHMARK


def runs_folder(logs: Path, system: str, runs: Path | None) -> Path:
    """Return runs/SYSTEM: below `runs` if given, else the parent of the logs' set, else the working folder's."""
    if runs is not None:
        return runs / system
    if (logs / SET).is_file():
        return logs.parent
    return logs.parents[1] if logs.name.startswith(REPLACED) else run_set.RUNS / system


def read_runs(results: Path) -> list[RunLog]:
    """Read all result_*.txt of a folder, the earliest run first; UsageError for none, or for one that is not a file."""
    logs = sorted(results.glob("result_*.txt"))
    if not logs:
        raise UsageError(
            f"{results}: has no result_*.txt; name a set of runs (runs/SYSTEM/DATE_TIME), or make ten runs with "
            "`podium run SYSTEM --runs 10`"
        )
    return read_by_time(logs, "restore the one that `podium run` wrote")


def read_by_time(logs: Sequence[Path], advice: str) -> list[RunLog]:
    """Read logs, the earliest run first; UsageError with `advice` for one that is a link or not a file."""
    for path in logs:
        if path.is_symlink() or not path.is_file():
            kind = "a link" if path.is_symlink() else "not a file"
            raise UsageError(f"{path}: is {kind}; a run's log must be a regular file: {advice}")
    return sorted(map(read_log, logs), key=lambda run: (run.start_ms or math.inf, run.name))


def find_records(runs: Sequence[RunLog], folder: Path) -> dict[Path, RunRecord]:
    """Return the record of each run by its log, where there is one.

    For logs in a set's folder it is looked up in the set, for others it is the newest with the run's seed in `folder`,
    runs/SYSTEM. Raises UsageError for a configuration that this version of Podium cannot read.
    """
    logs = runs[0].path.parent
    by_seed = newest_by_seed(runs_of_set(logs) if (logs / SET).is_file() else runs_of_system(folder))
    found = {run.path: by_seed[run.seeds[0]] for run in runs if len(run.seeds) == 1 and run.seeds[0] in by_seed}
    for record in found.values():
        try:
            record.config  # noqa: B018 — parsed here, where its errors can be reported
        except IncompatibleConfiguration as error:
            path = record.folder.config
            reason = str(error).splitlines()[0].removeprefix(f"{path}: ")
            raise UsageError(
                f"{path}: another version of Podium made this run ({reason}), and this one cannot package it; package "
                "it with the version that made it, or make a new set"
            ) from None
    return found
