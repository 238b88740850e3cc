"""Clearing of the kernel's caches before a run, where permissions allow, or else of the samples' pages only.

Afterwards the samples' pages in memory are counted: the kernel keeps pages that another process maps, pages not yet
written back, and all pages of a file system in memory, and reports none of these as a failure.
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
DROP_ALL = "3"  # page cache, directory entries and inodes: Linux, admin-guide/sysctl/vm
LOWEST_BIT = bytes(value & 1 for value in range(256))  # of a byte of mincore(2), the only bit that is defined
DROP_ATTEMPTS = 3
PROBES = 64  # pages of a file that are read without waiting, where the result of mincore is not reliable


@dataclass(frozen=True)
class Cleared:
    """Result of clearing caches: whether the samples are no longer in memory, and a message for the user."""

    samples: bool
    message: str


def clear_caches(config: RunConfig) -> Cleared:
    """Drop all of the kernel's caches, or only the samples' pages if launch.caches or permissions exclude the rest.

    `samples` of the result is False if pages of samples were found in memory afterwards. Shards whose pages cannot be
    counted count as cleared.
    """
    for shard in _shards(config):
        _drop_pages(shard)
    reason = _drop_all_caches() if config.launch.caches == "all" else "launch.caches is samples"
    found = [(resident_bytes(shard), shard.stat().st_size) for shard in _shards(config)]
    kept = sum(resident for resident, _ in found if resident is not None)
    if kept:
        size = sum(size for _, size in found)
        return Cleared(
            False,
            f"{_megabytes(kept)} of {_megabytes(size)} MB of samples are still in memory after clearing caches: they "
            "are on a file system in memory, or another process maps them; the log has cache_clear: false",
        )
    unknown = sum(resident is None for resident, _ in found)
    doubt = f"; for {unknown} of {len(found)} shards it cannot be checked here" if unknown else ""
    if not reason:
        return Cleared(True, f"Cleared all of the kernel's caches{doubt}")
    return Cleared(True, f"Cleared only the samples from the page cache: {reason}{doubt}")


def _shards(config: RunConfig) -> Iterator[Path]:
    for folder in config.all_stores.values():
        yield from shard_paths(folder)


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f}"


def _drop_pages(path: Path) -> None:
    """Drop a file's pages, repeatedly: pages that the kernel is using at that moment stay."""
    for _ in range(DROP_ATTEMPTS):
        _write_back_and_drop(path)
        if not resident_bytes(path):
            return


def _write_back_and_drop(path: Path) -> None:
    """Write a file's dirty pages back, which the kernel would keep, and advise it to drop all pages."""
    with path.open("rb") as file:
        with suppress(OSError):  # a file system without fsync, such as one mounted read-only, has no dirty pages
            os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def resident_bytes(path: Path) -> int | None:
    """Bytes of a file in the page cache; None if they cannot be determined.

    Uses mincore(2). Since Linux 5.2 it reports all pages as resident to a user who neither owns the file nor may write
    it. So that result is checked by reading some pages by preadv2(2) with RWF_NOWAIT, which fails for a page that is
    not in memory.
    """
    size = path.stat().st_size
    if size == 0:
        return 0
    pages = -(-size // mmap.PAGESIZE)
    with path.open("rb") as file:
        resident = _resident_pages(file, size, pages)
        if resident == pages:
            found = _any_page_cached(file, pages)
            if found is False:
                return 0
            if found is None and not (os.geteuid() in (0, os.fstat(file.fileno()).st_uid) or os.access(path, os.W_OK)):
                return None
    return None if resident is None else min(size, resident * mmap.PAGESIZE)


def _resident_pages(file: IO[bytes], size: int, pages: int) -> int | None:
    """Number of resident pages of a file by mincore(2) on a fresh mapping; None if the call fails."""
    vector = ctypes.create_string_buffer(pages)
    with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) as mapped:  # private: the file need not be writable
        first = ctypes.c_char.from_buffer(mapped)
        try:
            failed = ctypes.CDLL(None).mincore(ctypes.byref(first), ctypes.c_size_t(size), vector)
        finally:
            del first  # a mapping with an exported pointer cannot be closed
    return None if failed else vector.raw.translate(LOWEST_BIT).count(1)


def _any_page_cached(file: IO[bytes], pages: int) -> bool | None:
    """Whether any of PROBES pages can be read without waiting for the disk; None if RWF_NOWAIT is not supported."""
    buffer, found = bytearray(1), False
    for number in range(0, pages, max(1, pages // PROBES)):
        try:
            os.preadv(file.fileno(), [buffer], number * mmap.PAGESIZE, os.RWF_NOWAIT)
            found = True
        except BlockingIOError:
            continue
        except OSError:
            return None
    if not found:  # the failed reads may have started readahead
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return found


def _drop_all_caches() -> str:
    """Drop page cache, directory entries and inodes; return the reason if that is not permitted, else ""."""
    try:
        with DROP_CACHES.open("w", encoding="ascii") as switch:
            os.sync()  # dirty pages are not dropped
            switch.write(DROP_ALL)
    except OSError as error:
        return f"{DROP_CACHES} cannot be written here ({error.strerror})"
    return ""
