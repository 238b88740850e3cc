"""Variable-length attention with dropout by cuDNN, through NVIDIA's package nvidia-cudnn-frontend.

cuDNN receives a graph of one operation, compiles it for the device (a plan, about a second) and runs it. A tensor of
tokens is declared as [sequences, heads, longest, head size] with the strides of the packed tokens, and with a ragged
offset: the element at which each sequence begins. So queries, keys and values may be parts of one buffer, as may their
gradients, and nothing is copied.

PyTorch's `aten._cudnn_attention_forward` and `_backward` take cumulative lengths too, but are not used here. With the
signatures of torch 2.11 to 2.13 (aten/src/ATen/native/cudnn/MHA.cpp, `run_cudnn_SDP_*_nestedtensor`):

- the plan is not cached but built again in every call, and destroyed, which unloads a kernel that a captured CUDA
  graph still refers to;
- gradients are declared with the strides of queries, keys and values, but allocated by `empty_like`, which packs them:
  for parts of one buffer backward would write out of bounds.

Suffixes of shapes: S sequences, those without tokens included.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor

from implementations.pytorch.data.batch import RaggedBatch
from implementations.pytorch.kernels.interface import Kernels, apply
from implementations.pytorch.model.attention.varlen import QKV, longest_sequence
from podium.planning.batch_plan import round_up

# A plan is made for a number of sequences. Rounding it up, with sequences without tokens, keeps the number of plans
# small where batches have different numbers.
SEQUENCE_STEP = 4
SEED_LIMIT = 2**31
PACKAGE = "nvidia-cudnn-frontend"


class Slot(IntEnum):
    """Identifiers of a graph's tensors."""

    Q, K, V, CONTEXT, STATISTICS = 1, 2, 3, 4, 5
    DQ, DK, DV, DCONTEXT = 6, 7, 8, 9
    LENGTHS, QKV_STARTS, CONTEXT_STARTS, STATISTICS_STARTS = 10, 11, 12, 13
    SEED, OFFSET = 14, 15


@dataclass(frozen=True)
class Shape:
    """All that a plan depends on, apart from the direction and the device."""

    sequences: int
    longest: int  # upper bound on the tokens of a sequence
    heads: int
    size: int  # of a head
    token_stride: int  # of queries, keys, values and their gradients, in elements
    dtype: torch.dtype
    probability: float
    is_deterministic: bool

    @property
    def accumulator_bytes(self) -> int:
        """Size of the float32 gradients of the queries, in which backward sums over blocks of keys."""
        return 4 * self.sequences * self.heads * self.longest * self.size


class _Graph:
    """The tensors that both directions declare in a cuDNN graph."""

    def __init__(self, cudnn: Any, graph: Any, shape: Shape):
        self.cudnn, self.graph, self.shape = cudnn, graph, shape
        self.half = cudnn.data_type.BFLOAT16 if shape.dtype == torch.bfloat16 else cudnn.data_type.HALF
        s, h, w, k = shape.sequences, shape.heads, shape.longest, shape.size
        self.tokens_SHWK = [s, h, w, k]
        # The stride between sequences is not used where there is a ragged offset, but must be the largest.
        self.qkv_strides = [w * shape.token_stride, k, shape.token_stride, 1]
        self.context_strides = [w * h * k, k, h * k, 1]
        self.statistics_SHW1, self.statistics_strides = [s, h, w, 1], [w * h, 1, h, 1]
        integer = cudnn.data_type.INT32
        self.qkv_starts = self.vector(Slot.QKV_STARTS, s + 1, integer)
        self.context_starts = self.vector(Slot.CONTEXT_STARTS, s + 1, integer)
        self.statistics_starts = self.vector(Slot.STATISTICS_STARTS, s + 1, integer)
        lengths = self.vector(Slot.LENGTHS, s, integer)
        self.options: dict[str, Any] = {
            "attn_scale": shape.size**-0.5,
            "use_padding_mask": True,
            "seq_len_q": lengths,
            "seq_len_kv": lengths,
        }
        if shape.probability:
            seed = self.vector(Slot.SEED, 1, cudnn.data_type.INT64)
            self.options["dropout"] = (shape.probability, seed, self.vector(Slot.OFFSET, 1, cudnn.data_type.INT64))

    def vector(self, slot: Slot, length: int, dtype: Any) -> Any:
        return self.graph.tensor(
            dim=[length, 1, 1, 1], stride=[1, 1, 1, 1], data_type=dtype, uid=int(slot), name=slot.name
        )

    def qkv(self, slot: Slot) -> Any:
        return self.graph.tensor(
            dim=self.tokens_SHWK,
            stride=self.qkv_strides,
            ragged_offset=self.qkv_starts,
            data_type=self.half,
            uid=int(slot),
            name=slot.name,
        )

    def context(self, slot: Slot) -> Any:
        return self.graph.tensor(
            dim=self.tokens_SHWK,
            stride=self.context_strides,
            ragged_offset=self.context_starts,
            data_type=self.half,
            uid=int(slot),
            name=slot.name,
        )

    def build(self) -> Any:
        graph = self.graph
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([self.cudnn.heur_mode.A])
        graph.check_support()
        graph.build_plans()
        return graph


