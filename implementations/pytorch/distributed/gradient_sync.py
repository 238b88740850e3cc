"""Gradient averaging with PyTorch DDP and communication hooks that clip gradients and reduce their precision.

DDP calls the hook with each bucket of gradients as backward fills it, in the same order on all ranks. Ways of clipping
(`clipping.when`):

- `after`: the optimizer step clips the averaged gradient once all buckets have arrived.
- `before`: each rank clips its local gradient by that gradient's norm. The norm needs all buckets, so all of them are
  sent at the end of backward and no communication overlaps with computation.
- `bucket`: each rank clips each of its buckets to a norm of max_norm / √(number of buckets) and sends it at once. The
  norm of the averaged gradient is then at most max_norm. Source: Samsung's bucket-wise gradient clipping before
  all-reduce, arXiv 2402.02447.

Gradients are sent as fp32, fp16 or bf16. They are divided by the number of ranks before they are rounded, so that the
sum over ranks cannot overflow unless their mean does. The division needs no pass over memory: it is part of the
conversion, and in fp32 of NCCL's average, which multiplies by 1 / ranks before it adds (ncclAvg of floating-point types
is ncclDevPreMulSum, src/enqueue.cc). fp16 and bf16 use a sum, because the average would round 1 / ranks to their
precision and cannot use NVLink SHARP (ncclNvlsSupported, src/include/device.h). Loss scaling, always on with fp16,
compensates for the precision that small values lose. With gradient accumulation DDP sends the sum of all micro-batches
once, in the backward pass of the last one. Nothing here synchronises the host with the device, so a step can be
captured in a CUDA graph.
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

# Steps between entries of DDP's runtime log: practically never. An entry synchronises with the device, which is not
# allowed while a CUDA graph is captured.
DDP_LOG_INTERVAL = 2**31 - 1

WIRE_TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


class GradientSync:
    """State of the communication hook of one DDP model: clipping, wire precision and timing.

    Call `begin` before every backward pass that sends gradients. The time from `last_bucket_ready` to the end of that
    backward pass is exposed communication.
    """

    def __init__(self, clipping: Clipping | None, wire: str) -> None:
        self.clipping, self.wire = clipping, wire
        self.last_bucket_ready = 0.0  # host time of time.perf_counter, seconds
        self.when_ready: Callable[[], None] | None = None  # called with the last bucket
        self.buckets = 0  # number of DDP's buckets; only set with `bucket` clipping, from the first `begin` on
        self.hook = HOOKS[self.clipping.when if self.clipping else "after"]
        self._ranks = dist.get_world_size()
        self._backward_passes = 0
        self._scale: Tensor | None = None
        self._norms: list[Tensor] = []
        self._deferred: list[Tensor] = []

    def begin(self, model: DistributedDataParallel, scale: Tensor | None) -> None:
        """Prepare for a backward pass whose gradients are sent; call between its forward and its backward.

        `scale` is the loss scale (0-d; None means 1) that the gradients are multiplied by.
        """
        self._scale = scale
        self._norms.clear()
        self._deferred.clear()
        # DDP rebuilds its buckets once, in the first forward pass after it has recorded the order in which gradients
        # become ready. So the buckets are counted before each of the first two backward passes.
        if self.clipping and self.clipping.when == "bucket" and self._backward_passes < 2:
            self.buckets = len(model.reducer._get_zeros_like_grad_buckets())
            self._backward_passes += 1

    def local_norm(self) -> Tensor:
        """Return the unscaled norm (0-d) of this rank's gradient before clipping, for `before` and `bucket`."""
        norm = total_norm(self._norms)
        return norm if self._scale is None else norm / self._scale

    def average(self, bucket: GradBucket) -> Future[Tensor]:
        """Hook for no clipping and for `after`: average the bucket over ranks, in place."""
        return self._send(bucket.buffer(), self._ranks)

    def clip_whole_gradient(self, bucket: GradBucket) -> Future[Tensor]:
        """Hook for `before`: defer all buckets until the last one, then clip and send them in place."""
        buffer = bucket.buffer()
        self._deferred.append(buffer)
        self._norms.append(torch.linalg.vector_norm(buffer))
        if not bucket.is_last():
            # DDP wants a future for every bucket. It may complete early, since the result is written into the same
            # memory, and the last bucket's hook returns only after all others have been waited for.
            deferred: Future[Tensor] = Future(devices=[buffer.device] if buffer.is_cuda else [])
            deferred.set_result(buffer)
            return deferred
        factor = clip_factor(total_norm(self._norms), self._scaled_max_norm()) / self._ranks
        sent = [self._send(deferred_buffer.mul_(factor)) for deferred_buffer in self._deferred]
        for future in sent[:-1]:
            future.wait()  # on a GPU the stream waits, not the host
        return sent[-1]

    def clip_bucket(self, bucket: GradBucket) -> Future[Tensor]:
        """Hook for `bucket`: clip the bucket to its share of max_norm and send it at once, in place."""
        assert bucket.index() < self.buckets, "begin comes before backward"
        assert bucket.is_last() == (bucket.index() == self.buckets - 1)
        buffer = bucket.buffer()
        self._norms.append(torch.linalg.vector_norm(buffer))
        factor = clip_factor(self._norms[-1], self._scaled_max_norm() / math.sqrt(self.buckets)) / self._ranks
        return self._send(buffer.mul_(factor))

    def _scaled_max_norm(self) -> float | Tensor:
        """Return max_norm multiplied by the loss scale, as the gradients are in backward."""
        assert self.clipping is not None
        return self.clipping.max_norm if self._scale is None else self.clipping.max_norm * self._scale

    def _send(self, buffer: Tensor, divisor: int = 1) -> Future[Tensor]:
        """Start to sum the buffer / divisor over ranks in the wire type; the future's value is the buffer with the sum.

        `divisor` is 1 or the number of ranks.
        """
        sent, operation = buffer, dist.ReduceOp.SUM
        # Divide first: the sum of fp16 gradients over many ranks would overflow where their mean does not.
        if (wire := WIRE_TYPES[self.wire]) != buffer.dtype:
            # One pass: divided in fp32 and rounded once as it is stored.
            sent = torch.div(buffer, divisor, out=torch.empty_like(buffer, dtype=wire))
        elif divisor > 1 and dist.get_backend() == "nccl":
            operation = dist.ReduceOp.AVG
        elif divisor > 1:
            buffer.div_(divisor)
        work = dist.all_reduce(sent, op=operation, async_op=True)
        assert work is not None

        def copy_back(future: Future[list[Tensor]]) -> Tensor:
            future.value()  # raises the error of a failed collective; the sum is in `sent`
            return buffer if sent is buffer else buffer.copy_(sent)

        summed: Future[Tensor] = work.get_future().then(copy_back)
        return summed


