"""Ragged batches as one array, so that whatever moves them, to another process or to a device, moves one thing."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from implementations.pytorch.data.batch import AttentionGroup, RaggedBatch

WORD = 8
"""Every tensor begins at a multiple of so many bytes."""


@dataclass(frozen=True)
class Facts:
    """What a batch or a group of it is besides its tensors; by name, of what type and how many elements those are."""

    values: dict[str, Any]
    tensors: dict[str, tuple[torch.dtype, int]]


def flatten(batches: Sequence[RaggedBatch]) -> tuple[list[list[Facts]], np.ndarray]:
    """The facts of each batch and of its groups, and the content of all tensors, uint8 [bytes]. Batches of the host."""
    facts = [[_facts(holder) for holder in _holders(batch)] for batch in batches]
    tensors: list[Tensor] = [
        getattr(holder, name)
        for batch, described in zip(batches, facts, strict=True)
        for holder, fact in zip(_holders(batch), described, strict=True)
        for name in fact.tensors
    ]
    content = np.zeros(sum(_room(tensor.dtype, tensor.numel()) for tensor in tensors), dtype=np.uint8)
    start = 0
    for tensor in tensors:
        values = tensor.numpy().view(np.uint8)
        content[start : start + len(values)] = values
        start += _room(tensor.dtype, tensor.numel())
    return facts, content


def unflatten(facts: Sequence[Sequence[Facts]], content: Tensor) -> tuple[RaggedBatch, ...]:
    """The batches again, whose tensors are views of `content` [bytes] uint8, wherever that lies."""
    start = 0
    batches = []
    for described in facts:
        holders: list[dict[str, Any]] = []
        for fact in described:
            values = dict(fact.values)
            for name, (dtype, count) in fact.tensors.items():
                values[name] = content[start : start + count * dtype.itemsize].view(dtype)
                start += _room(dtype, count)
            holders.append(values)
        batch, *groups = holders
        batches.append(RaggedBatch(groups=tuple(AttentionGroup(**group) for group in groups), **batch))
    return tuple(batches)


def _holders(batch: RaggedBatch) -> list[RaggedBatch | AttentionGroup]:
    return [batch, *batch.groups]


def _facts(holder: RaggedBatch | AttentionGroup) -> Facts:
    held = {field.name: getattr(holder, field.name) for field in fields(holder) if field.name != "groups"}
    tensors = {name: value for name, value in held.items() if isinstance(value, Tensor)}
    return Facts(
        {name: value for name, value in held.items() if name not in tensors},
        {name: (tensor.dtype, tensor.numel()) for name, tensor in tensors.items()},
    )


def _room(dtype: torch.dtype, count: int) -> int:
    """Bytes that a tensor takes, what rounds them up included."""
    return -(-count * dtype.itemsize // WORD) * WORD
