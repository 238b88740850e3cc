"""Choice of the checkpoint that a run resumes from: the newest complete one whose digests match its content.

Unusable checkpoints are renamed, not removed, unless the run itself left them unfinished: a missing file may be
restored later, a read error may have been temporary, and another version may be able to read them.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from podium.config.run_folder import (
    FACTS,
    FORMAT,
    REQUIRED_FACTS,
    VERSION,
    Checkpoint,
    checkpoint_folders,
    rank_file,
    read_checkpoint,
    remove_unfinished_checkpoints,
)
from podium.config.tensor_files import make_stamp, verify_tensor_file
from podium.core.errors import PodiumError, UsageError, WorkError
from podium.core.files import write_error
from podium.core.json_files import json_digest, read_json
from podium.core.processes import processors

SET_ASIDE_PREFIX = "unusable_"  # of the names of checkpoints that were set aside


def usable_checkpoint(folder: Path, note: Callable[[str], None]) -> Checkpoint | None:
    """Return the newest usable checkpoint, after verifying all its bytes; None if the run has no checkpoint.

    Newer ones that cannot be used are renamed, and `note` is called with the reasons and the checkpoint used instead.
    Raises UsageError for a checkpoint of a newer version, WorkError if there are checkpoints but none is usable.
    """
    remove_unfinished_checkpoints(folder)
    faults: list[str] = []
    for path in reversed(checkpoint_folders(folder)):
        fault = checkpoint_fault(path, tensors=True)
        if fault is None:
            checkpoint = read_checkpoint(path)
            assert checkpoint is not None
            if faults:
                note(f"{'; '.join(faults)}; the run resumes from {path.name}, after {checkpoint.samples:,} samples")
            return checkpoint
        faults.append(f"{fault}, so that it was set aside as {_set_aside(path).name}")
    if faults:
        raise WorkError(f"{'; '.join(faults)}; no checkpoint is left to resume from; restore the missing files")
    return None


def likely_checkpoint(folder: Path) -> Checkpoint | None:
    """Return the newest checkpoint with valid facts and all files, whose tensors are not read. Changes nothing.

    Raises UsageError for a checkpoint of a newer version.
    """
    for path in reversed(checkpoint_folders(folder)):
        if checkpoint_fault(path, tensors=False) is None:
            return read_checkpoint(path)
    return None


def checkpoint_faults(folder: Path) -> list[str]:
    """Describe what is wrong with each unusable checkpoint, newest first, without reading tensors. Changes nothing."""
    return list(filter(None, (checkpoint_fault(path, tensors=False) for path in reversed(checkpoint_folders(folder)))))


def checkpoint_fault(path: Path, tensors: bool) -> str | None:
    """Describe why the run cannot resume from this checkpoint; None if it can.

    With `tensors` the content of all files is verified, else only their existence. Raises UsageError for a checkpoint
    of a newer version.
    """
    try:
        facts = read_json(path / FACTS)
        file_format, version = facts["format"], facts["version"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{path / FACTS}: cannot be read ({error})"
    if file_format != FORMAT or not isinstance(version, int):
        return f"{path / FACTS}: is not the facts file of a checkpoint"
    if version > VERSION:
        raise UsageError(
            f"{path / FACTS}: a newer Podium made this checkpoint: its version is {version}, and this one reads "
            f"{VERSION}; resume with that Podium, or move the folder away to resume from the previous checkpoint"
        )
    if version < VERSION:
        return f"{path / FACTS}: an older Podium made this checkpoint: its version is {version}, allowed is {VERSION}"
    if not all(isinstance(facts.get(key), kind) for key, kind in REQUIRED_FACTS.items()):
        return f"{path / FACTS}: lacks required keys, or they have wrong types"
    if json_digest({key: value for key, value in facts.items() if key != "digest"}) != facts["digest"]:
        return f"{path / FACTS}: was changed after it was written: its digest does not match"
    files = [rank_file(path, rank) for rank in range(facts["ranks"])]
    if missing := [file.name for file in files if not file.is_file()]:
        return f"{path}: {missing[0]} is missing{f' and {len(missing) - 1} more' if missing[1:] else ''}"
    return _tensor_fault(path, facts["batches"], facts["configuration"], files) if tensors else None


def _tensor_fault(path: Path, batches: int, configuration: dict[str, object], files: list[Path]) -> str | None:
    def fault(rank: int) -> str | None:
        try:
            verify_tensor_file(files[rank], make_stamp(batches, rank, configuration))
        except PodiumError as error:
            return str(error).partition("; ")[0]
        return None

    # Threads suffice: hashing and reading release the GIL.
    with ThreadPoolExecutor(min(8, processors())) as pool:
        return next(filter(None, pool.map(fault, range(len(files)))), None)


def _set_aside(path: Path) -> Path:
    """Rename a checkpoint so that it is no longer found, and return the new path."""
    number = 1
    while (aside := path.with_name(f"{SET_ASIDE_PREFIX}{path.name}{f'_{number}' if number > 1 else ''}")).exists():
        number += 1
    try:
        path.rename(aside)
    except OSError as error:
        raise write_error(path, error) from None
    return aside
