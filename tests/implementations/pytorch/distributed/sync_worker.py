"""One rank of test_gradient_sync: all synchronisation modes, on gradients that the tests can recompute.

Arguments: file of the process group, rank, ranks, file to save to.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from implementations.pytorch.distributed.gradient_sync import GradientSync, wrap_ddp
from podium.config.schema import Clipping

CPU = torch.device("cpu")
WIDTHS = (24, 40, 8, 56, 16, 32)
SLOW = 0.15  # seconds by which the last part of backward is delayed


class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        time.sleep(SLOW)
        return gradient


class Chain(nn.Module):
    """Linear layers, registered in another order than they are used in, so that DDP rebuilds its buckets."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = [nn.Linear(a, b) for a, b in pairwise(WIDTHS)]
        self.layers = nn.ModuleList(layers[i] for i in (3, 0, 4, 1, 2))
        self.order = [1, 3, 4, 0, 2]

    def forward(self, x: Tensor, slow: bool = False) -> Tensor:
        for number, index in enumerate(self.order):
            x = torch.tanh(self.layers[index](x))
            if number == 0 and slow:
                x = Slow.apply(x)
        return x


def batches(rank: int, step: int, parts: int) -> list[Tensor]:
    random = torch.Generator().manual_seed(100 * step + rank)
    return list(torch.randn(8, WIDTHS[0], generator=random).mul(1 + rank).chunk(parts))


Times = dict[str, list[float]]


def record_buckets(sync: GradientSync, buckets: list[Tensor], times: Times) -> None:
    """Record the local gradient that the hook receives with each bucket, and the time."""
    hook = sync.hook

    def recording(sync: GradientSync, bucket: Any) -> Any:
        buckets.append(bucket.buffer().clone())
        times["ready"].append(time.perf_counter())
        return hook(sync, bucket)

    sync.hook = recording


@contextmanager
def record_all_reduce(times: Times) -> Iterator[None]:
    """Record when each all-reduce is started and when it has completed."""
    all_reduce = dist.all_reduce

    def recording(tensor: Tensor, **named: Any) -> Any:
        times["started"].append(time.perf_counter())
        work = all_reduce(tensor, **named)
        work.get_future().then(lambda _: times["completed"].append(time.perf_counter()))  # type: ignore[union-attr]
        return work

    setattr(dist, "all_reduce", recording)  # noqa: B010
    try:
        yield
    finally:
        setattr(dist, "all_reduce", all_reduce)  # noqa: B010


def steps(
    rank: int, scale: float | None = None, parts: int = 1, clipping: Clipping | None = None, **settings: Any
) -> list[dict[str, Any]]:
    """Run three passes with constant weights; return the local buckets and the averaged gradients of each."""
    ends = []
    buckets: list[Tensor] = []
    times: Times = {"ready": [], "started": [], "completed": []}
    with record_all_reduce(times):
        model, sync = wrap_ddp(Chain(), CPU, clipping, **settings)
        record_buckets(sync, buckets, times)
        for step in range(3):
            model.zero_grad(set_to_none=False)
            buckets.clear()
            for value in times.values():
                value.clear()
            for number, batch in enumerate(batches(rank, step, parts)):
                last = number == parts - 1
                with nullcontext() if last else model.no_sync():
                    loss = model(batch, slow=last and step == 2).square().sum() * (scale or 1.0)
                    if last:
                        sync.begin(model, None if scale is None else torch.tensor(scale))
                    loss.backward()
            finished = time.perf_counter()
            clip_after = clipping is not None and clipping.when == "after"
            gradients = {name: p.grad.clone() for name, p in model.module.named_parameters() if p.grad is not None}
            ends.append(
                {
                    "buckets": list(buckets),
                    "gradients": gradients,
                    "norm": None if sync.clipping is None or clip_after else float(sync.local_norm()),
                    "counted": sync.buckets,
                    "times": {**{key: list(value) for key, value in times.items()}, "finished": finished},
                    "marked": sync.last_bucket_ready,
                }
            )
            if clip_after and clipping:
                ends[-1]["norm"] = float(clip_grad_norm_(model.parameters(), clipping.max_norm))
    return ends


def send_value(value: float, wire: Any) -> float:
    """Return the averaged gradient, where this rank's gradient is `value`."""
    layer = nn.Linear(3, 1, bias=False)
    model, sync = wrap_ddp(layer, CPU, wire=wire)
    loss = model(torch.full((1, 3), value)).sum()
    sync.begin(model, None)
    loss.backward()
    assert layer.weight.grad is not None
    return float(layer.weight.grad.max())


def main() -> None:
    rendezvous, rank, ranks, out = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=int(rank), world_size=int(ranks))
    small, here = 0.002, int(rank)
    cases: dict[str, Any] = {"mean": steps(here, bucket_mib=small)}
    for when in ("after", "before", "bucket"):
        for name, max_norm in (("tight", 0.5), ("middle", 20.0), ("loose", 1e6)):
            clipping = Clipping(max_norm=max_norm, when=when)
            cases[f"{when} {name}"] = steps(here, clipping=clipping, bucket_mib=small)
        clipping = Clipping(max_norm=0.5, when=when)
        cases[f"{when} accumulated"] = steps(here, clipping=clipping, bucket_mib=small, parts=4)
        if when != "after":
            cases[f"{when} scaled"] = steps(here, clipping=clipping, bucket_mib=small, scale=1024.0)
    for wire in ("fp16", "bf16"):
        cases[wire] = steps(here, wire=wire, bucket_mib=small)
    cases["bucket bf16"] = steps(
        here, clipping=Clipping(max_norm=0.5, when="bucket"), wire="bf16", bucket_mib=small / 2
    )
    values = {"all 60,000": 6e4, "all 70,000": 7e4, "first 100,000": 1e5 if here == 0 else 0.0}
    wires = ("fp32", "fp16", "bf16")
    cases["sent"] = {name: {wire: send_value(value, wire) for wire in wires} for name, value in values.items()}
    dist.barrier()
    torch.save(cases, out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
