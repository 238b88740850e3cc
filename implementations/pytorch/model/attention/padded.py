"""Padded attention, as in the published reference, and the padding and unpadding of attention groups.

Tokens are copied into one rectangle [rows, width] per group and back, each token once in each direction. The copies
are differentiable: the backward pass of padding is unpadding, and vice versa. Slots of a rectangle without a token are
set to zero, as are token slots of the batch that belong to no group.

Suffixes of shapes: T token slots, P parts (queries, keys, values), H heads, K head size, R rows, W width.
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
from implementations.pytorch.kernels.cpu.common import as_array, is_supported, load_float32, round_to_stored
from implementations.pytorch.kernels.interface import Kernels, apply
from podium.core.jit import compiled_parallel


def padded(qkv_T3HK: Tensor, batch: RaggedBatch, kernels: Kernels, probability: float) -> Tensor:
    """Return the context [T, H · K] of qkv [T, 3, H, K], computed as one [S, longest] rectangle.

    A padded batch already is a rectangle; the sequences of an unpadded batch are padded to the longest one.
    """
    # Offsets come from `batch.lengths`, which is on the host: slicing by a device tensor would synchronise.
    if batch.slot_width is not None:
        taken = batch.sequences * batch.slot_width
        (group,) = batch.groups
        rectangle = qkv_T3HK[:taken].view(batch.sequences, batch.slot_width, *qkv_T3HK.shape[1:])
        context_RWHK = _attend(rectangle, group.key_counts, kernels, probability)
        return concat_and_zero_pad([context_RWHK.reshape(taken, -1)], batch.slots)
    lengths, width = batch.lengths, batch.lengths[0]  # the first sequence is the longest
    parts = qkv_T3HK.split([*lengths, batch.spare_slots])  # type: ignore[no-untyped-call]
    rows = [F.pad(part, (*[0] * 7, width - length)) for part, length in zip(parts, lengths, strict=False)]
    counts = batch.sequence_starts.diff().int()[: len(lengths)]  # without the sequences that have no tokens
    contexts = _attend(torch.stack(rows), counts, kernels, probability).flatten(2).unbind()
    return concat_and_zero_pad(
        [context[:length] for context, length in zip(contexts, lengths, strict=True)], batch.slots
    )


def _attend(rectangle: Tensor, key_counts: Tensor, kernels: Kernels, probability: float) -> Tensor:
    """Return the context [R, W, H, K] of queries, keys and values [R, W, 3, H, K]."""
    q, k, v = rectangle.permute(2, 3, 0, 1, 4)
    return dense(q * (1.0 / math.sqrt(q.shape[-1])), k, v, key_counts, kernels, probability).permute(1, 2, 0, 3)


def dense(
    q_HRWK: Tensor, k_HRWK: Tensor, v_HRWK: Tensor, key_counts: Tensor, kernels: Kernels, probability: float
) -> Tensor:
    """Return softmax(q kᵀ) v [H, R, W, K] over the first `key_counts` (int32 [R]) keys of each row.

    The queries must already be scaled by 1/√K.
    """
    # Scaling the queries instead of the scores takes K/W of the multiplications, and keeps fp16 scores in range.
    scores_HRWW = torch.matmul(q_HRWK, k_HRWK.transpose(-1, -2))
    return torch.matmul(kernels.attention_weights(scores_HRWW, key_counts, probability), v_HRWK)


def concat_and_zero_pad(parts: list[Tensor], tokens: int) -> Tensor:
    """Concatenate parts [tokens of the part, …] and append zeros up to `tokens` rows."""
    spare = tokens - sum(part.shape[0] for part in parts)
    if spare:
        parts = [*parts, parts[0].new_zeros(spare, *parts[0].shape[1:])]
    return torch.cat(parts) if len(parts) > 1 else parts[0]


Groups = tuple[AttentionGroup, ...]


def split(qkv_T3HK: Tensor, groups: Groups) -> tuple[Tensor, ...]:
    """Pad qkv [T, 3, H, K] to one rectangle [3, H, R, W, K] per group; queries are scaled by 1/√K. Differentiable."""
    rectangles: tuple[Tensor, ...] = _Split.apply(qkv_T3HK, groups)  # type: ignore[no-untyped-call]
    return rectangles


def merge(contexts: list[Tensor], groups: Groups, slots: int) -> Tensor:
    """Unpad the groups' contexts [H, R, W, K] to tokens [T, H, K], T being `slots`. Differentiable."""
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
    """Copy the group's tokens of x [T, P, H, K] into a rectangle [P, H, R, W, K]; the first part is scaled."""
    _, parts, heads, size = x_TPHK.shape
    if x_TPHK.device.type == "cpu" and is_supported(x_TPHK):
        rectangle = x_TPHK.new_empty(parts, heads, group.rows, group.width, size)
        _gather_rows(as_array(x_TPHK), group.row_starts.numpy(), scale, as_array(rectangle))
        return rectangle
    # `pad_index` repeats each row's first token in the padding slots, so that every index is valid; a mask then zeroes
    # them. A multiplication instead of indexing by the mask, which would read its size on the host.
    taken = x_TPHK.index_select(0, group.pad_index).view(group.rows, group.width, parts, heads, size)
    slots_RW = torch.arange(group.width, device=taken.device) < group.row_starts.diff()[:, None]
    rectangle = (taken * slots_RW[:, :, None, None, None]).permute(2, 3, 0, 1, 4).contiguous()
    rectangle[0] *= scale
    return rectangle


def _scatter(rectangles: Sequence[Tensor], groups: Groups, slots: int, scale: float) -> Tensor:
    """Copy the groups' rectangles [P, H, R, W, K] back to tokens [slots, P, H, K]; the first part is scaled.

    The inverse of `_gather` with a scale of 1, and its gradient with the same scale.
    """
    parts, heads, _, _, size = rectangles[0].shape
    x_TPHK = rectangles[0].new_empty(slots, parts, heads, size)
    # Uninitialised memory is enough: groups cover the token slots from 0 on without a gap, and the rest is zeroed here.
    x_TPHK[groups[-1].start + groups[-1].tokens :] = 0
    for rectangle, group in zip(rectangles, groups, strict=True):
        if rectangle.device.type == "cpu" and is_supported(rectangle):
            _scatter_rows(as_array(rectangle), group.row_starts.numpy(), scale, as_array(x_TPHK))
            continue
        flat = rectangle.permute(2, 3, 0, 1, 4).reshape(group.rows * group.width, parts, heads, size)
        tokens = flat.index_select(0, group.unpad_index)
        tokens[:, 0] *= scale
        x_TPHK[group.start : group.start + len(tokens)] = tokens
    return x_TPHK


# One iteration copies one head of one row: reads are contiguous over K, and writes are contiguous over [W, K].
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
                        target[slot, k] = round_to_stored(target, load_float32(source[k]) * factor)
                else:
                    for k in range(size):
                        target[slot, k] = source[k]
            for slot in range(count, width):
                for k in range(size):
                    target[slot, k] = round_to_stored(target, zero)


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
                        target[k] = round_to_stored(x, load_float32(source[slot, k]) * factor)
                else:
                    for k in range(size):
                        target[k] = source[slot, k]
