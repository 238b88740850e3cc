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
    """softmax(q kᵀ / √K + bias) v over [rows, heads, width, head size]."""
    scores = torch.matmul(q * (1.0 / math.sqrt(q.shape[-1])), k.transpose(-1, -2))
    if key_bias is not None:
        scores = scores + key_bias.to(scores.dtype)
    weights = dropout(torch.softmax(scores, dim=-1, dtype=scores.dtype), probability, training)
    return torch.matmul(weights, v)


def padded(qkv_T3HK: Tensor, batch: RaggedBatch, probability: float, training: bool) -> Tensor:
    """Every sequence padded to the longest slot of the batch, as the published reference computes it."""
    starts = batch.sequence_starts.tolist()
    width = max(end - start for start, end in pairwise(starts))
    heads, size = qkv_T3HK.shape[2:]
    rectangle = qkv_T3HK.new_zeros(batch.sequences, width, 3, heads, size)
    bias = qkv_T3HK.new_full((batch.sequences, 1, 1, width), float("-inf"))
    for row, (start, end, length) in enumerate(zip(starts, starts[1:], batch.lengths, strict=False)):
        rectangle[row, : end - start] = qkv_T3HK[start:end]
        bias[row, ..., :length] = 0.0
    q, k, v = rectangle.permute(2, 0, 3, 1, 4)
    context = _dense(q, k, v, bias, probability, training).transpose(1, 2).flatten(2)
    rows = [context[row, : end - start] for row, (start, end) in enumerate(pairwise(starts))]
    return _with_spare_slots(rows, batch)


def _with_spare_slots(contexts: list[Tensor], batch: RaggedBatch) -> Tensor:
    """Sequences' contexts as [T, …], zeros in the slots that belong to no sequence."""
    spare = batch.slots - sum(context.shape[0] for context in contexts)
    if spare:
        contexts = [*contexts, contexts[0].new_zeros(spare, contexts[0].shape[1])]
    return torch.cat(contexts)


class _Pad(torch.autograd.Function):
    """A group's tokens as a rectangle. Slots beyond a sequence's end have gradient zero, so nothing is added up."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: AttentionGroup) -> Tensor:
        ctx.group, ctx.rows = group, x.shape[0]
        return x.index_select(0, group.pad_index)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        group: AttentionGroup = ctx.group
        gradient = gradients[0].new_zeros(ctx.rows, *gradients[0].shape[1:])
        rows = gradients[0].index_select(0, group.unpad_index)
        gradient[group.start : group.start + rows.shape[0]] = rows
        return gradient, None


def grouped(qkv_T3HK: Tensor, batch: RaggedBatch, probability: float, training: bool) -> Tensor:
    """Sequences of similar length together, one dense product a group (the groups are the batch's own).

    Source: the grouped attention of arXiv 2208.08124, with cut-offs found for each batch instead of fixed ones.
    """
    heads, size = qkv_T3HK.shape[2:]
    contexts = []
    for group in batch.groups:
        rectangle: Tensor = _Pad.apply(qkv_T3HK, group)  # type: ignore[no-untyped-call]
        q, k, v = rectangle.view(group.rows, group.width, 3, heads, size).permute(2, 0, 3, 1, 4)
        context = _dense(q, k, v, group.key_bias, probability, training).transpose(1, 2).reshape(-1, heads * size)
        contexts.append(context.index_select(0, group.unpad_index))
    return _with_spare_slots(contexts, batch)


BACKENDS: dict[str, Backend] = {"padded": padded, "grouped": grouped}
