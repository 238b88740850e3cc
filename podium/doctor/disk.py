"""How fast a file is read and written, past the page cache."""

import errno
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.files import whole_file

BLOCK = 2**20
MOST_BYTES, MOST_SECONDS = 2**28, 1.0
"""Reading and writing are each tried until one of these is reached."""


@dataclass(frozen=True)
class Speed:
    """Bytes moved and the seconds they took; `from_disk` None where the system does not tell."""

    bytes: int
    seconds: float
    from_disk: bool | None = None

    @property
    def rate(self) -> float:
        """Bytes/s."""
        return self.bytes / max(self.seconds, 1e-9)


def read_speed(files: Sequence[Path]) -> Speed:
    """Read the beginnings of files that the kernel was asked to forget."""
    done, seconds = 0, 0.0
    stayed: set[bool | None] = set()
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            forget(descriptor)
            stayed.add(in_memory(descriptor))
            started = time.perf_counter()
            while done < MOST_BYTES and seconds + time.perf_counter() - started < MOST_SECONDS:
                block = os.read(descriptor, BLOCK)
                if not block:
                    break
                done += len(block)
            seconds += time.perf_counter() - started
        finally:
            os.close(descriptor)
        if done >= MOST_BYTES or seconds >= MOST_SECONDS:
            break
    return Speed(done, seconds, None if None in stayed else True not in stayed)


def write_speed(folder: Path, most: int = 2**24) -> Speed:
    """Write a file of `most` bytes, have it on the disk, and remove it. Raises WorkError where that is not possible."""
    path, block = folder / "doctor.tmp", os.urandom(BLOCK)
    started = time.perf_counter()
    try:
        with whole_file(path) as temporary, temporary.open("xb") as file:
            for _ in range(most // BLOCK):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
        seconds = time.perf_counter() - started
    finally:
        with suppress(OSError):  # where it could not be written it is not there
            path.unlink()
    return Speed(most, seconds)


def forget(descriptor: int) -> None:
    """Ask the kernel to drop a file's pages, where it takes such wishes."""
    if hasattr(os, "posix_fadvise"):
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def in_memory(descriptor: int) -> bool | None:
    """Whether the beginning of a file can be read without waiting for a disk; None where that cannot be asked."""
    if not hasattr(os, "RWF_NOWAIT"):
        return None
    try:
        return os.preadv(descriptor, [bytearray(1)], 0, os.RWF_NOWAIT) == 1
    except OSError as error:
        return False if error.errno == errno.EAGAIN else None
