"""Which checkpoint a run resumes from: the newest one of which each byte is as it was written.

What cannot be used is kept, under another name, unless the run itself has left it unfinished. So a checkpoint of which
a file is missing, which could not be read for a moment, or which another version made, can be put back.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from podium.config.run_folder import (
    FACTS,
    FORMAT,
    KNOWN,
    VERSION,
    Checkpoint,
    checkpoint_folders,
    rank_file,
    read_checkpoint,
    remove_unfinished_checkpoints,
)
from podium.config.tensor_files import require_tensors, stamp_of
from podium.core.errors import PodiumError, UsageError, WorkError
from podium.core.files import unwritable
from podium.core.json_files import digest_of, read_json
from podium.core.processes import processors

ASIDE = "unusable_"  # before the name of a checkpoint that was set aside


def usable_checkpoint(folder: Path, note: Callable[[str], None]) -> Checkpoint | None:
    """The checkpoint to resume from; None where the run has made none. Reads all of it.

    Newer ones that cannot be used are set aside, and `note` is given a sentence that says why and what is used instead.
    Raises UsageError for one of a newer version, and WorkError where there are checkpoints and none can be used.
    """
    remove_unfinished_checkpoints(folder)
    faults: list[str] = []
    for path in reversed(checkpoint_folders(folder)):
        fault = fault_of(path, tensors=True)
        if fault is None:
            checkpoint = read_checkpoint(path)
            assert checkpoint is not None
            if faults:
                note(f"{'; '.join(faults)}; the run resumes from {path.name}, after {checkpoint.samples:,} samples")
            return checkpoint
        faults.append(f"{fault}, so that it was set aside as {_set_aside(path).name}")
    if faults:
        raise WorkError(f"{'; '.join(faults)}; no checkpoint is left to resume from: put back what is missing")
    return None


def likely_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest checkpoint that can be used as far as its facts show. Changes nothing; UsageError as above."""
    for path in reversed(checkpoint_folders(folder)):
        if fault_of(path, tensors=False) is None:
            return read_checkpoint(path)
    return None


def faults_of(folder: Path) -> list[str]:
    """Why each checkpoint that cannot be used cannot, as far as the facts show, the newest first. Changes nothing."""
    return list(filter(None, (fault_of(path, tensors=False) for path in reversed(checkpoint_folders(folder)))))


def fault_of(path: Path, tensors: bool) -> str | None:
    """Why the run cannot resume from this checkpoint, or None. UsageError for one of a newer version.

    With `tensors` all files are read, else it is enough that they are there.
    """
    try:
        facts = read_json(path / FACTS)
        form, version = facts["format"], facts["version"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{path / FACTS}: cannot be read ({error})"
    if form != FORMAT or not isinstance(version, int):
        return f"{path / FACTS}: is not that of a checkpoint"
    if version > VERSION:
        raise UsageError(
            f"{path / FACTS}: a newer Podium made this checkpoint: its version is {version}, and this one reads "
            f"{VERSION}; resume with that Podium, or move the folder away to resume from the checkpoint before it"
        )
    if version < VERSION:
        return f"{path / FACTS}: an older Podium made this checkpoint: its version is {version}, allowed is {VERSION}"
    if not all(isinstance(facts.get(key), kind) for key, kind in KNOWN.items()):
        return f"{path / FACTS}: does not have what a checkpoint has"
    if digest_of({key: value for key, value in facts.items() if key != "digest"}) != facts["digest"]:
        return f"{path / FACTS}: is not as it was written"
    files = [rank_file(path, rank) for rank in range(facts["ranks"])]
    if missing := [file.name for file in files if not file.is_file()]:
        return f"{path}: {missing[0]} is missing{f' and {len(missing) - 1} more' if missing[1:] else ''}"
    return _tensor_fault(path, facts["batches"], facts["configuration"], files) if tensors else None


def _tensor_fault(path: Path, batches: int, configuration: dict[str, object], files: list[Path]) -> str | None:
    def fault(rank: int) -> str | None:
        try:
            require_tensors(files[rank], stamp_of(batches, rank, configuration))
        except PodiumError as error:
            return str(error).partition("; ")[0]
        return None

    with ThreadPoolExecutor(min(8, processors())) as pool:
        return next(filter(None, pool.map(fault, range(len(files)))), None)


def _set_aside(path: Path) -> Path:
    number = 1
    while (aside := path.with_name(f"{ASIDE}{path.name}{f'_{number}' if number > 1 else ''}")).exists():
        number += 1
    try:
        path.rename(aside)
    except OSError as error:
        raise unwritable(path, error) from None
    return aside
