"""Count of a training step's kernels: `python -m implementations.pytorch.bench.roofline CONFIG --gpu NAME`.

The whole step of a resolved configuration runs on fake tensors, without a GPU or memory: zeroing, forward, loss,
backward, this rank's part of the gradient synchronisation, clipping and update. Each operator of PyTorch that is not a
view counts as one kernel (a multi-tensor operator as its number of launches), each Triton kernel as its launch. A
kernel moves each distinct tensor that it reads or writes once, and its time is
max(FLOPs / reachable FLOP/s, bytes / reachable bytes/s), at assumed rates; the step's time is the sum over kernels.

Only matrix products and attention have FLOPs. Attention's are counted from the sequences' real lengths, its backward as
twice its forward, as in `Size.training_flops`. Operators that are not known are counted by the bytes of their tensors.
With `kernels: compiled` kernels are counted as compiled_region.py describes. With `attention: auto` the first backend
of the table for the GPU is counted, as if it were installed and had passed its check on the device.

Prints one JSON object, for `podium bench SYSTEM --roofline`. Exit codes: 0 done, 1 failed, 2 wrong usage.
"""

import argparse
import json
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from math import prod
from operator import itemgetter
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.bert.lengths import read_histogram, wikipedia_histogram
from benchmarks.bert.sizes import SEQUENCE_LENGTH, VOCABULARY_SIZE, Size
from implementations.pytorch import build_run
from implementations.pytorch import step as step_module
from implementations.pytorch.bench import fake_gpu
from implementations.pytorch.bench.compiled_region import FUSED_CASTS, counting_compile
from implementations.pytorch.bench.variants import SEED, Lengths, mixed_lengths, resize
from implementations.pytorch.data.batch import RaggedBatch
from implementations.pytorch.data.synthetic import synthetic_step
from implementations.pytorch.distributed.gradient_sync import GradientSync, fp32_bucket_mib
from implementations.pytorch.distributed.process_group import RehearsedProcesses, rehearsal_process_group
from implementations.pytorch.kernels.choose import resolve_kernels
from implementations.pytorch.kernels.interface import Kernels
from implementations.pytorch.model import bert
from implementations.pytorch.model.attention import dispatch
from implementations.pytorch.model.loss import loss_sums
from implementations.pytorch.phase_clock import PhaseClock
from podium.config.load import load_resolved
from podium.config.schema import Clipping, RunConfig
from podium.core.errors import PodiumError, UsageError
from podium.core.processes import end_with_parent
from podium.planning.accelerators import Accelerator, ReachableRates, require_gpu, require_rates
from podium.planning.batch_plan import run_shapes

# Parts of a step.
PRODUCTS, ATTENTION, ELEMENTS = "matrix products", "attention", "element-wise, reductions"
HEAD, OPTIMIZER, COPIES = "embedding, head, loss", "optimizer, clipping, averaging", "copies, casts"
PARTS = (PRODUCTS, ATTENTION, ELEMENTS, HEAD, OPTIMIZER, COPIES)


@dataclass(frozen=True)
class Kernel:
    """One kernel, or the launches of one multi-tensor operator."""

    part: str
    name: str
    launches: int
    moved: int  # bytes
    flops: float = 0.0
    unit: str = ""  # what computes the FLOPs: a key of ReachableRates.flops

    def seconds(self, rates: ReachableRates) -> float:
        computing = self.flops / rates.flops[self.unit] if self.flops else 0.0
        return max(computing, self.moved / rates.bytes_per_second)


class KernelCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the kernels of everything that runs inside it, by part of the step."""

    def __init__(self, hidden: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kernels: list[Kernel] = []
        self.enabled = False
        # While a step is built, tensors may be read, as AdamW does to check its learning rate: they are 1. A step that
        # reads a tensor on the host raises the error of fake tensors, as it has to wait for the GPU.
        self.is_building = True
        self._hidden = hidden
        self._region = OPTIMIZER  # everything outside forward and backward
        # Sequence number of autograd from which on nodes belong to a region of the forward pass.
        self._regions: list[tuple[int, str]] = []
        self._pairs_per_token = 0.0  # of the current batch

    @contextmanager
    def region(self, name: str) -> Iterator[None]:
        """Count what runs in the block, and later its backward pass, as this region's."""
        before = self._region
        self._enter(name)
        try:
            yield
        finally:
            self._enter(before)

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """Count nothing in the block."""
        before, self.enabled = self.enabled, False
        try:
            yield
        finally:
            self.enabled = before

    def _enter(self, name: str) -> None:
        self._region = name
        self._regions.append((torch._C._autograd._get_sequence_nr(), name))

    def start_batch(self, batch: RaggedBatch) -> None:
        self._pairs_per_token = sum(length**2 for length in batch.lengths) / sum(batch.lengths)
        self._tokens = sum(batch.lengths)

    @contextmanager
    def of_node(self, node: Any) -> Iterator[None]:
        """Count what runs in the block as the backward pass of a node, in the region of its forward."""
        number, before = node._sequence_nr(), self._region
        if not hasattr(node, "variable"):  # nodes that add gradients to parameters' `grad` belong to no region
            region = self._regions[bisect_right(self._regions, number, key=itemgetter(0)) - 1][1]
            self._region = HEAD if region == OPTIMIZER else region  # after the forward pass: weights of the losses
        try:
            yield
        finally:
            self._region = before

    def record(self, name: str, moved: int, flops: float = 0.0, unit: str = "half", launches: int = 1) -> None:
        """Record a kernel of the current region."""
        if self.enabled:
            part = self._part(name, flops, unit)
            self.kernels.append(Kernel(part, name, launches, moved, flops, unit if flops else ""))

    def record_launch(self, name: str, moved: int, flops: float) -> None:
        """Record a launch of a Triton kernel, or of cuDNN's attention."""
        unit = next((unit for unit in ATTENTION_UNITS if unit in name), None)
        if unit is not None:
            flops = self._attention_flops(self._tokens, "backward" in name)
        self.record(name, moved, flops, unit or "half")

    def _attention_flops(self, tokens: int, is_backward: bool) -> float:
        """Return the FLOPs of attention of this many of the batch's tokens."""
        return 4.0 * self._hidden * tokens * self._pairs_per_token * (2 if is_backward else 1)

    def _part(self, name: str, flops: float, unit: str) -> str:
        if self._region in (HEAD, OPTIMIZER):
            return self._region
        if unit in ATTENTION_UNITS and flops:
            return ATTENTION
        if name in COPY_OPERATORS:
            return COPIES
        if self._region == ATTENTION:
            return ATTENTION
        return PRODUCTS if flops else ELEMENTS

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if name == "_local_scalar_dense" and self.is_building:
            return 1
        outputs = self.run(func, args, kwargs)
        if not self.enabled or func.is_view or func.namespace == "prim" or name in NO_KERNEL:
            return outputs
        bound = bind(func, args, kwargs)
        moved = moved_bytes(name, func, bound, outputs)
        if moved:
            flops, unit = self._flops(name, bound)
            self.record(name, moved, flops, unit, launches_of(name, args))
        return outputs

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return an operator's result."""
        # Operators that only write into their arguments are not run: fake tensors have no values, and some of these
        # operators have no fake version.
        if not func._schema.returns:
            return None
        return kwargs["out"] if "out" in kwargs else func(*args, **kwargs)

    def _flops(self, name: str, bound: dict[str, Any]) -> tuple[float, str]:
        unit = next((unit for part, unit in ATTENTION_OPERATORS.items() if part in name), None)
        if unit is not None:
            query = bound["query"]
            tokens = min(self._tokens, query.numel() // self._hidden)
            return self._attention_flops(tokens, "backward" in name), unit
        if name in PRODUCT_OPERATORS:
            first, second = (bound[key] for key in PRODUCT_OPERATORS[name])
            return 2.0 * prod(first.shape) * second.shape[-1], unit_of(first.dtype)
        return 0.0, ""


ATTENTION_UNITS = ("flash", "cudnn")
# Part of an operator's name → what computes its FLOPs.
ATTENTION_OPERATORS = {"flash_attention": "flash", "cudnn_attention": "cudnn", "efficient_attention": "flash"}
# Operator → names of the arguments that are multiplied: [.., M, K] and [.., K, N].
PRODUCT_OPERATORS = {
    "mm": ("self", "mat2"),
    "_scaled_mm": ("self", "mat2"),
    "addmm": ("mat1", "mat2"),
    "addmm_": ("mat1", "mat2"),
    "bmm": ("self", "mat2"),
    "baddbmm": ("batch1", "batch2"),
}
COPY_OPERATORS = {
    FUSED_CASTS,
    *("_to_copy", "copy_", "clone", "cat", "stack", "constant_pad_nd", "zeros", "zeros_like", "new_zeros", "zero_"),
    *("fill_", "full", "_foreach_copy_"),
}
# Operators without a kernel: allocations, and changes of metadata.
NO_KERNEL = {
    *("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach", "detach_", "_unsafe_view"),
    *("_reshape_alias", "lift_fresh", "set_", "resize_", "record_stream", "is_pinned", "_pin_memory"),
    *("_local_scalar_dense", "_has_compatible_shallow_copy_type", "sym_size", "sym_numel", "sym_stride"),
}
# Operators that write their first argument without reading it.
WRITE_ONLY = {
    "copy_",
    "fill_",
    "zero_",
    "normal_",
    "uniform_",
    "random_",
    "bernoulli_",
    "_foreach_zero_",
    "_foreach_copy_",
}
# Operators that read only the selected elements of the argument named, as many as they write.
GATHERS = {"embedding": "weight", "index_select": "self", "index": "self", "gather": "self", "nll_loss_forward": "self"}
# Operators that add rows to the argument named in place, and touch as many elements of it as `source` has.
SCATTERS = {"index_add_": "source", "index_add": "source", "scatter_add_": "src", "index_put_": "values"}


def unit_of(dtype: torch.dtype) -> str:
    return "fp8" if dtype.itemsize == 1 else "half" if dtype.itemsize == 2 else "fp32"


def bind(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return an operator's arguments by name; those of a default value are left out."""
    names = [argument.name for argument in func._schema.arguments]
    return dict(zip(names, args, strict=False)) | kwargs


def tensors_of(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def tensor_bytes(tensors: list[Tensor]) -> int:
    """Return the bytes of the distinct tensors, without the repetitions of expanded ones."""
    distinct = {(t.untyped_storage()._cdata, t.storage_offset(), t.shape, t.stride()): t for t in tensors}
    return sum(
        t.itemsize * prod(size for size, stride in zip(t.shape, t.stride(), strict=True) if stride or size == 0)
        for t in distinct.values()
    )


def moved_bytes(name: str, func: Any, bound: dict[str, Any], outputs: Any) -> int:
    """Return the bytes that an operator reads and writes: distinct arguments, and results and changed arguments."""
    changed = {
        argument.name for argument in func._schema.arguments if argument.alias_info and argument.alias_info.is_write
    }
    written = [tensor for key in changed for tensor in tensors_of(bound.get(key))]
    identities = {id(tensor) for tensor in written}
    written += [tensor for tensor in tensors_of(outputs) if id(tensor) not in identities]
    if name in SCATTERS:
        source = tensors_of(bound[SCATTERS[name]])
        return 3 * tensor_bytes(source) + tensor_bytes(tensors_of([bound.get("index"), bound.get("indices")]))
    unread = {key for key in changed if name in WRITE_ONLY or key == "out"}
    extra = 0
    if name in GATHERS:
        unread.add(GATHERS[name])
        extra = tensor_bytes(tensors_of(outputs)[:1]) if name != "nll_loss_forward" else 0
    if name == "nll_loss_backward":
        unread.add("self")  # only its shape is used
    read = [tensor for key, value in bound.items() if key not in unread for tensor in tensors_of(value)]
    return tensor_bytes(read) + tensor_bytes(written) + extra


# Limits of one launch of PyTorch's multi-tensor kernels, ATen/native/cuda/MultiTensorApply.cuh: elements in a chunk,
# chunks, and tensors by the number of lists.
CHUNK, MOST_CHUNKS, MOST_TENSORS = 65_536, 320, {1: 110, 2: 64, 3: 48, 4: 36, 5: 30}


def launches_of(name: str, args: tuple[Any, ...]) -> int:
    """Return the number of launches of an operator: 1, or that of a multi-tensor operator for its lists of tensors."""
    lists = [arg for arg in args if isinstance(arg, list | tuple) and len(arg) and isinstance(arg[0], Tensor)]
    if not (name.startswith(("_foreach", "_fused", "_amp_foreach")) and lists):
        return 1
    chunks: int = sum(-(-tensor.numel() // CHUNK) for tensor in lists[0])
    most = MOST_TENSORS[min(len(lists), max(MOST_TENSORS))]
    return max(-(-chunks // MOST_CHUNKS), -(-len(lists[0]) // most))


class _Bucket:
    """A bucket of gradients, as DDP passes it to a communication hook."""

    def __init__(self, gradients: Tensor, index: int, last: bool) -> None:
        self._gradients, self._index, self._last = gradients, index, last

    def buffer(self) -> Tensor:
        return self._gradients

    def index(self) -> int:
        return self._index

    def is_last(self) -> bool:
        return self._last


DEFAULT_BUCKET_MIB, FIRST_BUCKET_MIB = 25.0, 1.0  # PyTorch's


class Replica(nn.Module):
    """Stand-in for DistributedDataParallel, whose reducer does not take fake tensors.

    It has DDP's buckets, of which gradients are views, and calls the communication hook with each of them after the
    backward pass. Nothing is sent.
    """

    def __init__(self, module: nn.Module, counter: KernelCounter, sync: GradientSync, bucket_mib: float | None) -> None:
        super().__init__()
        self.module, self._counter, self._sync = module, counter, sync
        self._averages = True
        buckets: list[list[nn.Parameter]] = [[]]
        filled = 0
        for parameter in reversed([*module.parameters()]):
            limit = FIRST_BUCKET_MIB if len(buckets) == 1 else bucket_mib or DEFAULT_BUCKET_MIB
            if filled >= limit * 2**20:
                buckets.append([])
                filled = 0
            buckets[-1].append(parameter)
            filled += parameter.nbytes
        self._buckets = []
        for index, parameters in enumerate(buckets):
            sizes = [parameter.numel() for parameter in parameters]
            flat = torch.zeros(sum(sizes), device=parameters[0].device)
            for parameter, part in zip(parameters, torch.split(flat, sizes), strict=True):
                parameter.grad = part.view_as(parameter)
            self._buckets.append(_Bucket(flat, index, index == len(buckets) - 1))
        self.reducer = SimpleNamespace(_get_zeros_like_grad_buckets=lambda: self._buckets)

    def forward(self, batch: RaggedBatch) -> Any:
        self._counter.start_batch(batch)
        with self._counter.region(ELEMENTS):
            return self.module(batch)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        self._averages = False
        try:
            yield
        finally:
            self._averages = True

    def backward(self, loss: Tensor) -> None:
        """Run the backward pass, and then the local part of the gradient synchronisation."""
        with self._counter.region(ELEMENTS):
            fake_gpu.backward(loss, around=self._counter.of_node)
        if self._averages:
            self._sync.last_bucket_ready = perf_counter()
            for bucket in self._buckets:
                self._sync.hook(self._sync, bucket)  # type: ignore[arg-type]


def count_step(
    config: RunConfig, gpu: Accelerator, histogram: Any, vocabulary_size: int, size: Size | None = None
) -> tuple[list[Kernel], dict[str, Any]]:
    """Return the kernels of rank 0's first step on a GPU, and facts about that step as JSON.

    `histogram` has the number of samples of each length. Raises UsageError for settings that the GPU does not support.
    """
    size = size or config.model_size
    launch = config.launch.model_copy(update={"device": "cuda"})
    config = config.model_copy(update={"launch": launch, "initial_checkpoint": None, "seed": 0})
    longest = config.phases[0].max_sequence_length if config.phases else None
    lengths = np.minimum(mixed_lengths(histogram, config.global_batch_size), longest or SEQUENCE_LENGTH)
    order = build_run.build_order(config, Lengths(lengths), vocabulary_size, fake_gpu.GPU, SEED)
    counter = KernelCounter(size.hidden)
    assert gpu.compute_capability is not None
    with (
        rehearsal_process_group(0, config.launch.ranks),
        fake_gpu.fake_gpu(gpu.compute_capability, MULTIPROCESSORS) as fake_tensors,
    ):
        _require_triton(config)
        graphs = build_run.uses_graphs(config, fake_gpu.GPU)
        shapes = run_shapes(order, 1) if graphs else None
        step = synthetic_step(order, 0, 0, vocabulary_size, shapes.masked_slots if shapes else None)
        with fake_tensors, counter, counted_parts(counter):
            with torch.device(fake_gpu.GPU):
                processes = RehearsedProcesses(0, config.launch.ranks, fake_gpu.GPU)
                stepper = build_run.build_stepper(config, processes, vocabulary_size, size)
            counter.is_building = False
            mark_heads(stepper.model.module, counter)
            batches = tuple(batch.map_tensors(_to_fake) for batch in step.micro_batches)
            with patch.object(torch.autograd, "backward", stepper.model.backward):
                # The first step allocates what later ones keep, such as moments.
                for counter.enabled in (False, True):
                    stepper.take(replace(step, micro_batches=batches), PhaseClock())
        options = stepper.model.module.model_options
    batch_lengths = [length for batch in step.micro_batches for length in batch.lengths]
    masked = sum(batch.masked for batch in step.micro_batches)
    facts = {
        "precision": stepper.precision,
        "attention": options.attention,
        "kernel_set": resolve_kernels(config.kernels, fake_gpu.GPU),
        "graphs": graphs,
        "ranks": config.launch.ranks,
        "sequences": sum(length > 0 for length in batch_lengths),
        "tokens": sum(batch_lengths),
        "model_flops": size.training_flops(batch_lengths, masked, vocabulary_size, config.last_layer),
        "layers": size.layers,
        "hidden": size.hidden,
        "vocabulary": vocabulary_size,
        "torch": torch.__version__,
    }
    return counter.kernels, facts


MULTIPROCESSORS = 132  # of an H100; only the number of partial sums depends on it


def _to_fake(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=fake_gpu.GPU)


def _require_triton(config: RunConfig) -> None:
    if resolve_kernels(config.kernels, fake_gpu.GPU) == "triton" and find_spec("triton") is None:
        raise UsageError(
            "kernels: the step on this GPU uses triton, which is not installed here; install it with "
            "`pip install triton`, or count other kernels with --set kernels=compiled"
        )


def _nested_stand_in(qkv_T3HK: Tensor, batch: RaggedBatch, kernels: Kernels, probability: float) -> Tensor:
    """Attention on nested tensors, which do not take fake ones: its copies, and one variable-length kernel."""
    q, k, v = (part_THK.contiguous() for part_THK in qkv_T3HK.unbind(1))
    starts, longest = batch.sequence_starts_i32, batch.lengths[0]
    context: Tensor = torch.ops.aten._flash_attention_forward(
        q, k, v, starts, starts, longest, longest, probability, False, False
    )[0]
    return context.flatten(1)


@contextmanager
def counted_parts(counter: KernelCounter) -> Iterator[None]:
    """Report to the counter what it cannot see in operators: Triton's launches, and what attention and loss compute."""

    def marked(function: Callable[..., Any], region: str) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            with counter.region(region):
                return function(*args, **kwargs)

        return run

    def wrap_replica(
        model: nn.Module, device: torch.device, clipping: Clipping | None, wire: str, bucket_mib: float | None
    ) -> tuple[Replica, GradientSync]:
        sync = GradientSync(clipping, wire)
        cap = None if bucket_mib is None else fp32_bucket_mib(bucket_mib, wire)
        return Replica(model, counter, sync, cap), sync

    def record_compiled(name: str, moved: int, flops: float, dtype: torch.dtype | None) -> None:
        counter.record(name, moved, flops, unit_of(dtype) if dtype else "")

    backends = {
        name: marked(_nested_stand_in if name == "nested" else backend, ATTENTION)
        for name, backend in dispatch.BACKENDS.items()
    }
    with ExitStack() as stack:
        stack.enter_context(patch.dict(dispatch.BACKENDS, backends))
        stack.enter_context(patch.object(step_module, "loss_sums", marked(loss_sums, HEAD)))
        stack.enter_context(patch.object(build_run, "wrap_ddp", wrap_replica))
        stack.enter_context(patch.object(torch, "compile", counting_compile(record_compiled, counter.disabled)))
        stack.enter_context(patch.object(bert, "initialize", lambda model, size: None))  # fake weights have no values
        if find_spec("triton") is not None:
            from implementations.pytorch.kernels.gpu.common import record_launches

            stack.enter_context(record_launches(counter.record_launch))
        yield


HEAD_MODULES = ("embeddings", "masked_lm", "pooler", "next_sentence")


def mark_heads(model: nn.Module, counter: KernelCounter) -> None:
    """Count what embeddings and heads compute as theirs."""
    for name in HEAD_MODULES:
        module = model.get_submodule(name)

        def forward(*args: Any, function: Any = module.forward, **kwargs: Any) -> Any:
            with counter.region(HEAD):
                return function(*args, **kwargs)

        module.forward = forward


def summarize(kernels: list[Kernel], rates: ReachableRates) -> dict[str, Any]:
    """Return launches, bytes, FLOPs and milliseconds by part, and of each kernel by part and name."""

    def totals(chosen: list[Kernel]) -> dict[str, Any]:
        return {
            "launches": sum(kernel.launches for kernel in chosen),
            "bytes": sum(kernel.moved for kernel in chosen),
            "flops": sum(kernel.flops for kernel in chosen),
            "milliseconds": 1000 * sum(kernel.seconds(rates) for kernel in chosen),
        }

    groups: dict[tuple[str, str], list[Kernel]] = {}
    for kernel in kernels:
        groups.setdefault((kernel.part, kernel.name), []).append(kernel)
    rows = [{"part": part, "kernel": name} | totals(chosen) for (part, name), chosen in groups.items()]
    return {
        "total": totals(kernels),
        "parts": [{"part": part} | totals([k for k in kernels if k.part == part]) for part in PARTS],
        "kernels": sorted(rows, key=lambda row: (PARTS.index(row["part"]), -row["milliseconds"])),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="implementations.pytorch.bench.roofline", description=__doc__)
    parser.add_argument("config", type=Path, help="a resolved configuration, as `podium bench` writes it")
    parser.add_argument("--gpu", required=True, help="GPU whose times are counted, such as h200")
    parser.add_argument("--vocabulary", type=int, default=VOCABULARY_SIZE, help="vocabulary size of the model")
    parser.add_argument("--layers", type=int, help="number of layers; default: that of the model size")
    parser.add_argument("--hidden", type=int, help="hidden size, a multiple of 64; default: that of the model size")
    parser.add_argument("--lengths", type=Path, help="JSON list with the number of samples of each length")
    arguments = parser.parse_args()
    end_with_parent()
    try:
        config, (gpu, rates) = load_resolved(arguments.config), require_gpu(arguments.gpu)
        require_rates(gpu, rates, config.precision)
        size = config.model_size
        if arguments.layers or arguments.hidden:
            size = resize(size, arguments.layers or size.layers, arguments.hidden or size.hidden)
        histogram = wikipedia_histogram() if arguments.lengths is None else read_histogram(arguments.lengths)
        kernels, facts = count_step(config, gpu, histogram, arguments.vocabulary, size)
    except PodiumError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(json.dumps({"gpu": gpu.name, "rates": asdict(rates)} | facts | summarize(kernels, rates)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
