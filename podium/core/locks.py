"""Locks on files and folders (flock), which end with the processes that hold them.

A lock is shared by all descriptors that were inherited from the one that took it, and ends with the last of them,
however its process ends. Where the file system has no locks, nothing is locked and no process is refused.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from podium.core.errors import UsageError
from podium.core.files import unwritable

ALONE, TOGETHER = fcntl.LOCK_EX | fcntl.LOCK_NB, fcntl.LOCK_SH
FILE, FOLDER = os.O_RDWR | os.O_CREAT, os.O_RDONLY | os.O_DIRECTORY


@contextmanager
def _locked(path: Path, flags: int, operation: int, message: str) -> Iterator[int]:
    """Lock a folder, or a file that is made if missing, and give the descriptor; WorkError if it is unwritable."""
    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise unwritable(path, error) from None
    try:
        try:
            fcntl.flock(descriptor, operation)
        except BlockingIOError:
            raise UsageError(message) from None
        except OSError:
            pass  # a file system without locks
        yield descriptor
    finally:
        os.close(descriptor)


def exclusive_lock(path: Path, message: str) -> AbstractContextManager[int]:
    """Lock a file for this process alone; UsageError with `message` if another process holds a lock."""
    return _locked(path, FILE, ALONE, message)


def folder_lock(folder: Path, command: str) -> AbstractContextManager[int]:
    """Lock a folder for this process alone; UsageError if another process that runs `command` holds it."""
    message = f"{folder}: another `{command}` is at work on this folder; wait for its end"
    return _locked(folder, FOLDER, ALONE, message)


def waiting_folder_lock(folder: Path) -> AbstractContextManager[int]:
    """Lock a folder for this process alone; waits for another process's lock to end."""
    return _locked(folder, FOLDER, fcntl.LOCK_EX, "")


def shared_lock(path: Path) -> AbstractContextManager[int]:
    """Lock together with other processes that do, and give the descriptor; waits for an exclusive lock to end."""
    return _locked(path, FILE, TOGETHER, "")


def assert_unlocked(path: Path, message: str) -> None:
    """UsageError with `message` if any process holds a lock, WorkError if the file cannot be written."""
    with exclusive_lock(path, message):
        pass


def is_locked(path: Path) -> bool | None:
    """Whether any process holds a lock; None where that is not known. Makes no file and keeps no lock."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return False
