"""Resource usage of this process from /proc: resident memory, anonymous and of files, and bytes read."""

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc/self")
MAPPING = re.compile(r"[0-9a-f]+-[0-9a-f]+ ....\s+[0-9a-f]+ \S+ \d+\s*(.*)")


@dataclass(frozen=True)
class Memory:
    """Resident memory of a process in bytes."""

    anonymous: int  # private to the process
    files: int  # unmodified pages of mapped files, shared by all processes that map them
    index: int  # of these, pages of the length indices


def resident_memory(indices: frozenset[str] = frozenset(), smaps: str | None = None) -> Memory:
    """Return the memory of this process. `indices`: paths of the mapped length indices.

    `smaps` replaces the text of /proc/self/smaps.
    """
    anonymous = files = index = 0
    path, resident = "", 0
    for line in (smaps or (PROC / "smaps").read_text(encoding="utf-8", errors="replace")).splitlines():
        if found := MAPPING.fullmatch(line):
            path = found[1].removesuffix(" (deleted)")
            continue
        name, _, value = line.partition(":")
        if name == "Rss":
            resident = 1024 * int(value.split()[0])
        elif name == "Anonymous":  # after Rss in every mapping; includes copy-on-write pages of mapped files
            written = 1024 * int(value.split()[0])
            anonymous += written
            files += resident - written
            index += (resident - written) * (path in indices)
    return Memory(anonymous, files, index)


def bytes_read(io: str | None = None) -> tuple[int, int]:
    """Return the bytes that this process has read from disks, and the bytes that it requested by read(2), so far.

    `io` replaces the text of /proc/self/io.
    """
    lines = (io or (PROC / "io").read_text(encoding="ascii")).splitlines()
    numbers = {name: int(value) for name, _, value in (line.partition(":") for line in lines)}
    return numbers["read_bytes"], numbers["rchar"]


def seconds_since_start() -> float:
    """Return the seconds since this process was started, including the start of the interpreter and imports."""
    # Split after the last ")", since the second field, the command's name, may contain spaces and parentheses. Field 22
    # is the start time in clock ticks since boot.
    fields = (PROC / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
