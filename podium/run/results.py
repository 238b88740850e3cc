"""Finalizes the logs of a set of runs, and publishes copies of the last complete set in results/.

When a run has ended, its log is moved to its final place, runs/SYSTEM/DATE_TIME/result_N.txt for run_N, and its hash is
added to the set's record. results/SYSTEM/bert has MLPerf's layout. It contains copies of the logs of the last complete
set, which are replaced by two renames that the next command completes after a crash; results/SYSTEM/set.json names the
set.
"""

import json
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from podium.config.run_folder import RunFolder, newest_checkpoint
from podium.core.errors import PodiumError, WorkError, attempt
from podium.core.files import make_folder, sha256_of, write_atomically, write_error
from podium.core.json_files import read_json
from podium.core.locks import is_locked
from podium.core.paths import WORKING_FOLDER
from podium.launch.container import portable_path
from podium.mllog.read import read_log
from podium.mllog.write import SUCCESS, close_as_aborted
from podium.run.records import REPLACED, RunRecord, logs_in, runs_of_set
from podium.run.set_record import SET, EndedRun, add_ended, read_set

RESULTS = WORKING_FOLDER / "results"
BENCHMARK = "bert"
# Temporary names during `publish`: the new copies before they are renamed, and the previous folder.
NEW, OLD = ".bert.new", ".bert.replaced"


def results_folder(system: str) -> Path:
    """The folder results/SYSTEM."""
    return RESULTS / system


def require_writable_results(system: str) -> None:
    """Check before a set that its results can be written: UsageError or WorkError if not."""
    folder = make_folder(results_folder(system))
    if not os.access(folder, os.W_OK):
        raise WorkError(f"{folder}: results cannot be written there; check the permissions")
    with suppress(OSError):  # it has results, or another process has removed it
        folder.rmdir()


def finalize_log(run: RunFolder, fault: str | None = None, fault_path: Path | None = None) -> Path | None:
    """Move an ended run's log to its final place, add the run to its set's record, and return the log's path.

    A log without run_stop is closed as aborted first. None if the run did not reach run_start and so has no log. With
    a `fault`, the reason why the log is not a result, it is moved to `fault_path` if that is given. The log of a run
    that was restarted or resumed is not a result either, and stays in the run's folder as result.restarted.txt; nor is
    that of a profiled run, result.profiled.txt.
    WorkError if a file cannot be written.
    """
    if run.was_profiled and fault is None:
        fault, fault_path = PROFILED, run.profiled_result
    if not close_as_aborted(run.log, run.samples_trained()):
        add_ended(run.path.parent, EndedRun(RunRecord(run).number, None, None, None, run.was_restarted, fault))
        return None
    path = run.restarted_result if run.was_restarted else fault_path or final_log_path(run)
    try:
        # In this order: a process that is killed in between leaves a log without an entry, which `close_orphaned_runs`
        # records later. The reverse order could leave an entry for a log that is not in its place.
        _move(run.log, path)
        _record(run, path, fault)
    except PodiumError as error:
        raise WorkError(f"{error}; the run's log is kept: {run.log if run.log.exists() else path}") from None
    return path


def record_saved(run: RunFolder) -> None:
    """Record that a run was stopped to be resumed: its log stays open, and later commands do not close it."""
    _record_open(run, SAVED)


def record_resumed(run: RunFolder) -> None:
    """Record that a run is resumed, so that a later command closes it if this one is killed."""
    _record_open(run, RESUMED)


def _record_open(run: RunFolder, fault: str) -> None:
    add_ended(run.path.parent, EndedRun(RunRecord(run).number, None, None, None, run.was_restarted, fault))


def final_log_path(run: RunFolder) -> Path:
    """The path of a run's log in its set's folder, where it is moved when the run has ended."""
    return run.path.parent / f"result_{RunRecord(run).number}.txt"


def _record(run: RunFolder, path: Path, fault: str | None) -> None:
    """Add an ended run with its log at `path` to its set's record."""
    folder, number = run.path.parent, RunRecord(run).number
    log = path.relative_to(folder).as_posix()
    add_ended(folder, EndedRun(number, read_log(path).status, log, sha256_of(path), run.was_restarted, fault))


def close_orphaned_runs(system: Path, note: Callable[[str], None], excluded: RunFolder | None = None) -> None:
    """Close the runs that a killed `podium run` on this system left open, and print a note for each.

    `system` is runs/SYSTEM, which must be locked. The runs keep their checkpoints and can still be resumed. Runs that
    were stopped to be resumed, runs whose processes are still running, and `excluded` are not closed.
    """
    for folder in sorted(path.parent for path in system.glob(f"*/{SET}")):
        record, problem = attempt(read_set, folder)
        if record is None:
            note(f"{problem}")
            continue
        for run in runs_of_set(folder):
            ended = record.by_number.get(run.number)
            is_open = ended is None or ended.fault == RESUMED
            if is_open and (excluded is None or run.path.resolve() != excluded.path.resolve()):
                _close(run.folder, note)