def build_forward(cudnn: Any, graph: Any, shape: Shape) -> Any:
    """Compile the forward direction into `graph`, an empty one of the module `cudnn`."""
    parts = _Graph(cudnn, graph, shape)
    q, k, v = (parts.qkv(slot) for slot in (Slot.Q, Slot.K, Slot.V))
    context, statistics = graph.sdpa(q=q, k=k, v=v, generate_stats=True, name="attention", **parts.options)
    context.set_output(True).set_uid(int(Slot.CONTEXT)).set_data_type(parts.half)
    context.set_dim(parts.tokens_SHWK).set_stride(parts.context_strides).set_ragged_offset(parts.context_starts)
    statistics.set_output(True).set_uid(int(Slot.STATISTICS)).set_data_type(cudnn.data_type.FLOAT)
    statistics.set_dim(parts.statistics_SHW1).set_stride(parts.statistics_strides)
    statistics.set_ragged_offset(parts.statistics_starts)
    return parts.build()


def build_backward(cudnn: Any, graph: Any, shape: Shape) -> Any:
    """Compile the backward direction into `graph`, an empty one of the module `cudnn`."""
    parts = _Graph(cudnn, graph, shape)
    q, k, v = (parts.qkv(slot) for slot in (Slot.Q, Slot.K, Slot.V))
    statistics = graph.tensor(
        dim=parts.statistics_SHW1,
        stride=parts.statistics_strides,
        ragged_offset=parts.statistics_starts,
        data_type=cudnn.data_type.FLOAT,
        uid=int(Slot.STATISTICS),
        name=Slot.STATISTICS.name,
    )
    gradients = graph.sdpa_backward(
        q=q,
        k=k,
        v=v,
        o=parts.context(Slot.CONTEXT),
        dO=parts.context(Slot.DCONTEXT),
        stats=statistics,
        use_deterministic_algorithm=shape.is_deterministic,
        name="attention_backward",
        **parts.options,
    )
    for slot, gradient in zip((Slot.DQ, Slot.DK, Slot.DV), gradients, strict=True):
        gradient.set_output(True).set_uid(int(slot)).set_data_type(parts.half)
        gradient.set_dim(parts.tokens_SHWK).set_stride(parts.qkv_strides).set_ragged_offset(parts.qkv_starts)
    return parts.build()


Build = Callable[[Any, Any, Shape], Any]


