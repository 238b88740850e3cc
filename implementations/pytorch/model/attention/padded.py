"""Every sequence padded to the longest slot of the batch, as the published reference computes it."""

import math
from itertools import pairwise

import torch
from torch import Tensor

from implementations.pytorch.data.batch import RaggedBatch
from implementations.pytorch.kernels.interface import Kernels


def padded(qkv_T3HK: Tensor, batch: RaggedBatch, kernels: Kernels, probability: float) -> Tensor:
    """A padded batch is a rectangle already; the sequences of an unpadded one are copied into one."""
    sequences, (heads, size) = batch.sequences, qkv_T3HK.shape[2:]
    if batch.slot_width is not None:
        taken = sequences * batch.slot_width
        (group,) = batch.groups
        rectangle = qkv_T3HK[:taken].view(sequences, batch.slot_width, 3, heads, size)
        context = _attend(rectangle, group.key_counts, kernels, probability).reshape(taken, heads * size)
        return with_spare_slots([context], batch.slots)
    starts, width = batch.sequence_starts.tolist(), max(batch.lengths)
    rectangle = qkv_T3HK.new_zeros(sequences, width, 3, heads, size)
    for row, (start, end) in enumerate(pairwise(starts)):
        rectangle[row, : end - start] = qkv_T3HK[start:end]
    counts = torch.tensor(batch.lengths, dtype=torch.int32, device=qkv_T3HK.device)
    context = _attend(rectangle, counts, kernels, probability).flatten(2)
    return with_spare_slots(
        [context[row, : end - start] for row, (start, end) in enumerate(pairwise(starts))], batch.slots
    )


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
