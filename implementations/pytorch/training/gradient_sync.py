"""Gradients averaged over ranks by PyTorch DDP, with a communication hook that tells how long backward waits."""

import time

import torch
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

NEVER = 2**31 - 1
"""Steps between two entries of DDP's own log, which waits for the device: a CUDA graph could not be captured then."""


class SyncClock:
    """When the last bucket of gradients was ready: what backward takes beyond that is exposed communication."""

    def __init__(self) -> None:
        self.last_bucket_ready = 0.0

    def mark(self) -> None:
        self.last_bucket_ready = time.perf_counter()


def _timed_mean(clock: SyncClock, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    clock.mark()
    return allreduce_hook(None, bucket)  # type: ignore[arg-type]


def synchronised(model: nn.Module, device: torch.device) -> tuple[DistributedDataParallel, SyncClock]:
    """The model in DDP: gradients are averaged over ranks bucket by bucket while backward goes on."""
    clock = SyncClock()
    devices = [device.index] if device.type == "cuda" else None
    ddp = DistributedDataParallel(model, device_ids=devices, gradient_as_bucket_view=True)
    ddp._set_ddp_runtime_logging_sample_rate(NEVER)  # type: ignore[no-untyped-call]
    ddp.register_comm_hook(clock, _timed_mean)
    return ddp, clock
