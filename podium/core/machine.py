"""The machine that a measurement was made on: host, processor, cores and GPUs, as the kernel and the driver report."""

import os
import platform
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
