"""Self-attention inside each sequence of a ragged batch: one façade, several backends behind it.

A backend is a function in `BACKENDS`: queries, keys and values [T, heads, head size], the batch and the dropout
probability to a context [T, heads · head size]. `padded` is the plain reference that the others are tested against.
"""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from implementations.pytorch.data.batch import AttentionGroup, RaggedBatch
from implementations.pytorch.model.dropout import dropout

Backend = Callable[[Tensor, RaggedBatch, float, bool], Tensor]


def attend(qkv_T3HK: Tensor, batch: RaggedBatch, *, backend: str, probability: float, training: bool) -> Tensor:
    """Context [T, heads · head size] of queries, keys and values [T, 3, heads, head size].

    Probabilities are dropped out with `probability` while `training`. Padding slots are never attended to; what is
    returned for them has no meaning. Raises KeyError for an unknown backend (the configuration allows only known ones).
    """
    return BACKENDS[backend](qkv_T3HK, batch, probability, training)


def _dense(q: Tensor, k: Tensor, v: Tensor, key_bias: Tensor | None, probability: float, training: bool) -> Tensor:
    """softmax(q kᵀ / √K + bias) v over […, width, head size]; the bias hides keys."""
    scores = torch.matmul(q * (1.0 / math.sqrt(q.shape[-1])), k.transpose(-1, -2))
    if key_bias is not None:
        scores = scores + key_bias.to(scores.dtype)
    weights = dropout(torch.softmax(scores, dim=-1, dtype=scores.dtype), probability, training)
    return torch.matmul(weights, v)


def padded(qkv_T3HK: Tensor, batch: RaggedBatch, probability: float, training: bool) -> Tensor:
    """Every sequence padded to the longest slot of the batch, as the published reference computes it.

    A padded batch is a rectangle already; the sequences of an unpadded one are copied into one.
    """
    sequences, (heads, size) = batch.sequences, qkv_T3HK.shape[2:]
    if batch.slot_width is not None:
        taken = sequences * batch.slot_width
        (group,) = batch.groups
        q, k, v = qkv_T3HK[:taken].view(sequences, batch.slot_width, 3, heads, size).permute(2, 0, 3, 1, 4)
        bias = None if group.key_bias is None else group.key_bias[:, None, :, : batch.slot_width]
        context = _dense(q, k, v, bias, probability, training).transpose(1, 2).reshape(taken, heads * size)
        return _joined([context], batch.slots)
    starts, width = batch.sequence_starts.tolist(), max(batch.lengths)
    rectangle = qkv_T3HK.new_zeros(sequences, width, 3, heads, size)
    bias = qkv_T3HK.new_full((sequences, 1, 1, width), float("-inf"))
    for row, (start, end) in enumerate(pairwise(starts)):
        rectangle[row, : end - start] = qkv_T3HK[start:end]
        bias[row, ..., : end - start] = 0.0
    q, k, v = rectangle.permute(2, 0, 3, 1, 4)
    context = _dense(q, k, v, bias, probability, training).transpose(1, 2).flatten(2)
    return _joined([context[row, : end - start] for row, (start, end) in enumerate(pairwise(starts))], batch.slots)


class _Split(torch.autograd.Function):
    """[…, T, K] to one rectangle […, rows · width, K] a group; slots beyond a sequence's end pass no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, groups: tuple[AttentionGroup, ...]) -> tuple[Tensor, ...]:
        ctx.groups, ctx.tokens = groups, x.shape[-2]
        return tuple(x.index_select(-2, group.pad_index) for group in groups)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        rows = [g.index_select(-2, group.unpad_index) for g, group in zip(gradients, ctx.groups, strict=True)]
        return _joined(rows, ctx.tokens), None


class _Merge(torch.autograd.Function):
    """The inverse of `_Split`; slots that belong to no sequence become zero."""

    @staticmethod
    def forward(ctx: Any, groups: tuple[AttentionGroup, ...], tokens: int, *rectangles: Tensor) -> Tensor:
        ctx.groups = groups
        return _joined(
            [r.index_select(-2, group.unpad_index) for r, group in zip(rectangles, groups, strict=True)], tokens
        )

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        rectangles = []
        for group in ctx.groups:
            rectangle = gradient.new_zeros(*gradient.shape[:-2], group.rows * group.width, gradient.shape[-1])
            mine = gradient.narrow(-2, group.start, group.unpad_index.numel())
            rectangles.append(rectangle.index_copy_(-2, group.unpad_index, mine))
        return None, None, *rectangles


def _joined(parts: list[Tensor], tokens: int) -> Tensor:
    """Parts […, tokens of the part, K] end to end, with zeros up to `tokens`."""
    spare = tokens - sum(part.shape[-2] for part in parts)
    if spare:
        parts = [*parts, parts[0].new_zeros(*parts[0].shape[:-2], spare, parts[0].shape[-1])]
    return torch.cat(parts, dim=-2)


def grouped(qkv_T3HK: Tensor, batch: RaggedBatch, probability: float, training: bool) -> Tensor:
    """Sequences of similar length together, one dense product a group (the groups are the batch's own).

    Source: the grouped attention of arXiv 2208.08124, with cut-offs found for each batch instead of fixed ones.
    """
    heads, size = qkv_T3HK.shape[2:]
    qkv_3HTK = qkv_T3HK.permute(1, 2, 0, 3).contiguous()
    rectangles: tuple[Tensor, ...] = _Split.apply(qkv_3HTK, batch.groups)  # type: ignore[no-untyped-call]
    contexts = []
    for group, rectangle in zip(batch.groups, rectangles, strict=True):
        q, k, v = rectangle.view(3, heads, group.rows, group.width, size)
        contexts.append(_dense(q, k, v, group.key_bias, probability, training).flatten(-3, -2))
    context_HTK: Tensor = _Merge.apply(batch.groups, batch.slots, *contexts)  # type: ignore[no-untyped-call]
    return context_HTK.permute(1, 0, 2).flatten(1)


BACKENDS: dict[str, Backend] = {"padded": padded, "grouped": grouped}
