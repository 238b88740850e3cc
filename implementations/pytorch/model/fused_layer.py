"""The encoder layer as two autograd functions around Triton kernels, with hand-written backward passes.

Between matrix products everything is one kernel that reads and writes each value once. By hand, since autograd would
add passes over memory:

- The sum of the two gradients of a residual connection is formed by the LayerNorm kernel that needs it. For that a
  layer passes its output on twice, as two tensors with the same values: the next product's input, and the residual.
- Gradients of parameters are written into `parameter.grad` by the kernel that computes them, if it exists: with DDP it
  is a part of a bucket. So they are neither zeroed before nor copied after. Autograd gets None for them and still runs
  DDP's hooks. `Gradients.accumulate` decides whether values are added, as after earlier micro-batches.
- Queries, keys and values are three tensors for attention backends that take them so, and their gradients are joined by
  the kernel that also sums the bias's gradient.

With fp8 (`Fp8Scaling`), all products of a layer have fp8 operands: e4m3 for activations and weights, e5m2 for
gradients. The kernel that produces an activation or gradient casts it. Weights are cast in each forward pass.
Source: Micikevicius et al., "FP8 formats for deep learning", arXiv 2209.05433.

Suffixes of shapes: T tokens, N tokens or needed tokens, D hidden width, F feed-forward width, H heads, K head size, O
outputs and I inputs of a product, R rows, C columns.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from implementations.pytorch.data.batch import RaggedBatch
from implementations.pytorch.kernels.fp8_scaling import FP8_MATRICES, Fp8Scaling, Fp8Slot
from implementations.pytorch.kernels.gpu.cast import cast_fp8, join, transpose_fp8
from implementations.pytorch.kernels.gpu.common import draw_seeds, recording, sum_parts
from implementations.pytorch.kernels.gpu.gelu import gelu_backward, gelu_backward_fp8, gelu_forward, gelu_forward_fp8
from implementations.pytorch.kernels.gpu.norm import NormState, residual_norm_backward, residual_norm_forward
from implementations.pytorch.model.attention.dispatch import SEPARATE_QKV, attend
from implementations.pytorch.model.layer import Gradients, Layer

FP8_ALIGNMENT = 16  # bytes; of every matrix of an fp8 product


@dataclass(frozen=True)
class Hidden:
    """Hidden states [T, D] between layers: the same values as residual, as input of a product, and in fp8 (or None)."""

    residual: Tensor
    input: Tensor
    fp8: Tensor | None = None


@dataclass(frozen=True)
class Operand:
    """A matrix as operand of products: [R, C] by rows, and in fp8 its transpose [C, R rounded up] and its slot."""

    rows: Tensor
    columns: Tensor | None = None
    slot: Fp8Slot | None = None


class _Slots:
    """The fp8 slots of one layer by name; all None without fp8."""

    def __init__(self, scaling: Fp8Scaling | None, layer: int) -> None:
        names, first = list(FP8_MATRICES), layer * len(FP8_MATRICES)
        self._slots = {
            name: None if scaling is None else scaling.slot(first + number) for number, name in enumerate(names)
        }

    def __getitem__(self, name: str) -> Fp8Slot | None:
        return self._slots[name]


def encoder_layer(
    layer: Layer, hidden: Hidden, batch: RaggedBatch, probability: float, needed: Tensor | None
) -> Hidden:
    """Compute an encoder layer. Returns its output [T, D], or [N, D] of the token slots `needed` (int64 [N]).

    In evaluation (no gradients) products have the dtype of the hidden states: fp8 values and magnitudes, which belong
    to training, stay as they are.
    """
    training = torch.is_grad_enabled()
    slots = _Slots(layer.scaling if training else None, layer.number)
    next_slot = None
    if training and layer.scaling is not None and not layer.is_last:
        next_slot = _Slots(layer.scaling, layer.number + 1)["input"]
    separate = layer.attention in SEPARATE_QKV
    outputs: tuple[Tensor, ...] = _Qkv.apply(  # type: ignore[no-untyped-call]
        hidden.input, hidden.fp8 if training else None, layer.qkv.weight, layer.qkv.bias, layer, slots, separate
    )
    heads = (layer.heads, layer.head_size)
    qkv: Any = tuple(part.view(-1, *heads) for part in outputs) if separate else outputs[0].view(-1, 3, *heads)
    context_TD = attend(qkv, batch, backend=layer.attention, kernels=layer.kernels, probability=probability)
    residual_TD = hidden.residual
    if needed is not None:
        residual_TD, context_TD = residual_TD.index_select(0, needed), context_TD.index_select(0, needed)
    results: tuple[Tensor, ...] = _AfterAttention.apply(  # type: ignore[no-untyped-call]
        residual_TD, context_TD, layer, slots, next_slot, probability, training, *_parameters(layer)
    )
    return Hidden(*results)


def _parameters(layer: Layer) -> tuple[Tensor, ...]:
    """Return the parameters after the attention: three products, then two LayerNorms."""
    products, norms = (
        (layer.attention_output, layer.intermediate, layer.output),
        (layer.attention_norm, layer.output_norm),
    )
    return tuple(parameter for module in (*products, *norms) for parameter in (module.weight, module.bias))


class _Qkv(torch.autograd.Function):
    """The product of queries, keys and values: three tensors [T, D], or one [T, 3D] without `separate`."""

    @staticmethod
    def forward(
        ctx: Any, x_TD: Tensor, x8_TD: Tensor | None, weight: Tensor, bias: Tensor, layer: Layer, slots: _Slots,
        separate: bool,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        dtype = x_TD.dtype
        x = _operand(x_TD, slots["input"], x8_TD)
        weights = _weight_operand(weight, slots["qkv.weight"], dtype)
        qkv_T3D = _product(x, weights, dtype, bias)
        ctx.layer, ctx.slots, ctx.saved = layer, slots, (x, weights, dtype)
        return tuple(qkv_T3D.chunk(3, 1)) if separate else (qkv_T3D,)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        layer, slot, (x, weights, dtype) = ctx.layer, ctx.slots["qkv"], ctx.saved
        del ctx.saved
        sources, joined = _parts_and_whole(gradients)
        if slot is not None:
            rows, columns, parts = cast_fp8(sources, slot, sums=True)
            dqkv = Operand(rows, columns, slot)
        else:
            copied, parts = join(sources, copy=joined is None)
            dqkv = Operand(copied if joined is None else joined)
        assert parts is not None
        dx_TD = _input_gradient(dqkv, weights, dtype)
        dweight = _write_weight_gradient(layer.qkv.weight, dqkv, x, layer.gradients)
        (dbias,) = _write_sums(parts, (layer.qkv.bias,), layer.gradients)
        return dx_TD, None, dweight, dbias, None, None, None


def _parts_and_whole(gradients: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], Tensor | None]:
    """Return the gradients of queries, keys and values [T, D], and of all three [T, 3D] if they are in one buffer."""
    if len(gradients) == 1:
        return tuple(gradients[0].chunk(3, 1)), gradients[0]
    first, width = gradients[0], gradients[0].shape[1]
    storage = first.untyped_storage()._cdata
    if all(
        part.stride() == (3 * width, 1)
        and part.untyped_storage()._cdata == storage
        and part.storage_offset() == first.storage_offset() + number * width
        for number, part in enumerate(gradients)
    ):
        return gradients, first.as_strided((len(first), 3 * width), (3 * width, 1))
    return tuple(part.contiguous() for part in gradients), None


class _AfterAttention(torch.autograd.Function):
    """The layer from the attention context on. Returns the output twice (`Hidden`), and in fp8 if the next layer is."""

    @staticmethod
    def forward(
        ctx: Any, x_ND: Tensor, context_ND: Tensor, layer: Layer, slots: _Slots, next_slot: Fp8Slot | None,
        probability: float, training: bool, *parameters: Tensor,
    ) -> tuple[Tensor | None, ...]:  # fmt: skip
        dtype, seeds = x_ND.dtype, draw_seeds(x_ND.device, probability, 2)
        output_weight, output_bias, inner_weight, inner_bias, last_weight, last_bias, *norms = parameters
        context = _operand(context_ND.contiguous(), slots["context"])
        weights = [
            _weight_operand(weight, slots[f"{name}.weight"], dtype)
            for name, weight in (
                ("attention_output", output_weight), ("intermediate", inner_weight), ("output", last_weight)
            )
        ]  # fmt: skip
        update_ND = _product(context, weights[0], dtype)
        middle_ND, middle8_ND, first = residual_norm_forward(
            x_ND, update_ND, output_bias, norms[0], norms[1], seeds[:1], probability, slots["middle"], training
        )
        middle = Operand(middle_ND) if middle8_ND is None else Operand(middle8_ND, None, slots["middle"])
        h_NF = _product(middle, weights[1], dtype)
        inner_slot = slots["inner"]
        if inner_slot is not None:
            inner = Operand(*gelu_forward_fp8(h_NF, inner_bias, inner_slot), inner_slot)
        else:
            inner = Operand(gelu_forward(h_NF, inner_bias))
        update_ND = _product(inner, weights[2], dtype)
        y_ND, y8_ND, second = residual_norm_forward(
            middle_ND, update_ND, last_bias, norms[2], norms[3], seeds[1:], probability, next_slot, training
        )
        if training:
            ctx.layer, ctx.slots = layer, slots
            if inner_slot is not None:  # backward needs the transposes only
                context, inner = (replace(part, rows=_nothing(part.rows)) for part in (context, inner))
                weights = [replace(weight, rows=_nothing(weight.rows)) for weight in weights]
            ctx.saved = (context, middle, h_NF, inner, weights, first, second, dtype)
        if y8_ND is not None:
            ctx.mark_non_differentiable(y8_ND)
        ctx.set_materialize_grads(False)
        return y_ND, y_ND.detach(), y8_ND

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        layer, slots = ctx.layer, ctx.slots
        context, middle, h_NF, inner, weights, first, second, dtype = ctx.saved
        del ctx.saved
        outer = [gradient.contiguous() for gradient in gradients[:2] if gradient is not None]

        dmiddle_ND, dupdate, last_parts = _norm_gradients(second, outer, slots["output"])
        dinner_NF = _input_gradient(dupdate, weights[2], dtype)
        dlast_weight = _write_weight_gradient(layer.output.weight, dupdate, inner, layer.gradients)
        norm = layer.output_norm
        dlast = _write_sums(last_parts, (layer.output.bias, norm.weight, norm.bias), layer.gradients)
        del inner, dupdate

        inner_slot = slots["intermediate"]
        if inner_slot is not None:
            rows, columns, parts = gelu_backward_fp8(h_NF, layer.intermediate.bias, dinner_NF, inner_slot)
            dh = Operand(rows, columns, inner_slot)
        else:
            rows, parts = gelu_backward(h_NF, layer.intermediate.bias, dinner_NF)
            dh = Operand(rows)
        del h_NF, dinner_NF
        dinput_ND = _input_gradient(dh, weights[1], dtype)
        dinner_weight = _write_weight_gradient(layer.intermediate.weight, dh, middle, layer.gradients)
        (dinner_bias,) = _write_sums(parts, (layer.intermediate.bias,), layer.gradients)
        del dh, middle

        dx_ND, dupdate, first_parts = _norm_gradients(first, [dmiddle_ND, dinput_ND], slots["attention_output"])
        dcontext_ND = _input_gradient(dupdate, weights[0], dtype)
        doutput_weight = _write_weight_gradient(layer.attention_output.weight, dupdate, context, layer.gradients)
        norm = layer.attention_norm
        doutput = _write_sums(first_parts, (layer.attention_output.bias, norm.weight, norm.bias), layer.gradients)
        return (
            dx_ND, dcontext_ND, None, None, None, None, None,
            doutput_weight, doutput[0], dinner_weight, dinner_bias, dlast_weight, dlast[0],
            doutput[1], doutput[2], dlast[1], dlast[2],
        )  # fmt: skip


def _nothing(matrix_RC: Tensor) -> Tensor:
    """Return a matrix without rows in the place of one that is not needed any more; a view would keep its memory."""
    return matrix_RC.new_empty(0, matrix_RC.shape[1])


def _norm_gradients(state: NormState, outer: list[Tensor], slot: Fp8Slot | None) -> tuple[Tensor, Operand, Tensor]:
    """Return a residual LayerNorm's gradients of x and of the update, and the parts of its parameters' gradients."""
    dx_ND, dupdate_ND, parts = residual_norm_backward(state, outer[0], outer[1] if len(outer) > 1 else None, slot)
    return dx_ND, Operand(dupdate_ND, None, slot), parts


def _operand(x_RC: Tensor, slot: Fp8Slot | None, x8_RC: Tensor | None = None) -> Operand:
    """Return a matrix as operand; in fp8 it is `x8_RC` if another kernel has cast it already."""
    if slot is None:
        return Operand(x_RC)
    if x8_RC is not None:
        return Operand(x8_RC, None, slot)
    rows, columns, _ = cast_fp8([x_RC], slot)
    return Operand(rows, columns, slot)


def _weight_operand(weight_OI: Tensor, slot: Fp8Slot | None, dtype: torch.dtype) -> Operand:
    return Operand(weight_OI.to(dtype)) if slot is None else _operand(weight_OI, slot)


def _product(x: Operand, weight: Operand, dtype: torch.dtype, bias: Tensor | None = None) -> Tensor:
    """Return x weightᵀ [R, O] in `dtype`, plus the bias [O] if it is given, of x [R, I] and weight [O, I]."""
    bias = None if bias is None else bias.to(dtype)
    if x.slot is None:
        return torch.mm(x.rows, weight.rows.t()) if bias is None else torch.addmm(bias, x.rows, weight.rows.t())
    # Fast accumulation keeps fewer bits of partial sums; gradients are computed without it.
    return _scaled_product(x.rows, x.slot, weight.rows, weight.slot, dtype, bias, fast=True)


def _input_gradient(dy: Operand, weight: Operand, dtype: torch.dtype) -> Tensor:
    """Return dy weight [R, I] in `dtype`, of dy [R, O] and weight [O, I]."""
    if dy.slot is None:
        return torch.mm(dy.rows, weight.rows)
    assert weight.columns is not None
    return _scaled_product(dy.rows, dy.slot, weight.columns, weight.slot, dtype)


def _write_weight_gradient(parameter: Tensor, dy: Operand, x: Operand, gradients: Gradients) -> Tensor | None:
    """Write dyᵀ x [O, I] into the parameter's gradient, of dy [R, O] and x [R, I]; returns it if there is none yet."""
    target, accumulate = _target(parameter, gradients)
    if dy.slot is None:
        _product_float32(dy.rows, x.rows, target, accumulate)
    else:
        dy_OR, x_IR = (transpose_fp8(part.rows) if part.columns is None else part.columns for part in (dy, x))
        # cuBLAS demands aligned matrices in fp8. A gradient in a bucket of DDP begins anywhere: behind the masked-LM
        # bias, which has an even number of elements that 4 does not divide.
        if accumulate or not _is_aligned(target):
            product = _scaled_product(dy_OR, dy.slot, x_IR, x.slot, torch.float32)
            target.add_(product) if accumulate else target.copy_(product)
        else:
            _scaled_product(dy_OR, dy.slot, x_IR, x.slot, torch.float32, out=target)
    return target if parameter.grad is None else None


