"""Grouped multi-stream attention: one kernel launch per group of sequences of similar length, on parallel CUDA streams.

Source: Baidu's grouped multi-stream attention, arXiv 2208.08124. On a GPU a group is a slice of the tokens, passed to
variable-length flash attention with the group's longest length. The first group, which has the longest sequences, runs
on the compute stream, and each other group on a side stream. On a CPU, on GPUs older than Ampere, and for dtypes that
flash attention does not support, each group is one dense matrix product. Evaluation with flash attention uses one
launch and no side streams, as published, which leaves the side streams to training that runs during an evaluation.

Autograd runs the backward of an operation on the stream of its forward, and inserts a wait wherever a gradient passes
from one stream to another (PyTorch's CUDA semantics, "Stream semantics of backward passes"). So the backward pass uses
the same side streams without further code.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial

import torch
from torch import Tensor

from implementations.pytorch.data.batch import RaggedBatch
from implementations.pytorch.kernels.interface import Kernels
from implementations.pytorch.model.attention.padded import concat_and_zero_pad, dense, merge, split
from implementations.pytorch.model.attention.varlen import flash, is_flash_available, varlen
from implementations.pytorch.streams import new_stream


@cache
def side_stream(device: torch.device, side: int) -> torch.cuda.Stream:
    """Return the side stream number `side` of a device; all layers and steps share it."""
    return new_stream(device)


def run_concurrently(launches: Sequence[Callable[[], Tensor]], shared: Tensor) -> list[Tensor]:
    """Run the launches concurrently and return their results in order; all of them read `shared`.

    The first runs on the current (compute) stream, each other one on a side stream. The compute stream waits for all.
    """
    compute = torch.cuda.current_stream(shared.device)
    results: list[Tensor] = []
    for side, launch in enumerate(launches[1:]):
        stream = side_stream(shared.device, side)
        stream.wait_stream(compute)  # `shared` is written on the compute stream
        # The caching allocator must not reuse this memory before the side stream has read it.
        shared.record_stream(stream)
        with torch.cuda.stream(stream):
            results.append(launch())
    # Launched after the side streams have been set up: `wait_stream` waits for all work submitted to the compute stream
    # so far, so the groups would otherwise run one after another.
    first = launches[0]()
    for side, result in enumerate(results):
        compute.wait_stream(side_stream(shared.device, side))
        result.record_stream(compute)
    return [first, *results]


def grouped(qkv_T3HK: Tensor, batch: RaggedBatch, kernels: Kernels, probability: float) -> Tensor:
    """Return the context [T, H · K] of qkv [T, 3, H, K], computed group by group."""
    if batch.slot_width is None and is_flash_available(qkv_T3HK.device, qkv_T3HK.dtype):
        if not torch.is_grad_enabled():  # evaluation
            return flash(qkv_T3HK, batch, kernels, probability)
        return _attend_slices(qkv_T3HK, batch, probability)
    contexts = [
        dense(q_HRWK, k_HRWK, v_HRWK, group.key_counts, kernels, probability)
        for group, (q_HRWK, k_HRWK, v_HRWK) in zip(batch.groups, split(qkv_T3HK, batch.groups), strict=True)
    ]
    return merge(contexts, batch.groups, batch.slots).flatten(1)


def _attend_slices(qkv_T3HK: Tensor, batch: RaggedBatch, probability: float) -> Tensor:
    parts = qkv_T3HK.split([*(group.tokens for group in batch.groups), batch.spare_slots])  # type: ignore[no-untyped-call]
    launches = [
        partial(varlen, part, group.relative_starts, group.width, probability)
        for part, group in zip(parts, batch.groups, strict=False)
    ]
    contexts = run_concurrently(launches, qkv_T3HK)
    return concat_and_zero_pad(contexts, batch.slots).flatten(1)