def _close(run: RunFolder, note: Callable[[str], None]) -> None:
    locked = is_locked(run.lock)
    if locked:
        note(f"{run.path}: its `podium run` was killed, but its processes are still running; it is not closed")
        return
    if locked is None and run.lock.exists():  # a file system without locks: it may be running on another machine
        note(f"{run.path}: was left open, and whether its processes are still running is not known; it is not closed")
        return
    moved = final_log_path(run)
    if not run.log.exists() and moved.is_file():  # killed between the move of the log and its entry in the record
        _record(run, moved, DATA_NOT_COMPARED if _is_success_log(moved) else None)
        result: Path | None = moved
    else:
        result = finalize_log(run, DATA_NOT_COMPARED if _is_success_log(run.log) else None)
    if result is None:
        note(f"{run.path}: was left open when its `podium run` was killed, before run_start: it has no log")
        return
    status = read_log(result).status
    text = f"{run.path}: was left open when its `podium run` was killed; the status in its log is {status}: {result}"
    if newest_checkpoint(run.checkpoints) is not None and run.read_summary() is None:
        system = run.path.parent.parent.name
        text += f"; `podium run {system} --resume {portable_path(run.path)}` can still resume it"
    note(text)


# Values of EndedRun.fault in set.json. They are compared with records of older versions: do not change them.
SAVED = "it was stopped before its end, to be resumed"
RESUMED = "it was resumed and has not ended"
PROFILED = "steps of it were profiled, which slows it"
DATA_NOT_COMPARED = "its `podium run` was killed before it had compared the data with what the run began with"


def _is_success_log(path: Path) -> bool:
    log, _ = attempt(read_log, path) if path.is_file() else (None, None)
    return log is not None and log.status == SUCCESS


@dataclass(frozen=True)
class PublishedSet:
    """The set whose logs results/SYSTEM contains copies of, by its set.json."""

    folder: str  # relative to the repository if it is in the repository's runs/, else absolute
    logs: Mapping[str, str]  # SHA-256 by file name


def read_published_set(results: Path) -> PublishedSet | None:
    """Read results/SYSTEM/set.json; None if there is no valid one, as with older versions."""
    try:
        document = read_json(results / SET)
        folder, logs = document["set"], document["logs"]
    except (ValueError, KeyError, TypeError):
        return None
    valid = isinstance(folder, str) and isinstance(logs, dict)
    return PublishedSet(folder, {str(name): str(digest) for name, digest in logs.items()}) if valid else None


def published_folder(set_folder: Path) -> Path | None:
    """Return the folder of copies under results/ if they are copies of this set, else None."""
    results = results_folder(set_folder.parent.name)
    published = read_published_set(results)
    is_this = published is not None and published.folder == str(portable_path(set_folder))
    return results / BENCHMARK if is_this else None


def publish(set_folder: Path) -> None:
    """Copy a complete set's logs to results/SYSTEM/bert by two renames, and name the set in results/SYSTEM/set.json.

    The previous contents are removed if they are copies of another set, else moved to this set's folder. Raises
    WorkError, which names the set's logs, if that cannot be written.
    """
    results = results_folder(set_folder.parent.name)
    new, old, folder = results / NEW, results / OLD, results / BENCHMARK
    try:
        # First repair what a killed `publish` has left behind.
        make_folder(results)
        _restore(old, folder)
        shutil.rmtree(new, ignore_errors=True)
        _discard(old, set_folder, None)
        digests = {}
        make_folder(new)
        for log in logs_in(set_folder):
            write_atomically(new / log.name, log.read_bytes())
            digests[log.name] = sha256_of(log)
        before = read_published_set(results)
        # A folder that is not empty cannot be replaced by one rename; `_restore` covers a failure between the two.
        if folder.exists() or folder.is_symlink():
            folder.rename(old)
        new.rename(folder)
        document = {"set": str(portable_path(set_folder)), "logs": digests}
        write_atomically(results / SET, json.dumps(document, indent=1) + "\n")
        _discard(old, set_folder, before)
    except (OSError, PodiumError) as error:
        reason = error if isinstance(error, PodiumError) else write_error(results, error)
        raise WorkError(
            f"{reason}; no run is lost: the set is complete, and can be packaged from its logs "
            f"{set_folder}/result_*.txt"
        ) from None
    finally:
        with suppress(OSError):
            _restore(old, folder)


def _restore(old: Path, folder: Path) -> None:
    """Rename the previous folder back if the change was interrupted between its two renames."""
    if old.exists() and not folder.exists():
        old.rename(folder)


def _discard(old: Path, set_folder: Path, published: PublishedSet | None) -> None:
    """Remove the previous folder if it contains only copies; else move it to the set's folder, so nothing is lost."""
    if not old.exists() and not old.is_symlink():
        return
    if not old.is_symlink() and all(_is_copy(path, published) for path in old.iterdir()):
        shutil.rmtree(old)
        return
    destination, number = set_folder / REPLACED, 1
    while destination.exists():
        number += 1
        destination = set_folder / f"{REPLACED}_{number}"
    shutil.move(old, destination)


def _is_copy(path: Path, published: PublishedSet | None) -> bool:
    """Whether a file is an unchanged copy of a log that still exists in the published set's folder."""
    if published is None or path.is_symlink() or not path.is_file() or published.logs.get(path.name) != sha256_of(path):
        return False
    original = WORKING_FOLDER / published.folder / path.name
    return original.is_file() and sha256_of(original) == published.logs[path.name]


def _move(source: Path, destination: Path) -> None:
    """Move a file, also to another file system; `destination` never exists incomplete."""
    write_atomically(destination, source.read_bytes())
    source.unlink()
