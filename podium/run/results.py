"""Where the logs of a set of runs are kept, and results/, which holds copies of the last whole set.

A log gets its place when its run has ended and never moves again: runs/SYSTEM/DATE_TIME/result_N.txt for run_N, with
its hash in the set's record. results/SYSTEM/bert has MLPerf's layout: copies of the logs of the last set that came to
its end, replaced as one change; results/SYSTEM/set.json names that set.
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
from podium.core.files import make_folder, sha256_of, unwritable, write_whole
from podium.core.json_files import read_json
from podium.core.locks import is_locked
from podium.core.paths import WORKING_FOLDER
from podium.launch.container import seen_anywhere
from podium.mllog.read import read_log
from podium.mllog.write import SUCCESS, close_as_aborted
from podium.run.records import REPLACED, RunRecord, logs_in, runs_of_set
from podium.run.set_record import SET, EndedRun, add_ended, read_set

RESULTS = WORKING_FOLDER / "results"
BENCHMARK = "bert"
# A set's copies until they have their name, and what they take the place of until it is put away.
NEW, OLD = ".bert.new", ".bert.replaced"


def results_of(system: str) -> Path:
    return RESULTS / system


def check_place(system: str) -> None:
    """See before a set that its results will find a place: UsageError or WorkError where they will not."""
    folder = make_folder(results_of(system))
    if not os.access(folder, os.W_OK):
        raise WorkError(f"{folder}: results cannot be written there; see who may write")


def settle(run: RunFolder, fault: str | None = None, aside: Path | None = None) -> Path | None:
    """Give an ended run's log its place and its set's record an entry; a log without run_stop is closed as aborted.

    None where the run did not get as far as run_start: then there is no log. A `fault` says why the log is no result,
    and `aside` where it is kept then. The log of a run that was restarted or resumed is no result either: it stays in
    the run's folder under a name that says so. Raises WorkError where a file cannot be written; the log is then still
    in the run's folder.
    """
    if not close_as_aborted(run.log, run.samples_trained()):
        add_ended(run.path.parent, EndedRun(RunRecord(run).number, None, None, None, run.gone_on_with, fault))
        return None
    path = run.restarted_result if run.gone_on_with else aside or placed_log(run)
    try:
        _move(run.log, path)
        _record(run, path, fault)
    except PodiumError as error:
        raise WorkError(f"{error}; the run's log is kept: {run.log if run.log.exists() else path}") from None
    return path


def record_saved(run: RunFolder) -> None:
    """Add to its set's record a run that is not over: its log stays open, and no later command takes it as left."""
    _record_open(run, SAVED)


def record_resumed(run: RunFolder) -> None:
    """Add to its set's record that a run is resumed, so that it is known as left if the command is killed."""
    _record_open(run, RESUMED)


def _record_open(run: RunFolder, fault: str) -> None:
    add_ended(run.path.parent, EndedRun(RunRecord(run).number, None, None, None, run.gone_on_with, fault))


def placed_log(run: RunFolder) -> Path:
    """The place of a run's log in its set's folder."""
    return run.path.parent / f"result_{RunRecord(run).number}.txt"


def _record(run: RunFolder, path: Path, fault: str | None) -> None:
    folder, number = run.path.parent, RunRecord(run).number
    log = path.relative_to(folder).as_posix()
    add_ended(folder, EndedRun(number, read_log(path).status, log, sha256_of(path), run.gone_on_with, fault))


def close_left(system: Path, note: Callable[[str], None], but: RunFolder | None = None) -> None:
    """Close the runs that a `podium run` on this system left open when it was killed, and say so.

    `system` is runs/SYSTEM, locked. The runs keep their checkpoints, and can be resumed from them as before. Left alone
    are runs that the command itself left to be resumed, those whose processes are still at work, and `but`.
    """
    for folder in sorted(path.parent for path in system.glob(f"*/{SET}")):
        record, problem = attempt(read_set, folder)
        if record is None:
            note(f"{problem}")
            continue
        for run in runs_of_set(folder):
            ended = record.by_number.get(run.number)
            left = ended is None or ended.fault == RESUMED
            if left and (but is None or run.path.resolve() != but.path.resolve()):
                _close(run.folder, note)


