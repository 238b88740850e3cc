"""A GPU without a GPU: fake `cuda` tensors, which have shapes and types but no memory, and a backward pass over them.

PyTorch's fake tensors run operators for their results' shapes only. Code that asks for the device sees the GPU that is
named: choices by device, compute capability and precision are those of a run on it. Nothing is computed and no kernel
is launched.
"""

import ctypes
import heapq
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from implementations.pytorch.model.attention import selection

CPU_INDEX, CUDA_INDEX = 0, 1  # c10::DeviceType
GPU = torch.device("cuda", 0)


def _fill_device_guard() -> None:
    """Let a build of PyTorch without CUDA create fake `cuda` tensors, for the rest of this process.

    PyTorch looks up a device's guard (current device and stream) even for tensors without memory. Builds with CUDA
    install one that does nothing where there is no GPU; builds without leave the entry empty, which is an error. The
    CPU's guard does nothing either, and is entered for CUDA.
    """
    if torch.version.cuda is None:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
        guards = (ctypes.c_void_p * 2).in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")
        guards[CUDA_INDEX] = guards[CUDA_INDEX] or guards[CPU_INDEX]


class _Stream:
    """A CUDA stream on which nothing runs."""

    def wait_stream(self, stream: "_Stream") -> None: ...
    def wait_event(self, event: object) -> None: ...
    def synchronize(self) -> None: ...


class _Sent:
    """A finished collective whose result is what this rank sent."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def wait(self) -> None: ...

    def get_future(self) -> "torch.futures.Future[list[Tensor]]":
        future: torch.futures.Future[list[Tensor]] = torch.futures.Future()
        future.set_result([self._tensor])
        return future


def _set_materialize_grads(ctx: Any, value: bool) -> None:
    """Replace the method of the same name, whose value PyTorch does not give back; for `_call_node`."""
    ctx.materialize_grads = value
    ctx.passes_none = not value


@contextmanager
def fake_gpu(capability: tuple[int, int], multiprocessors: int) -> Iterator[FakeTensorMode]:
    """Let the block ask for a GPU of a compute capability; tensors are fake where the yielded mode is entered.

    Collectives send nothing. The backward pass has to be `backward` below, since PyTorch's own engine needs a device.
    """
    _fill_device_guard()
    properties = SimpleNamespace(
        multi_processor_count=multiprocessors, major=capability[0], minor=capability[1], name="fake"
    )
    replaced: list[tuple[Any, str, Any]] = [
        (torch.autograd.function.FunctionCtx, "set_materialize_grads", _set_materialize_grads),
        (selection, "_check", lambda backend, device, dtype: None),  # attention backends cannot be tried here
        (dist, "get_backend", lambda group=None: "nccl"),
        (torch.cuda, "get_device_capability", lambda device=None: capability),
        (torch.cuda, "get_device_properties", lambda device=None: properties),
        (torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation or capability >= (8, 0)),
        (torch.cuda, "current_device", lambda: GPU.index),
        (torch.cuda, "current_stream", lambda device=None: _Stream()),
        (torch.cuda, "Stream", lambda *args, **kwargs: _Stream()),
        (torch.cuda, "stream", lambda stream: nullcontext()),
        (torch.cuda.amp.common, "amp_definitely_not_available", lambda: False),
        (torch.Tensor, "record_stream", lambda tensor, stream: None),
        (torch.Tensor, "pin_memory", lambda tensor, device=None: tensor),
        # Module.to would replace parameters, which fake tensors do not allow: they are created on the fake GPU.
        (torch.nn.Module, "to", lambda module, *args, **kwargs: module),
        (dist, "all_reduce", lambda tensor, *args, **kwargs: _Sent(tensor)),
        (dist, "broadcast", lambda tensor, *args, **kwargs: _Sent(tensor)),
    ]
    with ExitStack() as stack:
        for owner, name, value in replaced:
            stack.enter_context(patch.object(owner, name, value))
        stack.enter_context(patch.dict(selection._failures, clear=True))
        yield FakeTensorMode(shape_env=ShapeEnv())


NodeContext = Callable[[Any], AbstractContextManager[object]]


@torch.no_grad()
def backward(root: Tensor, *, around: NodeContext = lambda node: nullcontext()) -> None:
    """Compute gradients of a scalar as torch.autograd.backward does, one node of the graph after another in Python.

    `around` returns a context that a node's function runs in. Gradients that meet are added, and are added to `grad`
    where it exists, as PyTorch does.
    """
    run_graph([(root.grad_fn, 0, torch.ones_like(root))], around)


def run_graph(roots: Sequence[tuple[Any, int, Tensor]], around: NodeContext = lambda node: nullcontext()) -> None:
    """Run the backward graph from its roots: each a node, the number of its output, and that output's gradient."""
    pending = _count_uses([node for node, _, _ in roots])
    gradients: dict[Any, list[Tensor | None]] = {}
    ready: list[tuple[int, int, Any]] = []

    def add(node: Any, number: int, gradient: Tensor | None) -> None:
        slots = gradients.setdefault(node, [None] * len(node._input_metadata))
        if gradient is not None:
            with around(node):
                meta, present = node._input_metadata[number], slots[number]
                # As PyTorch's engine does: gradients of broadcast inputs are summed, and have the input's type.
                if gradient.shape != meta.shape:
                    gradient = gradient.sum_to_size(meta.shape)
                if gradient.dtype != meta.dtype:
                    gradient = gradient.to(meta.dtype)
                slots[number] = gradient if present is None else present + gradient

    for node, number, gradient in roots:
        add(node, number, gradient)
    for node in {node for node, _, _ in roots}:
        if not pending[node]:
            heapq.heappush(ready, (-node._sequence_nr(), id(node), node))
    while ready:
        _, _, node = heapq.heappop(ready)  # the operation that ran last in the forward pass comes first
        with around(node):
            results = _call_node(node, gradients.pop(node))
        for (target, number), result in zip(_edges(node), results, strict=True):
            add(target, number, result)
            pending[target] -= 1
            if not pending[target]:
                heapq.heappush(ready, (-target._sequence_nr(), id(target), target))


