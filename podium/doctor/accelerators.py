"""Accelerators of this machine: NVIDIA GPUs by nvidia-smi, and others, which Podium does not support, by the kernel.

Supported are NVIDIA GPUs, by CUDA. AMD GPUs (ROCm), Intel Gaudi and Google TPUs are detected to be named, not used.
"""

import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from podium.config.schema import is_stated
from podium.core.finding import Finding
from podium.core.text import one_line
from podium.doctor.context import DiagnosticContext
from podium.planning.accelerators import UNSUPPORTED, is_supported, unknown_gpu_warning

PCI = Path("/sys/bus/pci/devices")
SMI_TIMEOUT_SECONDS = 30.0
MIB = 2**20
GIB = 2**30
# PCI vendor → what its accelerators are called, and the software that PyTorch needs for them.
OTHER_VENDORS = {
    "0x1002": ("AMD GPU", "ROCm"),
    "0x1da3": ("Intel Gaudi", "Intel's Gaudi software"),
    "0x1ae0": ("Google TPU", "PyTorch/XLA"),
}
ACCELERATOR_CLASSES = (
    "0x03",
    "0x12",
    "0xff",
)  # PCI: display, processing accelerator, unassigned; not networks or disks
SUPPORTED = "NVIDIA GPUs by CUDA, or CPUs"


@dataclass(frozen=True)
class NvidiaGpu:
    """An NVIDIA GPU of this machine."""

    name: str  # of the driver, such as NVIDIA H100 80GB HBM3
    total_bytes: int


def nvidia_gpus() -> list[NvidiaGpu]:
    """Return the GPUs that nvidia-smi lists; none without a driver."""
    found = []
    for row in query_nvidia_smi(("name", "memory.total")):
        with suppress(ValueError):
            name, mebibytes = row
            found.append(NvidiaGpu(one_line(name), int(mebibytes) * MIB))
    return found


def query_nvidia_smi(fields: Sequence[str]) -> list[list[str]]:
    """Return these fields of each GPU, as text without units; an empty list where nvidia-smi is missing or fails."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    query = [program, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=SMI_TIMEOUT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return []
    if done.returncode:
        return []
    return [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines() if line.strip()]


def other_accelerators(pci: Path = PCI) -> list[str]:
    """Return the accelerators that Podium cannot use, such as `8× AMD GPU`, from the kernel's list of devices."""
    counts: dict[str, int] = {}
    with suppress(OSError):
        for device in sorted(pci.iterdir()):
            with suppress(OSError, UnicodeDecodeError):
                vendor, device_class = (
                    (device / name).read_text(encoding="ascii").strip() for name in ("vendor", "class")
                )
                if vendor in OTHER_VENDORS and device_class.startswith(ACCELERATOR_CLASSES):
                    name = OTHER_VENDORS[vendor][0]
                    counts[name] = counts.get(name, 0) + 1
    return [f"{count}× {name}" for name, count in counts.items()]


def check_accelerators(context: DiagnosticContext) -> Iterable[Finding]:
    """Whether the accelerators of this machine are of a kind that Podium supports."""
    others = ", ".join(context.other_accelerators)
    torch = str((context.device or {}).get("torch", ""))
    if "rocm" in torch.lower():
        advice = "install the build of PyTorch for CUDA or for CPUs; AMD GPUs are not supported"
        yield Finding("accelerator", "error", f"PyTorch {torch} is a build for ROCm", SUPPORTED, advice)
    elif not context.cuda:
        unused = f"CPU; {others} not supported, not used" if others else "CPU"
        yield Finding("accelerator", "note" if others else "ok", unused, SUPPORTED)
    elif others and not (context.device or {}).get("gpus"):
        software = ", ".join(sorted({needs for name, needs in OTHER_VENDORS.values() if name in others}))
        advice = f"{software} is not supported: use a machine with NVIDIA GPUs, or launch.device=cpu"
        yield Finding("accelerator", "error", f"no NVIDIA GPU, but {others}", SUPPORTED, advice)
    else:
        yield Finding("accelerator", "ok", "CUDA, on which no run of Podium is known yet", SUPPORTED)


def check_described(context: DiagnosticContext) -> Iterable[Finding]:
    """Whether Podium runs on the accelerator that the system's description names, and knows what it can compute."""
    name = context.config.description.accelerator_model_name
    if not context.cuda:
        return
    if not is_supported(name):
        yield Finding("accelerator model", "error", f"{one_line(name)}: not supported", SUPPORTED, UNSUPPORTED)
    elif is_stated(name) and (warning := unknown_gpu_warning(name)) is not None:
        found, _, advice = warning.rpartition("; ")
        yield Finding("accelerator model", "warning", found, "a GPU of Podium's table", advice)


def same_kind(names: Iterable[str]) -> str | None:
    """Return the common name of all GPUs; None if there are none, or if they differ."""
    kinds = {re.sub(r"\s+", " ", name) for name in names}
    return kinds.pop() if len(kinds) == 1 else None