def _is_aligned(tensor: Tensor) -> bool:
    """Return whether a float32 tensor begins at a multiple of 16 bytes. Its storage does."""
    return tensor.storage_offset() % (FP8_ALIGNMENT // tensor.itemsize) == 0


def _write_sums(parts: Tensor, parameters: tuple[Tensor, ...], gradients: Gradients) -> list[Tensor | None]:
    """Write the sums of parts [programs, parameters, columns] into the gradients; returns those there were none of."""
    targets = [_target(parameter, gradients) for parameter in parameters]
    sum_parts(parts, tuple(target for target, _ in targets), accumulate=targets[0][1])
    return [
        target if parameter.grad is None else None for (target, _), parameter in zip(targets, parameters, strict=True)
    ]


def _target(parameter: Tensor, gradients: Gradients) -> tuple[Tensor, bool]:
    """Return the float32 tensor to write a parameter's gradient into, and whether to add to it."""
    if parameter.grad is None:
        return torch.empty_like(parameter), False
    return parameter.grad, gradients.accumulate


def _product_float32(dy_RO: Tensor, x_RI: Tensor, target_OI: Tensor, accumulate: bool) -> None:
    """Write or add dyᵀ x to a float32 target, with float32 accumulation whatever the dtype of the operands."""
    if dy_RO.dtype == torch.float32 or not (target_OI.is_cuda or recording()):
        # PyTorch has products with an output of another dtype on GPUs only.
        dy_RO, x_RI = dy_RO.float(), x_RI.float()
        target_OI.addmm_(dy_RO.t(), x_RI, beta=float(accumulate))
    elif accumulate:
        torch.addmm(target_OI, dy_RO.t(), x_RI, out_dtype=torch.float32, out=target_OI)
    else:
        torch.mm(dy_RO.t(), x_RI, out_dtype=torch.float32, out=target_OI)


def _scaled_product(
    a_MK: Tensor, a_slot: Fp8Slot, b_NK: Tensor, b_slot: Fp8Slot | None, dtype: torch.dtype,
    bias: Tensor | None = None, *, fast: bool = False, out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Return a bᵀ [M, N] of fp8 matrices: by fp8 tensor cores on a GPU, elsewhere in float32 on the same values."""
    assert b_slot is not None
    if not (a_MK.is_cuda or recording()):
        product = (a_MK.float() @ b_NK.float().t()) * (a_slot.inverse * b_slot.inverse)
        product = (product if bias is None else product + bias.float()).to(dtype)
        return product if out is None else out.copy_(product)
    # torch._scaled_mm is private to PyTorch; only this function calls it.
    operands = (a_MK, b_NK.t(), a_slot.inverse, b_slot.inverse, bias, None, dtype, fast)
    operator = torch.ops.aten._scaled_mm
    result: Tensor = operator.default(*operands) if out is None else operator.out(*operands, out=out)
    return result
