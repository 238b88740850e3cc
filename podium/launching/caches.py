"""Caches cleared before a run, as far as the rights go."""

import os
from dataclasses import dataclass
from pathlib import Path

from podium.config import RunConfig
from podium.data import drop_from_page_cache

DROP_CACHES = Path("/proc/sys/vm/drop_caches")
EVERYTHING = "3"
"""Page cache, directory entries and inodes: Linux, admin-guide/sysctl/vm."""


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


def _drop_everything() -> str:
    """Why not, or nothing."""
    try:
        with DROP_CACHES.open("w", encoding="ascii") as switch:
            os.sync()  # pages that are not on the disk yet would stay
            switch.write(EVERYTHING)
    except OSError as error:
        return f"{DROP_CACHES} cannot be written here ({error.strerror})"
    return ""
