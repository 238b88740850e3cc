"""Attention with every sequence padded to the longest slot of the batch, as the published reference computes it.

Tokens are copied into one rectangle of [rows, width] a group and back, each token once in each direction. The copies
are differentiable: the backward of one direction is the other direction. Slots without a token are zero in a
rectangle, and tokens without a group are zero outside.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numba import prange
from torch import Tensor

from implementations.pytorch.data.batch import AttentionGroup, RaggedBatch
from implementations.pytorch.kernels.cpu.common import array, is_supported, load, stored_as
from implementations.pytorch.kernels.interface import Kernels, apply
from podium.core.jit import compiled_parallel


def padded(qkv_T3HK: Tensor, batch: RaggedBatch, kernels: Kernels, probability: float) -> Tensor:
    """A padded batch is a rectangle already; the sequences of an unpadded one are copied into one.

    Where they lie is taken from the host's lengths, so that the host never waits for a device.
    """
    if batch.slot_width is not None:
        taken = batch.sequences * batch.slot_width
        (group,) = batch.groups
        rectangle = qkv_T3HK[:taken].view(batch.sequences, batch.slot_width, *qkv_T3HK.shape[1:])
        context_RWHK = _attend(rectangle, group.key_counts, kernels, probability)
        return with_spare_slots([context_RWHK.reshape(taken, -1)], batch.slots)
    lengths, width = batch.lengths, batch.lengths[0]
    parts = qkv_T3HK.split([*lengths, batch.spare_slots])  # type: ignore[no-untyped-call]
    rows = [F.pad(part, (*[0] * 7, width - length)) for part, length in zip(parts, lengths, strict=False)]
    counts = batch.sequence_starts.diff().int()
    contexts = _attend(torch.stack(rows), counts, kernels, probability).flatten(2).unbind()
    return with_spare_slots([context[:length] for context, length in zip(contexts, lengths, strict=True)], batch.slots)


def _attend(rectangle: Tensor, key_counts: Tensor, kernels: Kernels, probability: float) -> Tensor:
    """Context [rows, width, heads, head size] of [rows, width, 3, heads, head size]."""
    q, k, v = rectangle.permute(2, 3, 0, 1, 4)
    return dense(q * (1.0 / math.sqrt(q.shape[-1])), k, v, key_counts, kernels, probability).permute(1, 2, 0, 3)


def dense(
    q_HRWK: Tensor, k_HRWK: Tensor, v_HRWK: Tensor, key_counts: Tensor, kernels: Kernels, probability: float
) -> Tensor:
    """softmax(q kᵀ) v over the first `key_counts` keys of each row; q is scaled by 1/√K already."""
    scores_HRWW = torch.matmul(q_HRWK, k_HRWK.transpose(-1, -2))
    return torch.matmul(kernels.attention_weights(scores_HRWW, key_counts, probability), v_HRWK)


def with_spare_slots(parts: list[Tensor], tokens: int) -> Tensor:
    """Parts [tokens of the part, …] end to end, with zeros up to `tokens`."""
    spare = tokens - sum(part.shape[0] for part in parts)
    if spare:
        parts = [*parts, parts[0].new_zeros(spare, *parts[0].shape[1:])]
    return torch.cat(parts) if len(parts) > 1 else parts[0]


Groups = tuple[AttentionGroup, ...]


def split(qkv_T3HK: Tensor, groups: Groups) -> tuple[Tensor, ...]:
    """Queries, keys and values [3, heads, rows, width, head size] of each group; queries are scaled by 1/√K."""
    rectangles: tuple[Tensor, ...] = _Split.apply(qkv_T3HK, groups)  # type: ignore[no-untyped-call]
    return rectangles


def merge(contexts: list[Tensor], groups: Groups, slots: int) -> Tensor:
    """Contexts [heads, rows, width, head size] of the groups back to tokens [T, heads, head size]."""
    return apply(_Merge, groups, slots, *contexts)


class _Split(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv_T3HK: Tensor, groups: Groups) -> tuple[Tensor, ...]:
        ctx.groups, ctx.slots = groups, qkv_T3HK.shape[0]
        return tuple(_gather(qkv_T3HK, group, _query_scale(qkv_T3HK)) for group in groups)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _scatter(gradients, ctx.groups, ctx.slots, _query_scale(gradients[0])), None


class _Merge(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, groups: Groups, slots: int, *contexts: Tensor) -> Tensor:
        ctx.groups = groups
        return _scatter([context[None] for context in contexts], groups, slots, 1.0)[:, 0]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *(_gather(gradients[0][:, None], group, 1.0)[0] for group in ctx.groups)


def _query_scale(x: Tensor) -> float:
    return 1.0 / math.sqrt(x.shape[-1])


def _gather(x_TPHK: Tensor, group: AttentionGroup, scale: float) -> Tensor:
    """[T, parts, heads, head size] → [parts, heads, rows, width, head size], the first part multiplied by `scale`."""
    _, parts, heads, size = x_TPHK.shape
    if x_TPHK.device.type == "cpu" and is_supported(x_TPHK):
        rectangle = x_TPHK.new_empty(parts, heads, group.rows, group.width, size)
        _gather_rows(array(x_TPHK), group.row_starts.numpy(), scale, array(rectangle))
        return rectangle
    taken = x_TPHK.index_select(0, group.pad_index).view(group.rows, group.width, parts, heads, size)
    slots_RW = torch.arange(group.width, device=taken.device) < group.row_starts.diff()[:, None]
    rectangle = (taken * slots_RW[:, :, None, None, None]).permute(2, 3, 0, 1, 4).contiguous()
    rectangle[0] *= scale
    return rectangle


def _scatter(rectangles: Sequence[Tensor], groups: Groups, slots: int, scale: float) -> Tensor:
    """The inverse of `_gather` for all groups, the first part multiplied by `scale` again."""
    parts, heads, _, _, size = rectangles[0].shape
    x_TPHK = rectangles[0].new_empty(slots, parts, heads, size)
    x_TPHK[groups[-1].start + groups[-1].tokens :] = 0
    for rectangle, group in zip(rectangles, groups, strict=True):
        if rectangle.device.type == "cpu" and is_supported(rectangle):
            _scatter_rows(array(rectangle), group.row_starts.numpy(), scale, array(x_TPHK))
            continue
        flat = rectangle.permute(2, 3, 0, 1, 4).reshape(group.rows * group.width, parts, heads, size)
        tokens = flat.index_select(0, group.unpad_index)
        tokens[:, 0] *= scale
        x_TPHK[group.start : group.start + len(tokens)] = tokens
    return x_TPHK


@compiled_parallel
def _gather_rows(x: np.ndarray, row_starts: np.ndarray, scale: float, rectangle: np.ndarray) -> None:
    parts, heads, rows, width, size = rectangle.shape
    factor, zero = np.float32(scale), np.float32(0.0)
    for line in prange(rows * heads):
        row, head = line // heads, line % heads
        start, count = row_starts[row], row_starts[row + 1] - row_starts[row]
        for part in range(parts):
            target = rectangle[part, head, row]
            for slot in range(count):
                source = x[start + slot, part, head]
                if part == 0:
                    for k in range(size):
                        target[slot, k] = stored_as(target, load(source[k]) * factor)
                else:
                    for k in range(size):
                        target[slot, k] = source[k]
            for slot in range(count, width):
                for k in range(size):
                    target[slot, k] = stored_as(target, zero)


@compiled_parallel
def _scatter_rows(rectangle: np.ndarray, row_starts: np.ndarray, scale: float, x: np.ndarray) -> None:
    parts, heads, rows, _, size = rectangle.shape
    factor = np.float32(scale)
    for line in prange(rows * heads):
        row, head = line // heads, line % heads
        start, count = row_starts[row], row_starts[row + 1] - row_starts[row]
        for part in range(parts):
            source = rectangle[part, head, row]
            for slot in range(count):
                target = x[start + slot, part, head]
                if part == 0:
                    for k in range(size):
                        target[k] = stored_as(x, load(source[slot, k]) * factor)
                else:
                    for k in range(size):
                        target[k] = source[slot, k]
