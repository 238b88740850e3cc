"""Sequences of similar length together, one launch a group, the groups side by side (they are the batch's own).

Source: the grouped multi-stream attention of arXiv 2208.08124, with cut-offs found for each batch unless given.
On a GPU a group is a slice of the tokens, given to variable-length flash attention with the group's own longest length,
so that kernels are launched for the length there is; each group has a stream of its own, and the longest, which is the
first, that of all other work. On a CPU, on GPUs older than Ampere, and in types that flash attention does not take, a
group is one dense product.
"""

from functools import partial

from torch import Tensor

from implementations.pytorch.data.batch import RaggedBatch
from implementations.pytorch.kernels.interface import Kernels
from implementations.pytorch.model.attention.flash import is_had, varlen
from implementations.pytorch.model.attention.padded import dense, with_spare_slots
from implementations.pytorch.model.attention.rectangles import merge, split
from implementations.pytorch.model.attention.streams import side_by_side, streams_of


def grouped(qkv_T3HK: Tensor, batch: RaggedBatch, kernels: Kernels, probability: float) -> Tensor:
    if batch.slot_width is None and is_had(qkv_T3HK.device, qkv_T3HK.dtype):
        return _slices(qkv_T3HK, batch, probability)
    contexts = [
        dense(q_HRWK, k_HRWK, v_HRWK, group.key_counts, kernels, probability)
        for group, (q_HRWK, k_HRWK, v_HRWK) in zip(batch.groups, split(qkv_T3HK, batch.groups), strict=True)
    ]
    return merge(contexts, batch.groups, batch.slots).flatten(1)


def _slices(qkv_T3HK: Tensor, batch: RaggedBatch, probability: float) -> Tensor:
    parts = qkv_T3HK.split([*(group.tokens for group in batch.groups), batch.spare_slots])  # type: ignore[no-untyped-call]
    launches = [
        partial(varlen, part, group.relative_starts, group.width, probability)
        for part, group in zip(parts, batch.groups, strict=False)
    ]
    contexts = side_by_side(launches, qkv_T3HK, streams_of(qkv_T3HK.device))
    return with_spare_slots(contexts, batch.slots).flatten(1)
