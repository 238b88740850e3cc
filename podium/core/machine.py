"""The machine that a measurement was made on, as the kernel and the driver report it.

Host, processor, cores and GPUs, and how much of the processors other processes used.
"""

import os
import platform
import resource
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from podium.core.text import one_line

CPUINFO = Path("/proc/cpuinfo")
MODEL_KEYS = ("model name", "cpu model", "hardware")  # of x86, and of kernels for other processors
MAX_LENGTH = 200  # characters of a name that is read from a file
GPU_QUERY_SECONDS = 10.0
STAT = Path("/proc/stat")
IDLE_COLUMNS = (3, 4)  # of /proc/stat: idle and iowait
MAX_OTHER_LOAD = 0.1  # share of the processors; above it, times that are measured are too long


@dataclass(frozen=True)
class Machine:
    """Host name, processor model and number of logical processors; empty and 0 where they are not known."""

    host: str
    processor: str
    cores: int

    @classmethod
    def from_json(cls, document: object) -> "Machine | None":
        """Return the machine of a record that `as_json` made; None for anything else."""
        if not isinstance(document, Mapping):
            return None
        host, processor, cores = (document.get(key) for key in ("host", "processor", "cores"))
        if not (isinstance(host, str) and isinstance(processor, str) and type(cores) is int):
            return None
        return cls(one_line(host)[:MAX_LENGTH], one_line(processor)[:MAX_LENGTH], cores)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def same_model(self, other: "Machine") -> bool:
        """Whether both have a processor of the same, known model with the same number of cores."""
        return bool(self.processor) and (self.processor, self.cores) == (other.processor, other.cores)

    @property
    def model(self) -> str:
        """Processor and cores, such as AMD EPYC 9555, 64 cores."""
        return f"{self.processor or platform.machine()}, {self.cores} core{'s' if self.cores != 1 else ''}"


def this_machine() -> Machine:
    return Machine(platform.node(), processor_model(CPUINFO), os.cpu_count() or 0)


def processor_model(cpuinfo: Path) -> str:
    """Return the model of the first processor in /proc/cpuinfo; empty if the kernel names none."""
    with suppress(OSError):
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip().lower() in MODEL_KEYS and value.strip():
                return one_line(value.strip())[:MAX_LENGTH]
    return ""


def gpu_models() -> list[str]:
    """Return the models of this machine's NVIDIA GPUs by nvidia-smi; nothing without it."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    query = [program, "--query-gpu=name", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=GPU_QUERY_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return (
        [one_line(line)[:MAX_LENGTH] for line in done.stdout.splitlines() if line.strip()]
        if not done.returncode
        else []
    )


class OtherLoad:
    """Measures the time for which others use the processors of this process, from its creation on."""

    def __init__(self) -> None:
        self._start = self._read()

    def share(self) -> float | None:
        """Share of the processors' time that was used neither by this process nor by children that have ended.

        None if the kernel does not report it, as elsewhere than on Linux.
        """
        end = self._read()
        if self._start is None or end is None or end[0] <= self._start[0]:
            return None
        total, used, own = (after - before for before, after in zip(self._start, end, strict=True))
        return min(max((used - own) / total, 0.0), 1.0)

    @staticmethod
    def _read() -> tuple[float, float, float] | None:
        """Seconds of all processors that this process may use: in total, not idle, and of this process."""
        with suppress(OSError, ValueError, IndexError, AttributeError):
            cpus = {f"cpu{number}" for number in os.sched_getaffinity(0)}
            lines = [line.split() for line in STAT.read_text(encoding="ascii").splitlines()]
            # The columns after the eighth, guest times, are already included in user times.
            counts = [[int(count) for count in fields[1:9]] for fields in lines if fields and fields[0] in cpus]
            idle = sum(times[column] for times in counts for column in IDLE_COLUMNS)
            total, ticks = sum(map(sum, counts)), os.sysconf("SC_CLK_TCK")
            own = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
            return total / ticks, (total - idle) / ticks, sum(one.ru_utime + one.ru_stime for one in own)
        return None