def _close(run: RunFolder, note: Callable[[str], None]) -> None:
    locked = is_locked(run.lock)
    if locked:
        note(f"{run.path}: processes of this run are still at work after its `podium run` was killed; it is not closed")
        return
    if locked is None and run.lock.exists():  # a file system without locks: another machine may be at work on it
        note(f"{run.path}: was left open, and whether its processes are still at work is not known; it is not closed")
        return
    moved = placed_log(run)
    if not run.log.exists() and moved.is_file():  # killed before the log's entry was written
        _record(run, moved, UNSEEN if _says_success(moved) else None)
        result: Path | None = moved
    else:
        result = settle(run, UNSEEN if _says_success(run.log) else None)
    if result is None:
        note(f"{run.path}: was left open when its `podium run` was killed, before run_start: there is no log of it")
        return
    status = read_log(result).status
    text = f"{run.path}: was left open when its `podium run` was killed; its log says {status}: {result}"
    if newest_checkpoint(run.checkpoints) is not None and run.read_summary() is None:
        system = run.path.parent.parent.name
        text += f"; `podium run {system} --resume {seen_anywhere(run.path)}` can still resume it"
    note(text)


SAVED = "it was stopped before its end, to be resumed"
RESUMED = "it was resumed and has not ended"
UNSEEN = "its `podium run` was killed before it had compared the data with what the run began with"


def _says_success(log: Path) -> bool:
    found, _ = attempt(read_log, log) if log.is_file() else (None, None)
    return found is not None and found.status == SUCCESS


@dataclass(frozen=True)
class HeldSet:
    """The set that results/SYSTEM holds copies of, as its set.json says."""

    folder: str  # the set's, from the repository on where it is in its runs/
    logs: Mapping[str, str]  # SHA-256 by name


def held_set(results: Path) -> HeldSet | None:
    """What results/SYSTEM says it holds; None where it says nothing, as those of older versions."""
    try:
        found = read_json(results / SET)
        folder, logs = found["set"], found["logs"]
    except (ValueError, KeyError, TypeError):
        return None
    known = isinstance(folder, str) and isinstance(logs, dict)
    return HeldSet(folder, {str(name): str(digest) for name, digest in logs.items()}) if known else None


def published_folder(set_folder: Path) -> Path | None:
    """The folder of copies under results/, if these are of the set in this folder."""
    results = results_of(set_folder.parent.name)
    held = held_set(results)
    return results / BENCHMARK if held is not None and held.folder == str(seen_anywhere(set_folder)) else None


def publish(set_folder: Path) -> None:
    """Copy a whole set's logs to results/SYSTEM/bert in one change, and say there which set it is.

    What was there before is removed if it is copies of another set, and else moved to this set's folder. Raises
    WorkError where that cannot be written, which names the set's own logs.
    """
    results = results_of(set_folder.parent.name)
    new, old, folder = results / NEW, results / OLD, results / BENCHMARK
    try:
        make_folder(results)
        _put_back(old, folder)
        shutil.rmtree(new, ignore_errors=True)
        _put_away(old, set_folder, None)
        digests = {}
        make_folder(new)
        for log in logs_in(set_folder):
            write_whole(new / log.name, log.read_bytes())
            digests[log.name] = sha256_of(log)
        before = held_set(results)
        if folder.exists() or folder.is_symlink():
            folder.rename(old)
        new.rename(folder)
        held = {"set": str(seen_anywhere(set_folder)), "logs": digests}
        write_whole(results / SET, json.dumps(held, indent=1) + "\n")
        _put_away(old, set_folder, before)
    except (OSError, PodiumError) as error:
        why = error if isinstance(error, PodiumError) else unwritable(results, error)
        raise WorkError(
            f"{why}; no run is lost: the set is whole, and its logs are {set_folder}/result_*.txt, by which it can be "
            "packaged"
        ) from None
    finally:
        with suppress(OSError):
            _put_back(old, folder)


def _put_back(old: Path, folder: Path) -> None:
    """What was there before, where the change was broken off between its two renames."""
    if old.exists() and not folder.exists():
        old.rename(folder)


def _put_away(old: Path, set_folder: Path, held: HeldSet | None) -> None:
    """Remove a folder of copies; anything else goes to the set's folder, so that nothing is lost."""
    if not old.exists() and not old.is_symlink():
        return
    if not old.is_symlink() and all(_is_copy(path, held) for path in old.iterdir()):
        shutil.rmtree(old)
        return
    place, number = set_folder / REPLACED, 1
    while place.exists():
        number += 1
        place = set_folder / f"{REPLACED}_{number}"
    shutil.move(old, place)


def _is_copy(path: Path, held: HeldSet | None) -> bool:
    """Whether a file is as the set that it is a copy of still has it."""
    if held is None or path.is_symlink() or not path.is_file() or held.logs.get(path.name) != sha256_of(path):
        return False
    own = WORKING_FOLDER / held.folder / path.name
    return own.is_file() and sha256_of(own) == held.logs[path.name]


def _move(source: Path, destination: Path) -> None:
    """Also to another file system, and never half."""
    write_whole(destination, source.read_bytes())
    source.unlink()
