"""What a process takes of its machine, by Linux's own accounts: memory of its own and of files, and bytes read."""

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc/self")
MAPPING = re.compile(r"[0-9a-f]+-[0-9a-f]+ ....\s+[0-9a-f]+ \S+ \d+\s*(.*)")


@dataclass(frozen=True)
class Memory:
    """Resident bytes of a process."""

    own: int  # that no other process has
    of_files: int  # pages of mapped files as they are on the disk: processes that map them share them
    of_index: int  # of these, those of the length indices


def memory(indices: frozenset[str] = frozenset(), smaps: str | None = None) -> Memory:
    """Of this process now, where `indices` are the paths of the mapped length indices; `smaps` stands for its account,
    /proc/self/smaps."""
    own = of_files = of_index = 0
    path, resident = "", 0
    for line in (smaps or (PROC / "smaps").read_text(encoding="utf-8", errors="replace")).splitlines():
        if found := MAPPING.fullmatch(line):
            path = found[1].removesuffix(" (deleted)")
            continue
        name, _, value = line.partition(":")
        if name == "Rss":
            resident = 1024 * int(value.split()[0])
        elif name == "Anonymous":  # comes after Rss: what the process has written, also of mapped files
            anonymous = 1024 * int(value.split()[0])
            own += anonymous
            of_files += resident - anonymous
            of_index += (resident - anonymous) * (path in indices)
    return Memory(own, of_files, of_index)


def bytes_read(account: str | None = None) -> tuple[int, int]:
    """Bytes that this process has had read from disks, and bytes that it has asked for by read(2), since it started;
    `account` stands for /proc/self/io."""
    lines = (account or (PROC / "io").read_text(encoding="ascii")).splitlines()
    numbers = {name: int(value) for name, _, value in (line.partition(":") for line in lines)}
    return numbers["read_bytes"], numbers["rchar"]


def seconds_since_start() -> float:
    """Since this process was started, its interpreter and imports included."""
    fields = (PROC / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
