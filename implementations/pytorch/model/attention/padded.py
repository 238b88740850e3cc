"""Every sequence padded to the longest slot of the batch, as the published reference computes it."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from implementations.pytorch.data.batch import RaggedBatch
from implementations.pytorch.kernels.interface import Kernels


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