class _Plans:
    """The cuDNN handle and the plans of each device, for all threads: autograd's, and a new one for each evaluation.

    A handle has one current stream, and a plan is not safe for use by several threads, so launches take turns on the
    host. Plans are never released, since captured CUDA graphs refer to their kernels.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.handles: dict[torch.device, Any] = {}
        self.plans: dict[tuple[Build, Shape, torch.device], Any] = {}

    def run(self, build: Build, shape: Shape, tensors: dict[Slot, Tensor]) -> None:
        """Run a plan on the current stream; it is built first if there is none."""
        import cudnn  # optional: `resolve_attention` reports a missing package

        device = tensors[Slot.Q].device
        with self.lock, torch.cuda.device(device):
            if device not in self.handles:
                self.handles[device] = cudnn.create_handle()
            handle = self.handles[device]
            cudnn.set_stream(handle, torch.cuda.current_stream(device).cuda_stream)
            plan = self.plans.get((build, shape, device))
            if plan is None:
                half = cudnn.data_type.BFLOAT16 if shape.dtype == torch.bfloat16 else cudnn.data_type.HALF
                graph = cudnn.pygraph(
                    io_data_type=half,
                    intermediate_data_type=cudnn.data_type.FLOAT,
                    compute_data_type=cudnn.data_type.FLOAT,
                    handle=handle,
                )
                plan = self.plans[build, shape, device] = build(cudnn, graph, shape)
            workspace = torch.empty(max(1, plan.get_workspace_size()), dtype=torch.uint8, device=device)
            pointers = {int(slot): tensor.data_ptr() for slot, tensor in tensors.items()}
            plan.execute(pointers, workspace.data_ptr(), handle=handle)


_plans = _Plans()


class _Operation:
    """One direction, in the form in which `launch` takes a kernel."""

    def __init__(self, name: str, build: Build, slots: Sequence[Slot], shape: Shape):
        self.__name__ = name
        self.build, self.slots, self.shape = build, slots, shape

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return self._run

    def _run(self, *tensors: Tensor) -> None:
        _plans.run(self.build, self.shape, dict(zip(self.slots, tensors, strict=False)))


# The order of the tensors of a launch. Seed and offset come last and are left out without dropout.
INDICES = (Slot.LENGTHS, Slot.QKV_STARTS, Slot.CONTEXT_STARTS, Slot.STATISTICS_STARTS, Slot.SEED, Slot.OFFSET)
FORWARD = (Slot.Q, Slot.K, Slot.V, Slot.CONTEXT, Slot.STATISTICS, *INDICES)
BACKWARD = (Slot.Q, Slot.K, Slot.V, Slot.CONTEXT, Slot.STATISTICS, Slot.DCONTEXT, Slot.DQ, Slot.DK, Slot.DV, *INDICES)


def cudnn_attention(qkv: QKV, batch: RaggedBatch, kernels: Kernels, probability: float) -> Tensor:
    """Return the context [T, H · K] of qkv, [T, 3, H, K] or three tensors [T, H, K], all sequences in one launch.

    The slots after the last sequence are passed as one more sequence, so that no output is left uninitialised. The
    gradient is written into one buffer [T, 3, H, K]; of three tensors the gradients are its parts.
    """
    pairs = sum(length * length for length in (*batch.lengths, batch.spare_slots))
    context = varlen_cudnn(qkv, batch.sequence_starts_i32, longest_sequence(batch), probability, pairs)
    return context.flatten(1)


def varlen_cudnn(qkv: QKV, starts: Tensor, longest: int, probability: float, pairs: int = 0) -> Tensor:
    """Return the context [T, H, K] of qkv, [T, 3, H, K] or three tensors [T, H, K], in float16 or bfloat16.

    `starts` are the sequences' offsets, int32 [S + 1] on the device, the last one being T. `longest` is an upper bound
    on the sequence lengths. `pairs` are the pairs of tokens that attend to each other, for counting operations only.
    """
    parts = (qkv,) if isinstance(qkv, Tensor) else qkv
    return apply(_CudnnAttention, starts, longest, probability, pairs, *parts)


class _CudnnAttention(torch.autograd.Function):
    """Saves queries, keys, values, the context, the softmax statistics [T, H], the indices and the dropout seed."""

    @staticmethod
    def forward(ctx: Any, starts: Tensor, longest: int, probability: float, pairs: int, *parts: Tensor) -> Tensor:
        from implementations.pytorch.kernels.gpu.common import launch  # imports Triton, which CPU machines may lack

        q_THK, k_THK, v_THK = _with_equal_strides(parts[0].unbind(1) if len(parts) == 1 else parts)
        tokens, heads, size = q_THK.shape
        sequences = len(starts) - 1
        spare = round_up(sequences, SEQUENCE_STEP) - sequences
        if spare:
            starts = torch.cat([starts, starts[-1:].expand(spare)])
        shape = Shape(
            sequences=sequences + spare,
            longest=longest,
            heads=heads,
            size=size,
            token_stride=q_THK.stride(0),
            dtype=q_THK.dtype,
            probability=probability,
            is_deterministic=torch.are_deterministic_algorithms_enabled(),
        )
        indices = [starts.diff(), starts * shape.token_stride, starts * (heads * size), starts * heads]
        if probability:
            # Drawn on the device from its default generator: each replay of a CUDA graph redraws it.
            seed, offset = torch.randint(0, SEED_LIMIT, (2, 2), device=starts.device).unbind()  # 16 bytes each
            indices += [seed, offset]
        context_THK = q_THK.new_empty(tokens, heads, size)
        statistics_TH = q_THK.new_empty(tokens, heads, dtype=torch.float32)
        operands = [q_THK, k_THK, v_THK, context_THK, statistics_TH]
        operation: Any = _Operation("cudnn_attention", build_forward, FORWARD, shape)
        launch(operation, (1,), *operands, *indices, flops=4.0 * heads * size * pairs)
        ctx.save_for_backward(*operands, *indices)
        ctx.shape, ctx.pairs, ctx.parts = shape, pairs, len(parts)
        return context_THK

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        from implementations.pytorch.kernels.gpu.common import launch

        shape: Shape = ctx.shape
        saved = ctx.saved_tensors
        operands, indices = saved[:5], saved[5:]
        dcontext_THK = gradients[0].contiguous()
        tokens, heads, size = operands[0].shape
        dqkv_T3HK = operands[0].new_empty(tokens, 3, heads, size)
        if shape.token_stride != 3 * heads * size:  # gradients are declared with the strides of the operands
            dqkv_T3HK = operands[0].new_empty(3, tokens, heads, size).transpose(0, 1)
        dq_THK, dk_THK, dv_THK = dqkv_T3HK.unbind(1)
        launched = [*operands, dcontext_THK, dq_THK, dk_THK, dv_THK, *indices]
        operation: Any = _Operation("cudnn_attention_backward", build_backward, BACKWARD, shape)
        # The gradients of the queries are zeroed, added to and read in float32 as well.
        moved = sum(tensor.nbytes for tensor in launched) + 3 * shape.accumulator_bytes
        launch(operation, (1,), *launched, moved=moved, flops=10.0 * heads * size * ctx.pairs)
        found = (dqkv_T3HK,) if ctx.parts == 1 else (dq_THK, dk_THK, dv_THK)
        return None, None, None, None, *found


def _with_equal_strides(parts: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return q, k and v [T, H, K] as they are if one buffer of [T, 3, H, K] or three of [T, H, K] hold them."""
    _, heads, size = parts[0].shape
    inner = (size, 1)
    strides = {part.stride()[0] for part in parts if part.stride()[1:] == inner}
    if all(part.stride()[1:] == inner for part in parts) and strides in ({heads * size}, {3 * heads * size}):
        return parts
    return [part.contiguous() for part in parts]


def missing_package() -> str | None:
    """Return what is missing on this machine for cuDNN's attention; None if nothing is."""
    try:
        import cudnn  # noqa: F401
    except (ImportError, OSError) as error:
        return f"package {PACKAGE} cannot be imported ({error}); install it with `pip install {PACKAGE}`"
    return None
