"""Tokens into one rectangle of [rows, width] a group and back, each token copied once each way.

The copies are part of the differentiation: what backward does for one direction is the other direction. Slots that
belong to no token are zero in a rectangle, and tokens that belong to no group are zero outside.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numba import prange
from torch import Tensor

from benchmarks.compiled import compiled_parallel
from implementations.pytorch.data.batch import AttentionGroup
from implementations.pytorch.kernels.cpu.arrays import array, is_supported
from implementations.pytorch.kernels.cpu.scalars import load, stored_as

Groups = tuple[AttentionGroup, ...]


def split(qkv_T3HK: Tensor, groups: Groups) -> tuple[Tensor, ...]:
    """Queries, keys and values [3, heads, rows, width, head size] of each group; queries are scaled by 1/√K."""
    rectangles: tuple[Tensor, ...] = _Split.apply(qkv_T3HK, groups)  # type: ignore[no-untyped-call]
    return rectangles


def merge(contexts: list[Tensor], groups: Groups, slots: int) -> Tensor:
    """Contexts [heads, rows, width, head size] of the groups back to tokens [T, heads, head size]."""
    merged: Tensor = _Merge.apply(groups, slots, *contexts)  # type: ignore[no-untyped-call]
    return merged


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
