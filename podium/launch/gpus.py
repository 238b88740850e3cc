"""Check of this machine's GPUs before a run, by the NVIDIA driver and without importing PyTorch."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata

from podium.config.schema import RunConfig
from podium.core.errors import UsageError

DRIVER = "libcuda.so.1"
VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
TO_DO = f"see `nvidia-smi` and {VISIBLE_DEVICES}, run on a machine with GPUs, or set launch.device=cpu"
TO_DO_FOR_DOCKER = "see `nvidia-smi`, run on a machine with GPUs, or set launch.device=cpu"


def require_gpus(config: RunConfig) -> None:
    """Raise UsageError if this machine has fewer GPUs than processes to start, or PyTorch cannot use them.

    Of a run in Docker, which is on this machine with another PyTorch, only the GPUs are counted; of a Slurm job, which
    is on other machines, nothing is checked.
    """
    launcher = config.launch.launcher
    if config.launch.device != "cuda" or launcher == "slurm":
        return
    if launcher == "docker":
        with _all_devices_visible():
            _require_count(config, TO_DO_FOR_DOCKER)
        return
    _require_count(config, TO_DO)
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:  # built from source; the ranks report what is wrong with it
        return
    if version.endswith("+cpu"):
        raise UsageError(
            f"launch.device is cuda, but torch {version} is installed, which is built for CPUs; install PyTorch with "
            "CUDA (docs/getting-started.md), or set launch.device=cpu"
        )


def _require_count(config: RunConfig, to_do: str) -> None:
    processes = config.launch.processes_per_node
    count, reason = count_gpus()
    if count < processes:
        found = f"{count} GPUs" if count > 1 else "1 GPU" if count else "no GPU"
        raise UsageError(
            f"launch.device is cuda and launch.processes_per_node is {processes}, but this machine has {found}"
            f"{f' ({reason})' if reason else ''}; {to_do}"
        )


@contextmanager
def _all_devices_visible() -> Iterator[None]:
    """Remove CUDA_VISIBLE_DEVICES meanwhile: a container does not inherit it, and gets all GPUs."""
    limited = os.environ.pop(VISIBLE_DEVICES, None)
    try:
        yield
    finally:
        if limited is not None:
            os.environ[VISIBLE_DEVICES] = limited


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
