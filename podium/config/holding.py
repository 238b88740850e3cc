"""Files that are locked as long as the processes live that hold them (flock), so that nobody comes between.

A lock is shared by all descriptors that were inherited from the one that took it, and ends with the last of them,
however its process ends. Where the file system has no locks, nothing is held and nobody is refused.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.errors import UsageError
from benchmarks.files import unwritable


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise unwritable(path, error) from None


@contextmanager
def _locked(path: Path, how: int, taken: str) -> Iterator[int]:
    descriptor = _open(path)
    try:
        try:
            fcntl.flock(descriptor, how)
        except BlockingIOError:
            raise UsageError(taken) from None
        except OSError:
            pass  # a file system without locks
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def alone_with(path: Path, taken: str) -> Iterator[None]:
    """Hold a file alone. UsageError with the words `taken` if others hold it, WorkError if it cannot be written."""
    with _locked(path, fcntl.LOCK_EX | fcntl.LOCK_NB, taken):
        yield


@contextmanager
def held_with_others(path: Path) -> Iterator[int]:
    """Hold a file together with others that do, and give the descriptor. WorkError if it cannot be written.

    Waits for whoever holds it alone.
    """
    with _locked(path, fcntl.LOCK_SH, "") as descriptor:
        yield descriptor


def require_nobody(path: Path, taken: str) -> None:
    """Raises UsageError with the words `taken` if any process holds the file, WorkError if it cannot be written."""
    with alone_with(path, taken):
        pass


def is_held(path: Path) -> bool | None:
    """Whether any process holds the file; None where that cannot be told. Makes no file and keeps no hold of it."""
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