HOOKS: dict[str, Callable[[GradientSync, GradBucket], Future[Tensor]]] = {
    "after": GradientSync.average,
    "before": GradientSync.clip_whole_gradient,
    "bucket": GradientSync.clip_bucket,
}


def _hook(sync: GradientSync, bucket: GradBucket) -> Future[Tensor]:
    sync.last_bucket_ready = time.perf_counter()
    if sync.when_ready is not None and bucket.is_last():
        sync.when_ready()
    return sync.hook(sync, bucket)


def fp32_bucket_mib(mib: float, wire: str) -> float:
    """Return the size in fp32, in MiB, of gradients that take `mib` MiB in the wire type.

    DDP measures its buckets in the gradients' own type, fp32.
    """
    return mib * torch.float32.itemsize / WIRE_TYPES[wire].itemsize


def wrap_ddp(
    model: nn.Module,
    device: torch.device,
    clipping: Clipping | None = None,
    wire: Literal["fp32", "fp16", "bf16"] = "fp32",
    bucket_mib: float | None = None,
) -> tuple[DistributedDataParallel, GradientSync]:
    """Wrap the model in DDP, which averages gradients over ranks bucket by bucket during backward.

    `bucket_mib` is the size of a bucket in the wire type, in MiB; None selects PyTorch's default. Every rank must call
    it, since DDP broadcasts rank 0's weights.
    """
    sync = GradientSync(clipping, wire)
    devices = [device.index] if device.type == "cuda" else None
    cap = None if bucket_mib is None else fp32_bucket_mib(bucket_mib, wire)
    # The only buffers are fp8 scales, which belong to a rank: DDP would broadcast them in every forward pass.
    buffers = [name for name, _ in model.named_buffers()]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, buffers)  # type: ignore[no-untyped-call]
    ddp = DistributedDataParallel(
        model,
        device_ids=devices,
        gradient_as_bucket_view=True,
        bucket_cap_mb=cap,
    )
    ddp._set_ddp_runtime_logging_sample_rate(DDP_LOG_INTERVAL)  # type: ignore[no-untyped-call]
    ddp.register_comm_hook(sync, _hook)
    return ddp, sync
