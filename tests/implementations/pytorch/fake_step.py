"""Whole training steps of GPU configurations on fake tensors: shapes and dtypes without data, device or process group.

Fake `cuda` tensors have no backward pass in a torch build without CUDA, so tensors are fake CPU ones, and whatever asks
the device for its abilities gets a Hopper GPU's answers.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.futures import Future
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.bert.sizes import Size
from implementations.pytorch import build_run
from implementations.pytorch.data.batch import RaggedBatch
from implementations.pytorch.distributed.gradient_sync import GradientSync
from implementations.pytorch.distributed.process_group import Processes
from implementations.pytorch.model import bert as bert_module
from implementations.pytorch.model.attention import grouped as grouped_module
from implementations.pytorch.model.attention import padded as padded_module
from implementations.pytorch.model.attention.varlen import HALF_DTYPES
from implementations.pytorch.model.bert import BertForPreTraining, Scores
from implementations.pytorch.optim import lamb as lamb_module
from implementations.pytorch.step import Stepper
from podium.config.schema import Clipping, RunConfig

HOPPER = (9, 0)
CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
BUCKETS, RANKS = 2, 8


class SynchronisationRecorder(TorchDispatchMode):
    """Records every operator whose result or whose output shape the host has to wait for."""

    OPERATORS: ClassVar = {
        "_local_scalar_dense", "item", "nonzero", "is_nonzero", "equal", "unique", "masked_select", "allclose",
    }  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self.operators: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().removeprefix("aten::").partition(".")[0]
        indexed_by_mask = name in ("index", "index_put_") and any(
            i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1]
        )
        if name in self.OPERATORS or indexed_by_mask:
            self.operators.append(name)
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True)
class FakeBucket:
    """A bucket of gradients, as DDP passes it to its communication hook."""

    number: int
    flat: Tensor

    def index(self) -> int:
        return self.number

    def is_last(self) -> bool:
        return self.number == BUCKETS - 1

    def buffer(self) -> Tensor:
        return self.flat


class FakeDDP(nn.Module):
    """Gradients as views of buckets that go through the communication hook at the end of backward, as in DDP."""

    def __init__(self, module: BertForPreTraining, sync: GradientSync) -> None:
        super().__init__()
        self.module, self.sync, self.sends = module, sync, True
        self.reducer = self  # where `begin` counts the buckets
        parameters = list(module.parameters())
        self.buckets = []
        for number in range(BUCKETS):
            own = parameters[number::BUCKETS]
            flat = torch.zeros(sum(p.numel() for p in own))
            for parameter, gradient in zip(own, flat.split([p.numel() for p in own]), strict=True):  # type: ignore[no-untyped-call]
                parameter.grad = gradient.view_as(parameter)
            self.buckets.append(FakeBucket(number, flat))

    def _get_zeros_like_grad_buckets(self) -> list[Tensor]:
        return [bucket.flat for bucket in self.buckets]

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        self.sends = False
        yield
        self.sends = True

    def forward(self, batch: RaggedBatch) -> Scores:
        scores: Scores = self.module(batch)
        if self.sends:
            scores.masked_lm.register_hook(self._queue)
        return scores

    def _queue(self, gradient: Tensor) -> None:
        torch.autograd.Variable._execution_engine.queue_callback(self._send)  # type: ignore[attr-defined]

    def _send(self) -> None:
        for bucket in self.buckets:
            self.sync.hook(self.sync, bucket)  # type: ignore[arg-type]


def _done(buffer: Tensor) -> Future[Tensor]:
    future: Future[Tensor] = Future()
    future.set_result(buffer)
    return future


@dataclass
class FakeGpu:
    """Builds steppers whose tensors are fake; `sent` has the dtypes that gradients were sent in."""

    mode: FakeTensorMode
    sent: set[torch.dtype] = field(default_factory=set)
    reduced: int = 0  # buckets that were sent

    def build(self, config: RunConfig, size: Size, vocabulary: int) -> Stepper:
        """A stepper of a GPU's configuration. Raises UsageError for one that no GPU of this kind supports."""
        return build_run.build_stepper(config, Processes(0, config.launch.ranks, CPU), vocabulary, size)


def _wrap(model: Any, device: torch.device, clipping: Clipping | None, wire: str, *_: Any) -> tuple[Any, GradientSync]:
    sync = GradientSync(clipping, wire)
    return FakeDDP(model, sync), sync


def _for_cuda(resolve: Callable[..., str]) -> Callable[..., str]:
    """What a setting means on the GPU, wherever the tensors are."""
    return lambda setting, device, *rest: resolve(setting, CUDA, *rest)


@contextmanager
def fake_gpu() -> Iterator[FakeGpu]:
    """Within it all new tensors are fake, and the GPU is a Hopper one."""
    from implementations.pytorch.distributed import gradient_sync

    with FakeTensorMode() as mode:
        gpu = FakeGpu(mode)

        def all_reduce(tensor: Tensor, *_: Any, **__: Any) -> Any:
            gpu.sent.add(tensor.dtype)
            gpu.reduced += 1
            return type("Work", (), {"get_future": lambda self: _done([tensor])})()  # type: ignore[arg-type]

        resolvers = ("resolve_precision", "resolve_attention", "resolve_kernels")
        with (
            patch.multiple(build_run, **{name: _for_cuda(getattr(build_run, name)) for name in resolvers}),
            patch.object(build_run, "wrap_ddp", _wrap),
            patch.object(gradient_sync.dist, "get_world_size", lambda: RANKS),
            patch.object(gradient_sync.dist, "get_backend", lambda: "nccl"),
            patch.object(torch.cuda, "is_bf16_supported", lambda including_emulation=True: True),
            patch.object(nn.Module, "to", lambda module, *_: module),  # it would replace fake parameters
            patch.object(bert_module, "initialize", lambda *_: None),  # it draws until values are in a range
            patch.object(torch.cuda, "get_device_capability", lambda *_: HOPPER),
            patch("implementations.pytorch.model.attention.selection._check", lambda *_: None),
            patch.object(gradient_sync.dist, "all_reduce", all_reduce),
            patch.object(grouped_module, "is_flash_available", lambda _, dtype: dtype in HALF_DTYPES),
            patch.object(grouped_module, "run_concurrently", lambda calls, shared: [call() for call in calls]),
            patch.object(padded_module, "is_supported", lambda _: False),
            patch.object(lamb_module, "update_compiled", lamb_module.update_foreach),
            torch.compiler.set_stance("force_eager"),
        ):
            yield gpu
