"""Gradients averaged over ranks by PyTorch DDP, with communication hooks that clip, compress and measure time.

DDP passes each bucket of gradients to the hook as backward fills it, in the same order on all ranks. Clipping:

- `after`: the averaged gradient, once all of it has arrived.
- `before`: a rank's own gradient by its local norm, which needs all of it: all buckets are sent at the end of
  backward, and no communication overlaps with it.
- `bucket`: a rank's own bucket by its own norm to max_norm / √(number of buckets), and sent at once. The total norm
  then is at most max_norm. Source: arXiv 2402.02447, bucket-wise gradient clipping before all-reduce.

Gradients are sent as fp32, fp16 or bf16, divided by the number of ranks before they are rounded: the sum over ranks
cannot overflow unless one of its terms does. Loss scaling, always on with fp16, regains the precision at its lower end.
With accumulation, DDP sends the sum of all micro-batches, with the last of them. Nothing here synchronizes with the
device, so a step can be part of a CUDA graph.
"""

import math
import time
from collections.abc import Callable
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from implementations.pytorch.optim.clipping import clip_factor, total_norm
from podium.config.schema import Clipping

NEVER = 2**31 - 1  # steps between entries of DDP's log, which waits for the device: no CUDA graph could be captured

WIRE_TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


class GradientSync:
    """How the gradients of one model are averaged, and when: what backward takes after its last bucket was ready is
    exposed communication. `begin` comes before every backward pass that sends."""

    def __init__(self, clipping: Clipping | None, wire: str) -> None:
        self.clipping, self.wire = clipping, wire
        self.last_bucket_ready = 0.0  # by time.perf_counter
        self.buckets = 0  # how many DDP has made: known with `bucket` clipping, from the first `begin` on
        self.hook = HOOKS[self.clipping.when if self.clipping else "after"]
        self._ranks = dist.get_world_size()
        self._begun = 0
        self._scale: Tensor | None = None
        self._norms: list[Tensor] = []
        self._held: list[Tensor] = []

    def begin(self, model: DistributedDataParallel, scale: Tensor | None) -> None:
        """Between the forward and the backward pass whose gradients are sent, multiplied by `scale` (0-d; None: 1).

        DDP makes its buckets anew once, in the first forward pass after it has seen in which order gradients come. So
        they are counted in the first two backward passes.
        """
        self._scale = scale
        self._norms.clear()
        self._held.clear()
        if self.clipping and self.clipping.when == "bucket" and self._begun < 2:
            self.buckets = len(model.reducer._get_zeros_like_grad_buckets())
            self._begun += 1

    def local_norm(self) -> Tensor:
        """The norm of this rank's own gradient before clipping (0-d), where that was clipped."""
        norm = total_norm(self._norms)
        return norm if self._scale is None else norm / self._scale

    def mean(self, bucket: GradBucket) -> Future[Tensor]:
        return self._send(bucket.buffer().div_(self._ranks))

    def clipped_whole(self, bucket: GradBucket) -> Future[Tensor]:
        """Keep the bucket until the last one has come; then clip and send them all. Results are in place."""
        buffer = bucket.buffer()
        self._held.append(buffer)
        self._norms.append(torch.linalg.vector_norm(buffer))
        if not bucket.is_last():
            kept: Future[Tensor] = Future(devices=[buffer.device] if buffer.is_cuda else [])
            kept.set_result(buffer)
            return kept
        factor = clip_factor(total_norm(self._norms), self._limit()) / self._ranks
        sent = [self._send(held.mul_(factor)) for held in self._held]
        for future in sent[:-1]:
            future.wait()  # on a GPU the stream waits, not the host
        return sent[-1]

    def clipped_bucket(self, bucket: GradBucket) -> Future[Tensor]:
        assert bucket.index() < self.buckets, "begin comes before backward"
        assert bucket.is_last() == (bucket.index() == self.buckets - 1)
        buffer = bucket.buffer()
        self._norms.append(torch.linalg.vector_norm(buffer))
        factor = clip_factor(self._norms[-1], self._limit() / math.sqrt(self.buckets)) / self._ranks
        return self._send(buffer.mul_(factor))

    def _limit(self) -> float | Tensor:
        """max_norm in the size that gradients have now."""
        assert self.clipping is not None
        return self.clipping.max_norm if self._scale is None else self.clipping.max_norm * self._scale

    def _send(self, buffer: Tensor) -> Future[Tensor]:
        """Sum the buffer over ranks, in place."""
        sent = buffer.to(WIRE_TYPES[self.wire])
        work = dist.all_reduce(sent, async_op=True)
        assert work is not None

        def arrived(future: Future[list[Tensor]]) -> Tensor:
            future.value()  # raises what went wrong; the sum is in `sent`
            return buffer if sent is buffer else buffer.copy_(sent)

        summed: Future[Tensor] = work.get_future().then(arrived)
        return summed


HOOKS: dict[str, Callable[[GradientSync, GradBucket], Future[Tensor]]] = {
    "after": GradientSync.mean,
    "before": GradientSync.clipped_whole,
    "bucket": GradientSync.clipped_bucket,
}


def _hook(sync: GradientSync, bucket: GradBucket) -> Future[Tensor]:
    sync.last_bucket_ready = time.perf_counter()
    return sync.hook(sync, bucket)


def in_fp32(mib: float, wire: str) -> float:
    """MiB that gradients sent as `mib` take in fp32, in which DDP fills its buckets with them."""
    return mib * torch.float32.itemsize / WIRE_TYPES[wire].itemsize


def synchronised(
    model: nn.Module,
    device: torch.device,
    clipping: Clipping | None = None,
    wire: Literal["fp32", "fp16", "bf16"] = "fp32",
    bucket_mib: float | None = None,
) -> tuple[DistributedDataParallel, GradientSync]:
    """The model in DDP: gradients are averaged over ranks bucket by bucket while backward goes on.

    `bucket_mib` counts gradients as they are sent; None leaves the buckets to PyTorch.
    """
    sync = GradientSync(clipping, wire)
    devices = [device.index] if device.type == "cuda" else None
    cap = None if bucket_mib is None else in_fp32(bucket_mib, wire)
    ddp = DistributedDataParallel(model, device_ids=devices, gradient_as_bucket_view=True, bucket_cap_mb=cap)
    ddp._set_ddp_runtime_logging_sample_rate(NEVER)  # type: ignore[no-untyped-call]
    ddp.register_comm_hook(sync, _hook)
    return ddp, sync
