"""Dispatch to the attention backends by name.

A backend is a function of queries, keys and values [T, 3, H, K] (tokens, heads, head size), the batch, the kernels and
the dropout probability that returns the context [T, H · K]. `padded` is the reference that the others are tested
against.

To add a backend, write a function in this folder and add its name to BACKENDS; add the name to the allowed values of
`attention` in podium/config/schema.py, with validators for the settings that it excludes; and add it to GRAPH_ATTENTION
of implementations/pytorch/build_run.py if its kernel launches do not depend on the lengths in a batch.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from implementations.pytorch.data.batch import RaggedBatch
from implementations.pytorch.kernels.interface import Kernels
from implementations.pytorch.model.attention.grouped import grouped
from implementations.pytorch.model.attention.padded import padded
from implementations.pytorch.model.attention.varlen import flash, is_flash_available, nested
from podium.core.errors import UsageError
from podium.planning.hardware import FLASH_CAPABILITY

Backend = Callable[[Tensor, RaggedBatch, Kernels, float], Tensor]
BACKENDS: dict[str, Backend] = {"padded": padded, "grouped": grouped, "flash": flash, "nested": nested}


def attend(qkv_T3HK: Tensor, batch: RaggedBatch, *, backend: str, kernels: Kernels, probability: float) -> Tensor:
    """Return the attention context [T, H · K] of queries, keys and values [T, 3, H, K].

    `probability` is the dropout probability of the attention weights, 0 outside training. No token attends to padding
    slots; the context of padding slots is undefined but finite. Raises KeyError for an unknown backend.
    """
    return BACKENDS[backend](qkv_T3HK, batch, kernels, probability)


def resolve_attention(setting: str, device: torch.device, dtype: torch.dtype) -> str:
    """Return the backend to use for the configured `setting` on this device.

    `auto` selects grouped on a CPU, flash on a GPU that supports it, else nested. Raises UsageError for a backend that
    this device does not support with activations of this dtype.
    """
    if setting == "auto":
        return "grouped" if device.type == "cpu" else "flash" if is_flash_available(device, dtype) else "nested"
    _require(setting, device, dtype)
    return setting


def _require(backend: str, device: torch.device, dtype: torch.dtype) -> None:
    if backend == "flash" and not is_flash_available(device, dtype):
        where = f"{str(dtype).removeprefix('torch.')} on {device.type}"
        if device.type == "cuda":
            where += " of compute capability {}.{}".format(*torch.cuda.get_device_capability(device))
        allowed = ", ".join(["auto", *(name for name in BACKENDS if name != "flash")])
        raise UsageError(
            f"attention: found flash with {where}, but it needs bf16 or fp16 on cuda of compute capability "
            f"{'.'.join(map(str, FLASH_CAPABILITY))} or more; allowed here are {allowed}"
        )
