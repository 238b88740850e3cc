"""The attention backends by name.

A backend is a function: queries, keys and values [T, 3, heads, head size], the batch, the kernels and the dropout
probability to a context [T, heads · head size]. `padded` is the reference that the others are tested against.

To add one: a function in this folder and its name in BACKENDS; the name among the allowed values of `attention` in
podium/config/schema.py, with what it excludes in the validators there; and in GRAPH_ATTENTION of
implementations/pytorch/build_run.py if its kernel launches do not depend on the lengths in a batch.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from implementations.pytorch.data.batch import RaggedBatch
from implementations.pytorch.kernels.interface import Kernels
from implementations.pytorch.model.attention.grouped import grouped
from implementations.pytorch.model.attention.padded import padded
from implementations.pytorch.model.attention.varlen import flash, is_had, nested
from podium.core.errors import UsageError
from podium.planning.hardware import FLASH_CAPABILITY

Backend = Callable[[Tensor, RaggedBatch, Kernels, float], Tensor]
BACKENDS: dict[str, Backend] = {"padded": padded, "grouped": grouped, "flash": flash, "nested": nested}


def attend(qkv_T3HK: Tensor, batch: RaggedBatch, *, backend: str, kernels: Kernels, probability: float) -> Tensor:
    """Context [T, heads · head size] of queries, keys and values [T, 3, heads, head size].

    Attention probabilities are dropped out with `probability`, which is 0 outside training. Padding slots are never
    attended to; what is returned for them has no meaning but is finite.
    """
    return BACKENDS[backend](qkv_T3HK, batch, kernels, probability)


def resolve_attention(setting: str, device: torch.device, dtype: torch.dtype) -> str:
    """The backend that a setting means on this device: `auto` is flash where a GPU has it, else nested, on a CPU
    grouped. Raises UsageError for a backend that this device does not have, or not for activations of this type."""
    if setting == "auto":
        return "grouped" if device.type == "cpu" else "flash" if is_had(device, dtype) else "nested"
    _require(setting, device, dtype)
    return setting


def _require(backend: str, device: torch.device, dtype: torch.dtype) -> None:
    if backend == "flash" and not is_had(device, dtype):
        where = f"{str(dtype).removeprefix('torch.')} on {device.type}"
        if device.type == "cuda":
            where += " of compute capability {}.{}".format(*torch.cuda.get_device_capability(device))
        allowed = ", ".join(["auto", *(name for name in BACKENDS if name != "flash")])
        raise UsageError(
            f"attention: found flash with {where}, but it needs bf16 or fp16 on cuda of compute capability "
            f"{'.'.join(map(str, FLASH_CAPABILITY))} or more; allowed here are {allowed}"
        )
