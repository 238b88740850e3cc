"""Dispatch to the attention backends by name.

A backend is a function of queries, keys and values [T, 3, H, K] (tokens, heads, head size), the batch, the kernels and
the dropout probability that returns the context [T, H · K]. `padded` is the reference that the others are tested
against.

To add a backend, write a function in this folder and add its name to BACKENDS; add the name to the allowed values of
`attention` in podium/config/schema.py, with validators for the settings that it excludes; add it to the rows of
ATTENTION_CHOICES in podium/planning/hardware.py where `auto` should use it; and add it to GRAPH_ATTENTION of
implementations/pytorch/build_run.py if its kernel launches do not depend on the lengths in a batch.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from implementations.pytorch.data.batch import RaggedBatch
from implementations.pytorch.kernels.interface import Kernels
from implementations.pytorch.model.attention.cudnn_varlen import cudnn_attention
from implementations.pytorch.model.attention.grouped import grouped
from implementations.pytorch.model.attention.padded import padded
from implementations.pytorch.model.attention.varlen import QKV, flash, nested

# The first parameter is a tensor [T, 3, H, K]; that of a backend in SEPARATE_QKV may also be three tensors [T, H, K].
Backend = Callable[[Any, RaggedBatch, Kernels, float], Tensor]
BACKENDS: dict[str, Backend] = {
    "padded": padded,
    "grouped": grouped,
    "cudnn": cudnn_attention,
    "flash": flash,
    "nested": nested,
}
SEPARATE_QKV = ("cudnn", "flash")


def attend(qkv: QKV, batch: RaggedBatch, *, backend: str, kernels: Kernels, probability: float) -> Tensor:
    """Return the attention context [T, H · K] of qkv: one tensor [T, 3, H, K], or three of [T, H, K].

    Three tensors get three gradients. Backends that are not in SEPARATE_QKV copy them into one tensor first.
    `probability` is the dropout probability of the attention weights, 0 outside training. No token attends to padding
    slots; the context of padding slots is undefined but finite. Raises KeyError for an unknown backend.
    """
    if isinstance(qkv, tuple) and backend not in SEPARATE_QKV:
        qkv = torch.stack(qkv, 1)
    return BACKENDS[backend](qkv, batch, kernels, probability)
