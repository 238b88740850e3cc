"""Files that are whole or not there at all."""

import glob
import os
import secrets
from contextlib import suppress
from pathlib import Path

from benchmarks.errors import UsageError, WorkError

UNFINISHED = ".partial"


def write_whole(path: Path, content: bytes | str) -> None:
    """Write a file beside `path` that takes its name when all of it is on the disk, and is removed if that fails.

    Text is written as UTF-8. Raises WorkError for a folder that does not exist or a disk that is full.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}{UNFINISHED}")
    try:
        with temporary.open("xb") as file:
            file.write(content.encode("utf-8") if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        advice = "see that the folder exists, may be written and has space"
        raise WorkError(f"{path}: cannot be written ({error.strerror}); {advice}") from error
    finally:
        with suppress(OSError):
            temporary.unlink()


def remove_unfinished(path: Path) -> None:
    """Remove what processes that were killed while they wrote this file have left behind."""
    for temporary in path.parent.glob(f".{glob.escape(path.name)}.*{UNFINISHED}"):
        temporary.unlink(missing_ok=True)


def make_folder(folder: Path) -> Path:
    """Create a folder and those above it; UsageError where a file is in the way, WorkError where it is not allowed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise UsageError(f"{folder}: cannot be a folder, a file is in the way; name another place") from None
    except OSError as error:
        raise WorkError(f"{folder}: the folder cannot be made ({error.strerror}); see who may write there") from error
    return folder
