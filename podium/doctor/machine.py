"""What this machine has to spare, as the kernel tells it."""

import os
import resource
import time
from contextlib import suppress
from pathlib import Path

from benchmarks.processes import processors

STAT, MEMORY, CGROUP_MEMORY = Path("/proc/stat"), Path("/proc/meminfo"), Path("/sys/fs/cgroup/memory.max")
DROP_CACHES = Path("/proc/sys/vm/drop_caches")
SECONDS = 0.5
IDLE = (3, 4)
"""The columns of /proc/stat in which a processor waits: idle and iowait."""


def machine() -> dict[str, float]:
    """`busy` share of our processors, `processors`, `memory` available in bytes, `limit` of open files.

    What the system does not tell is left out.
    """
    found: dict[str, float] = {"processors": processors(), "limit": _open_files()}
    with suppress(OSError, ValueError, IndexError):
        found["busy"] = busy_share(SECONDS)
    with suppress(OSError, ValueError, KeyError):
        found["memory"] = _available_memory()
    return found


def busy_share(seconds: float) -> float:
    """Share of the time that the processors of this process were busy, while it slept for so long."""
    before = _jiffies()
    time.sleep(seconds)
    after = _jiffies()
    total = sum(a[0] - b[0] for a, b in zip(after, before, strict=True))
    idle = sum(a[1] - b[1] for a, b in zip(after, before, strict=True))
    return 1 - idle / total if total else 0.0


def _jiffies() -> list[tuple[int, int]]:
    """All and idle time of each processor that this process may use."""
    ours = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    lines = [line.split() for line in STAT.read_text(encoding="ascii").splitlines()]
    counts = [[int(count) for count in fields[1:9]] for fields in lines if fields[0] in ours]
    return [(sum(times), sum(times[column] for column in IDLE)) for times in counts]


def _available_memory() -> int:
    """Bytes that can be had without swapping, no more than a container's limit."""
    lines = dict(line.split(":") for line in MEMORY.read_text(encoding="ascii").splitlines())
    available = 1024 * int(lines["MemAvailable"].split()[0])
    with suppress(OSError, ValueError):  # ValueError: "max"
        available = min(available, int(CGROUP_MEMORY.read_text(encoding="ascii")))
    return available


def _open_files() -> float:
    """Files that a process may have open, once it has raised its own limit as far as it may."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return float("inf") if hard == resource.RLIM_INFINITY else float(hard)
