"""Selection of a kernel set by the configuration and the device."""

import torch

from implementations.pytorch.kernels.eager import EAGER
from implementations.pytorch.kernels.interface import Kernels
from podium.core.errors import UsageError


def resolve_kernels(setting: str, device: torch.device) -> str:
    """`auto` becomes numba on a CPU and compiled on a GPU. Raises UsageError for kernels of the other device."""
    if setting == "auto":
        return "numba" if device.type == "cpu" else "compiled"
    if (setting, device.type) in (("numba", "cuda"), ("triton", "cpu")):
        allowed = "compiled, triton" if device.type == "cuda" else "compiled, numba"
        raise UsageError(f"kernels: found {setting} on {device.type}, allowed there are auto, eager, {allowed}")
    return setting


def load_kernels(name: str) -> Kernels:
    """The kernels of a resolved name. `compiled` are the eager ones: it is the model that compiles its blocks."""
    if name == "numba":
        from implementations.pytorch.kernels.cpu.common import use_torchs_threads
        from implementations.pytorch.kernels.cpu.kernel_set import NUMBA

        use_torchs_threads()
        return NUMBA
    if name == "triton":
        from implementations.pytorch.kernels.gpu.kernel_set import TRITON

        return TRITON
    return EAGER
