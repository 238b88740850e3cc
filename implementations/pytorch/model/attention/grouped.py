"""Attention over groups of sequences of similar length, one launch a group, groups concurrent on CUDA streams.

Source: the grouped multi-stream attention of arXiv 2208.08124. On a GPU a group is a slice of the tokens, passed to
variable-length flash attention with the group's longest length. Each group has a separate stream, except for the
longest, which is the first and runs on the stream of all other work. On a CPU, on GPUs older than Ampere, and in types
that flash attention does not support, a group is one dense product. Evaluation has one launch and no side streams where
there is flash attention, as published: side streams are then free for training beside an evaluation.

Autograd runs the backward of an operation on the stream that its forward ran on, and makes a stream wait wherever a
gradient passes from one to another (PyTorch's CUDA semantics, "Stream semantics of backward passes"), so work that
forks to side streams here forks in backward too.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial

import torch
from torch import Tensor

from implementations.pytorch.data.batch import RaggedBatch
from implementations.pytorch.kernels.interface import Kernels
from implementations.pytorch.model.attention.padded import dense, merge, split, with_spare_slots
from implementations.pytorch.model.attention.varlen import flash, is_had, varlen


@cache
def side_stream(device: torch.device, side: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def side_by_side(launches: Sequence[Callable[[], Tensor]], shared: Tensor) -> list[Tensor]:
    """Results of the launches, all of which read `shared`: the first on the compute stream, each other on its own."""
    compute = torch.cuda.current_stream(shared.device)
    results: list[Tensor] = []
    for side, launch in enumerate(launches[1:]):
        stream = side_stream(shared.device, side)
        stream.wait_stream(compute)
        shared.record_stream(stream)  # its memory is not given away before the side stream has read it
        with torch.cuda.stream(stream):
            results.append(launch())
    first = launches[0]()
    for side, result in enumerate(results):
        compute.wait_stream(side_stream(shared.device, side))
        result.record_stream(compute)
    return [first, *results]


def grouped(qkv_T3HK: Tensor, batch: RaggedBatch, kernels: Kernels, probability: float) -> Tensor:
    if batch.slot_width is None and is_had(qkv_T3HK.device, qkv_T3HK.dtype):
        if not torch.is_grad_enabled():  # evaluation
            return flash(qkv_T3HK, batch, kernels, probability)
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
    contexts = side_by_side(launches, qkv_T3HK)
    return with_spare_slots(contexts, batch.slots).flatten(1)