def _edges(node: Any) -> list[tuple[Any, int]]:
    return [edge for edge in node.next_functions if edge[0] is not None]


def _count_uses(roots: Sequence[Any]) -> dict[Any, int]:
    """Return the number of edges to every node that can be reached from the roots."""
    uses, stack = dict.fromkeys(roots, 0), list(dict.fromkeys(roots))
    while stack:
        for target, _ in _edges(stack.pop()):
            if target not in uses:
                uses[target] = 0
                stack.append(target)
            uses[target] += 1
    return uses


def _call_node(node: Any, gradients: list[Tensor | None]) -> list[Tensor | None]:
    """Return the gradients of a node's inputs that need one, in the order of its edges."""
    if hasattr(node, "variable"):  # AccumulateGrad: a leaf
        (gradient,) = gradients
        if gradient is not None:
            if node.variable.grad is None:
                node.variable.grad = gradient
            else:
                node.variable.grad += gradient
        return []
    if all(gradient is None for gradient in gradients):
        return [None] * len(_edges(node))
    if not hasattr(node, "needs_input_grad"):  # an operator of PyTorch
        results = node(*gradients)
        results = results if isinstance(results, tuple) else (results,)
        return [gradient for gradient, edge in zip(results, node.next_functions, strict=True) if edge[0] is not None]
    if not getattr(node, "passes_none", False):
        gradients = [
            torch.zeros(meta.shape, dtype=meta.dtype, device=meta.device) if gradient is None else gradient
            for gradient, meta in zip(gradients, node._input_metadata, strict=True)
        ]
    results = node.apply(*gradients)  # an autograd.Function: one result for each argument, tensor or not
    results = results if isinstance(results, tuple) else (results,)
    return [gradient for gradient, needed in zip(results, node.needs_input_grad, strict=False) if needed]
