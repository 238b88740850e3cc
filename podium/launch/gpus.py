"""Check of this machine's GPUs before a run, by the NVIDIA driver and without importing PyTorch."""

import ctypes
from importlib import metadata

from podium.config.schema import RunConfig
from podium.core.errors import UsageError

DRIVER = "libcuda.so.1"
TO_DO = "see `nvidia-smi` and CUDA_VISIBLE_DEVICES, run on a machine with GPUs, or set launch.device=cpu"


def require_gpus(config: RunConfig) -> None:
    """Raise UsageError if this machine has fewer GPUs than processes to start, or PyTorch cannot use them."""
    if config.launch.device != "cuda":
        return
    processes = config.launch.processes_per_node
    count, reason = count_gpus()
    if count < processes:
        found = f"{count} GPUs" if count > 1 else "1 GPU" if count else "no GPU"
        raise UsageError(
            f"launch.device is cuda and launch.processes_per_node is {processes}, but this machine has {found}"
            f"{f' ({reason})' if reason else ''}; {TO_DO}"
        )
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:  # built from source; the ranks report what is wrong with it
        return
    if version.endswith("+cpu"):
        raise UsageError(
            f"launch.device is cuda, but torch {version} is installed, which is built for CPUs; install PyTorch with "
            "CUDA (docs/getting-started.md), or set launch.device=cpu"
        )


def count_gpus() -> tuple[int, str]:
    """Return the number of GPUs that CUDA programs of this process would see, and why there is none."""
    try:
        driver = ctypes.CDLL(DRIVER)
    except OSError:
        return 0, f"the NVIDIA driver's {DRIVER} is not installed"
    code = int(driver.cuInit(0))  # makes no context, so that no memory of a GPU is used
    if code:
        return 0, f"the NVIDIA driver reports error {code} (cuInit)"
    count = ctypes.c_int(0)
    code = int(driver.cuDeviceGetCount(ctypes.byref(count)))
    return (0, f"the NVIDIA driver reports error {code} (cuDeviceGetCount)") if code else (count.value, "")
