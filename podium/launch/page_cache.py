"""Clears the kernel's caches before a run, where permissions allow; else drops the samples from the page cache."""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.bert.store import shard_paths
from podium.config.schema import RunConfig

DROP_CACHES = Path("/proc/sys/vm/drop_caches")
EVERYTHING = "3"  # page cache, directory entries and inodes: Linux, admin-guide/sysctl/vm


@dataclass(frozen=True)
class Cleared:
    """Whether the samples are no longer in memory, and in words what was done."""

    samples: bool
    words: str


def clear_caches(config: RunConfig) -> Cleared:
    """Have the kernel forget all it has cached, or the samples' pages alone where more is not wanted or not allowed."""
    why = _drop_everything() if config.launch.caches == "all" else "launch.caches is samples"
    samples = drop_from_page_cache(config)
    if not why:
        return Cleared(True, "Cleared all of the kernel's caches")
    what = "Cleared the samples from the page cache" if samples else "Cleared no caches"
    return Cleared(samples, f"{what}, and no more: {why}")


def drop_from_page_cache(config: RunConfig) -> bool:
    """Ask the kernel to forget the samples' pages, so that a run reads them from the disk. False where it cannot."""
    if not hasattr(os, "posix_fadvise"):
        return False
    for folder in config.every_store.values():
        for shard in shard_paths(folder):
            with shard.open("rb") as file:
                with suppress(OSError):  # a file system that is mounted read-only
                    os.fdatasync(file.fileno())  # pages that are not on the disk yet would stay
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return True


def _drop_everything() -> str:
    """Why not, or nothing."""
    try:
        with DROP_CACHES.open("w", encoding="ascii") as switch:
            os.sync()  # pages that are not on the disk yet would stay
            switch.write(EVERYTHING)
    except OSError as error:
        return f"{DROP_CACHES} cannot be written here ({error.strerror})"
    return ""
