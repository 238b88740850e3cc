"""What this machine can tell of itself, by the fields of MLPerf's system description."""

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from podium.doctor.machine import MEMORY

CPUINFO, CPUS, RELEASE = Path("/proc/cpuinfo"), Path("/sys/devices/system/cpu"), Path("/etc/os-release")
GIB = 2**30
SMI_FIELDS = ("driver_version", "clocks.max.sm")
SMI_SECONDS = 30.0
KINDS = {"Data": "d", "Instruction": "i"}


@dataclass(frozen=True)
class Detected:
    """Fields of the description that could be told, and versions of the software below the framework by its name."""

    fields: Mapping[str, str]
    software: Mapping[str, str] = field(default_factory=dict)


def detect(device: Mapping[str, Any] | None) -> Detected:
    """Everything that this machine tells; `device` is what the implementation's process sees, None where it fails.

    What is of no use to a CPU system, such as its accelerators, is told as the number 0 alone.
    """
    driver, clock = _nvidia_smi()
    fields = processor_fields(CPUINFO, CPUS) | {"host_processor_vcpu_count": str(os.cpu_count() or "")}
    with suppress(OSError, ValueError, KeyError):
        fields["host_memory_capacity"] = _capacity(total_memory(MEMORY))
    with suppress(OSError, KeyError):
        fields["operating_system"] = os_name(RELEASE)
    software = {"kernel": platform.release(), "python": platform.python_version()}
    if device is not None:
        fields |= {"framework": f"PyTorch {str(device['torch']).partition('+')[0]}"} | gpu_fields(device["gpus"])
        told = {"cuda": device.get("cuda"), "cudnn": device.get("cudnn"), "nccl": device.get("nccl")}
        software |= {name: str(version) for name, version in told.items() if version and device["gpus"]}
    if driver:
        software["cuda_driver"] = driver
    if clock and fields.get("accelerators_per_node", "0") != "0":
        fields["accelerator_frequency"] = clock
    return Detected({key: value for key, value in fields.items() if value}, software)


def processor_fields(cpuinfo: Path, cpus: Path) -> dict[str, str]:
    """Sockets, model, cores of a processor, its greatest frequency and its caches, as far as the kernel tells."""
    found: dict[str, str] = {}
    with suppress(OSError):
        processors = _processors(cpuinfo.read_text(encoding="utf-8", errors="replace"))
        models = {one["model name"] for one in processors if "model name" in one}
        if len(models) == 1:
            found["host_processor_model_name"] = models.pop()
        cores = {(one.get("physical id"), one.get("core id")) for one in processors if "physical id" in one}
        sockets = {socket for socket, _ in cores}
        if sockets:
            found["host_processors_per_node"] = str(len(sockets))
            found["host_processor_core_count"] = str(len(cores) // len(sockets))
    with suppress(OSError, ValueError):
        kilohertz = int((cpus / "cpu0" / "cpufreq" / "cpuinfo_max_freq").read_text(encoding="ascii"))
        found["host_processor_frequency"] = f"{kilohertz / 1e6:.2f} GHz"
    caches = _caches(cpus / "cpu0" / "cache")
    return found | ({"host_processor_caches": caches} if caches else {})


def total_memory(meminfo: Path) -> int:
    """Bytes of memory that the kernel manages: a little less than what is installed."""
    lines = dict(line.split(":") for line in meminfo.read_text(encoding="ascii").splitlines())
    return 1024 * int(lines["MemTotal"].split()[0])


def os_name(release: Path) -> str:
    """Name and version, such as Ubuntu 24.04.1 LTS."""
    lines = (line.partition("=") for line in release.read_text(encoding="utf-8").splitlines())
    return {key: value.strip("\"' ") for key, _, value in lines}["PRETTY_NAME"]


def gpu_fields(gpus: list[Mapping[str, Any]]) -> dict[str, str]:
    """Number, model and memory of the GPUs; the model and the memory only where all are alike."""
    found = {"accelerators_per_node": str(len(gpus))}
    if len({gpu["name"] for gpu in gpus}) == 1:
        found["accelerator_model_name"] = str(gpus[0]["name"])
        found["accelerator_memory_capacity"] = _capacity(min(int(gpu["total_bytes"]) for gpu in gpus))
    return found


def _processors(text: str) -> list[dict[str, str]]:
    blocks = (block.splitlines() for block in text.strip().split("\n\n"))
    return [{k.strip(): v.strip() for k, _, v in (line.partition(":") for line in block)} for block in blocks]


def _caches(folder: Path) -> str:
    """Those that the first core sees: L1d 48 KiB, L2 1 MiB, L3 32 MiB."""
    names = []
    for index in sorted(folder.glob("index[0-9]*")):
        with suppress(OSError, ValueError):
            level, kind, size = (
                (index / name).read_text(encoding="ascii").strip() for name in ("level", "type", "size")
            )
            kibibytes = int(size.removesuffix("K"))
            amount = f"{kibibytes // 1024} MiB" if kibibytes % 1024 == 0 else f"{kibibytes} KiB"
            names.append(f"L{level}{KINDS.get(kind, '')} {amount}")
    return ", ".join(names)


def _nvidia_smi() -> tuple[str, str]:
    """The driver's version and the greatest clock rate of the first GPU, each empty where there is none."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return "", ""
    query = [program, f"--query-gpu={','.join(SMI_FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=SMI_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "", ""
    match = re.match(r"\s*([\d.]+)\s*,\s*(\d+)\s*$", (done.stdout.splitlines() or [""])[0])
    if done.returncode or match is None:
        return "", ""
    return match[1], f"{int(match[2])} MHz"


def _capacity(size: int) -> str:
    """Bytes in the unit in which memory is sold: GB, which are GiB."""
    return f"{size / GIB:.0f} GB"
