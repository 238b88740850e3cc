"""Advisory locks on files and folders (flock), which the kernel releases when the processes that hold them end.

A lock belongs to the open file description: child processes that inherit the descriptor share it, and it is released
when the last copy is closed, even by SIGKILL. On a file system without locks nothing is locked and no process is
refused.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from podium.core.errors import UsageError
from podium.core.files import write_error

EXCLUSIVE, SHARED = fcntl.LOCK_EX | fcntl.LOCK_NB, fcntl.LOCK_SH
FILE_FLAGS, FOLDER_FLAGS = os.O_RDWR | os.O_CREAT, os.O_RDONLY | os.O_DIRECTORY


@contextmanager
def _locked(path: Path, flags: int, operation: int, message: str) -> Iterator[int]:
    """Lock a folder or a file (created if missing) and yield the descriptor.

    Raises UsageError with `message` if it is locked, WorkError if it cannot be opened.
    """
    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise write_error(path, error) from None
    try:
        try:
            fcntl.flock(descriptor, operation)
        except BlockingIOError:
            raise UsageError(message) from None
        except OSError:
            pass  # a file system without locks: a missing lock must not prevent a run
        yield descriptor
    finally:
        os.close(descriptor)


def exclusive_lock(path: Path, message: str) -> AbstractContextManager[int]:
    """Lock a file exclusively without waiting; UsageError with `message` if another process holds a lock."""
    return _locked(path, FILE_FLAGS, EXCLUSIVE, message)


def folder_lock(folder: Path, command: str) -> AbstractContextManager[int]:
    """Lock a folder exclusively without waiting; UsageError if another process, which runs `command`, has the lock."""
    message = f"{folder}: another `{command}` is using this folder; wait until it has finished"
    return _locked(folder, FOLDER_FLAGS, EXCLUSIVE, message)


def waiting_folder_lock(folder: Path) -> AbstractContextManager[int]:
    """Lock a folder exclusively; waits until other processes have released their locks."""
    return _locked(folder, FOLDER_FLAGS, fcntl.LOCK_EX, "")


def shared_lock(path: Path) -> AbstractContextManager[int]:
    """Lock a file in shared mode and yield the descriptor; waits until an exclusive lock is released."""
    return _locked(path, FILE_FLAGS, SHARED, "")


def assert_unlocked(path: Path, message: str) -> None:
    """Raise UsageError with `message` if any process holds a lock, WorkError if the file cannot be written."""
    with exclusive_lock(path, message):
        pass


def is_locked(path: Path) -> bool | None:
    """Whether any process holds a lock; None if that cannot be determined. Creates no file and keeps no lock."""
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
