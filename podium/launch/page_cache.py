"""Clears the kernel's caches before a run, where permissions allow; else drops the samples from the page cache.

Whether the samples are out of memory is looked at afterwards: the kernel keeps pages that another process maps, pages
not yet written back, and all pages of a file system in memory, and reports none of that as a failure.
"""

import ctypes
import mmap
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from benchmarks.bert.store import shard_paths
from podium.config.schema import RunConfig

DROP_CACHES = Path("/proc/sys/vm/drop_caches")
EVERYTHING = "3"  # page cache, directory entries and inodes: Linux, admin-guide/sysctl/vm
LOWEST_BIT = bytes(value & 1 for value in range(256))  # of a byte of mincore(2), the only bit that is defined
TRIES = 3
PROBES = 64  # pages of a file that are read without waiting, where mincore does not say which are in memory


@dataclass(frozen=True)
class Cleared:
    """Whether the samples are no longer in memory, and in words what was done."""

    samples: bool
    words: str


def clear_caches(config: RunConfig) -> Cleared:
    """Have the kernel forget all it has cached, or the samples' pages alone where more is not wanted or not allowed.

    `samples` of the result is False where pages of samples were found in memory afterwards; where the kernel does not
    say, they count as cleared.
    """
    for shard in _shards(config):
        _drop(shard)
    why = _drop_everything() if config.launch.caches == "all" else "launch.caches is samples"
    found = [(resident_bytes(shard), shard.stat().st_size) for shard in _shards(config)]
    kept = sum(resident for resident, _ in found if resident is not None)
    if kept:
        size = sum(size for _, size in found)
        return Cleared(
            False,
            f"{_megabytes(kept)} of {_megabytes(size)} MB of samples are still in memory after clearing caches: they "
            "lie on a file system in memory, or another process has them mapped; the log says cache_clear: false",
        )
    unknown = sum(resident is None for resident, _ in found)
    doubt = f"; the kernel does not say whether {unknown} of {len(found)} shards are out of memory" if unknown else ""
    if not why:
        return Cleared(True, f"Cleared all of the kernel's caches{doubt}")
    return Cleared(True, f"Cleared the samples from the page cache, and no more: {why}{doubt}")


def _shards(config: RunConfig) -> Iterator[Path]:
    for folder in config.every_store.values():
        yield from shard_paths(folder)


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f}"


def _drop(path: Path) -> None:
    """Drop a file's pages; a page that the kernel works on at that moment stays, so that it may take a second try."""
    for _ in range(TRIES):
        _write_back_and_drop(path)
        if not resident_bytes(path):
            return


def _write_back_and_drop(path: Path) -> None:
    """Ask the kernel to forget a file's pages; those that are not on the disk yet would stay."""
    with path.open("rb") as file:
        with suppress(OSError):  # a file system that cannot, such as one mounted read-only, has nothing to write back
            os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def resident_bytes(path: Path) -> int | None:
    """How much of a file is in the page cache; None where the kernel does not say.

    By mincore(2). Since Linux 5.2 it answers that all pages of a file are in memory to those who neither own nor may
    write it; then some pages are read by preadv2(2) with RWF_NOWAIT, which fails for one that is not in memory.
    """
    size = path.stat().st_size
    if size == 0:
        return 0
    pages = -(-size // mmap.PAGESIZE)
    with path.open("rb") as file:
        resident = _mincore(file, size, pages)
        if resident == pages:
            found = _read_at_once(file, pages)
            if found is False:
                return 0
            if found is None and not (os.geteuid() in (0, os.fstat(file.fileno()).st_uid) or os.access(path, os.W_OK)):
                return None
    return None if resident is None else min(size, resident * mmap.PAGESIZE)


def _mincore(file: IO[bytes], size: int, pages: int) -> int | None:
    """Pages of a file in memory as mincore(2) answers on a fresh mapping; None where it fails."""
    answer = ctypes.create_string_buffer(pages)
    with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) as mapped:  # private: the file need not be writable
        first = ctypes.c_char.from_buffer(mapped)
        try:
            failed = ctypes.CDLL(None).mincore(ctypes.byref(first), ctypes.c_size_t(size), answer)
        finally:
            del first  # the mapping cannot be closed before
    return None if failed else answer.raw.translate(LOWEST_BIT).count(1)


def _read_at_once(file: IO[bytes], pages: int) -> bool | None:
    """Whether any of some pages can be read without waiting for the disk; None where the file system cannot say."""
    buffer, found = bytearray(1), False
    for number in range(0, pages, max(1, pages // PROBES)):
        try:
            os.preadv(file.fileno(), [buffer], number * mmap.PAGESIZE, os.RWF_NOWAIT)
            found = True
        except BlockingIOError:
            continue
        except OSError:
            return None
    if not found:  # reading ahead may have begun for pages that were asked for
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return found


def _drop_everything() -> str:
    """Why not, or nothing."""
    try:
        with DROP_CACHES.open("w", encoding="ascii") as switch:
            os.sync()  # pages that are not on the disk yet would stay
            switch.write(EVERYTHING)
    except OSError as error:
        return f"{DROP_CACHES} cannot be written here ({error.strerror})"
    return ""
