"""Selection of a kernel set from the configuration and the device."""

from importlib.util import find_spec

import torch

from implementations.pytorch.kernels.eager import EAGER
from implementations.pytorch.kernels.interface import Kernels
from podium.core.errors import UsageError


def resolve_kernels(setting: str, device: torch.device) -> str:
    """Return the kernel set for the configured `setting`: `auto` selects numba on a CPU and triton on a GPU.

    Raises UsageError for kernels that do not run on this device.
    """
    if setting == "auto":
        return "numba" if device.type == "cpu" else "triton"
    if (setting, device.type) in (("numba", "cuda"), ("triton", "cpu")):
        allowed = "compiled, triton" if device.type == "cuda" else "compiled, numba"
        raise UsageError(f"kernels: found {setting} on {device.type}, allowed there are auto, eager, {allowed}")
    return setting


def load_kernels(name: str) -> Kernels:
    """Return the kernels of a resolved name. `compiled` selects the eager ones, which the model compiles itself."""
    # Imported only when chosen: Triton is not installed on machines without a GPU, and numba starts its threads.
    if name == "numba":
        from implementations.pytorch.kernels.cpu.common import use_torch_num_threads
        from implementations.pytorch.kernels.cpu.kernel_set import NUMBA

        use_torch_num_threads()
        return NUMBA
    if name == "triton":
        if find_spec("triton") is None:
            raise UsageError(
                "kernels: found triton (or auto, which is triton on a GPU), but Triton is not installed; install the "
                "package triton, or set kernels to eager"
            )
        from implementations.pytorch.kernels.gpu.kernel_set import TRITON

        return TRITON
    return EAGER
