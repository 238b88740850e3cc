"""Residual LayerNorm with bias and dropout, and LayerNorm and dropout of the summed embeddings.

Forward kernels have one program per row. Backward kernels have a fixed number of programs that loop over rows, and
write one partial sum of the parameters' gradients each. All arithmetic is in float32.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from implementations.pytorch.kernels.fp8_scaling import Fp8Slot
from implementations.pytorch.kernels.gpu.ahead import Ahead
from implementations.pytorch.kernels.gpu.common import (
    block_size,
    draw_seeds,
    keep_mask,
    launch,
    program_count,
    record_amax,
    to_fp8,
    warp_count,
)
from implementations.pytorch.kernels.gpu.embedding_gradient import table_gradient
from implementations.pytorch.kernels.interface import LAYER_NORM_EPS, ThreeTensors, apply, dropout_threshold_and_scale


@triton.jit
def _residual_forward(  # type: ignore[no-untyped-def]
    x_ptr, update_ptr, update_bias_ptr, weight_ptr, bias_ptr, seed_ptr, y_ptr, sums_ptr, statistics_ptr,
    y8_ptr, scale_ptr, amax_ptr,
    columns, eps, scale, threshold: tl.constexpr, FP8: tl.constexpr, SAVE: tl.constexpr, LIMIT: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < columns
    offsets = row.to(tl.int64) * columns + cols
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    update = tl.load(update_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    update += tl.load(update_bias_ptr + cols, mask=mask, other=0.0)
    if threshold > 0:
        update = tl.where(keep_mask(tl.load(seed_ptr), row, threshold, BLOCK), update * scale, 0.0)
    # The sum is normalised as it is stored, rounded to the dtype of x, so that backward sees the same values.
    total = (x + update).to(y_ptr.dtype.element_ty)
    if SAVE:
        tl.store(sums_ptr + offsets, total, mask=mask)
    total = total.to(tl.float32)
    mean = tl.sum(total, 0) / columns
    centred = tl.where(mask, total - mean, 0.0)
    inverse_std = 1.0 / tl.sqrt(tl.sum(centred * centred, 0) / columns + eps)
    weight = tl.load(weight_ptr + cols, mask=mask, other=0.0)
    y = centred * inverse_std * weight + tl.load(bias_ptr + cols, mask=mask, other=0.0)
    tl.store(y_ptr + offsets, y.to(y_ptr.dtype.element_ty), mask=mask)
    if SAVE:
        tl.store(statistics_ptr + 2 * row, mean)
        tl.store(statistics_ptr + 2 * row + 1, inverse_std)
    if FP8:
        record_amax(amax_ptr, tl.where(mask, tl.abs(y), 0.0))
        tl.store(y8_ptr + offsets, to_fp8(y, tl.load(scale_ptr), LIMIT, y8_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _residual_backward(  # type: ignore[no-untyped-def]
    dy_ptr, second_dy_ptr, sums_ptr, statistics_ptr, weight_ptr, seed_ptr, dx_ptr, dupdate_ptr, parts_ptr,
    scale_ptr, amax_ptr,
    rows, columns, scale, threshold: tl.constexpr, SECOND: tl.constexpr, FP8: tl.constexpr, LIMIT: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    program, programs = tl.program_id(0), tl.num_programs(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < columns
    weight = tl.load(weight_ptr + cols, mask=mask, other=0.0)
    dupdate_bias = tl.zeros([BLOCK], tl.float32)
    dweight = tl.zeros([BLOCK], tl.float32)
    dbias = tl.zeros([BLOCK], tl.float32)
    largest = tl.zeros([BLOCK], tl.float32)
    for row in range(program, rows, programs):
        offsets = tl.cast(row, tl.int64) * columns + cols
        dy = tl.load(dy_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
        if SECOND:
            dy += tl.load(second_dy_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
        total = tl.load(sums_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
        mean, inverse_std = tl.load(statistics_ptr + 2 * row), tl.load(statistics_ptr + 2 * row + 1)
        normalised = tl.where(mask, (total - mean) * inverse_std, 0.0)
        dweight += dy * normalised
        dbias += dy
        scaled = dy * weight
        centre, product = tl.sum(scaled, 0) / columns, tl.sum(scaled * normalised, 0) / columns
        # dx = (g − mean(g) − x̂ · mean(g · x̂)) / std, with g = dy · weight
        dx = tl.where(mask, inverse_std * (scaled - centre - normalised * product), 0.0)
        tl.store(dx_ptr + offsets, dx.to(dx_ptr.dtype.element_ty), mask=mask)
        if threshold > 0:
            dx = tl.where(keep_mask(tl.load(seed_ptr), row, threshold, BLOCK), dx * scale, 0.0)
        dupdate_bias += dx
        if FP8:
            largest = tl.maximum(largest, tl.abs(dx))
            dupdate = to_fp8(dx, tl.load(scale_ptr), LIMIT, dupdate_ptr.dtype.element_ty)
        else:
            dupdate = dx.to(dupdate_ptr.dtype.element_ty)
        tl.store(dupdate_ptr + offsets, dupdate, mask=mask)
    if FP8:
        record_amax(amax_ptr, largest)
    part = parts_ptr + program * 3 * columns + cols
    tl.store(part, dupdate_bias, mask=mask)
    tl.store(part + columns, dweight, mask=mask)
    tl.store(part + 2 * columns, dbias, mask=mask)


@dataclass(frozen=True)
class NormState:
    """What the backward pass of a residual LayerNorm needs."""

    sums_TD: Tensor  # the sum that was normalised, in the dtype of x
    statistics_T2: Tensor  # mean and 1/std of each row
    weight: Tensor
    seed: Tensor  # of the dropout mask, int64 [1]
    probability: float


def residual_norm_forward(
    x_TD: Tensor,
    update_TD: Tensor,
    update_bias: Tensor,
    weight: Tensor,
    bias: Tensor,
    seed: Tensor,
    probability: float,
    fp8: Fp8Slot | None = None,
    save: bool = True,
) -> tuple[Tensor, Tensor | None, NormState | None]:
    """Return LayerNorm(x + dropout(update + update_bias)) [T, D], the same in fp8, and the state for backward.

    `fp8` is where the scale of the fp8 values is found; None: no fp8 values. `save`: whether backward follows.
    """
    rows, columns = x_TD.shape
    y_TD = torch.empty_like(x_TD)
    sums_TD = torch.empty_like(x_TD) if save else y_TD
    statistics_T2 = torch.empty(rows if save else 0, 2, device=x_TD.device)
    y8_TD = y_TD if fp8 is None else torch.empty_like(x_TD, dtype=fp8.dtype)
    (threshold, scale), block = dropout_threshold_and_scale(probability), block_size(columns)
    fp8_arguments = (y8_TD, statistics_T2, statistics_T2) if fp8 is None else (y8_TD, fp8.scale, fp8.amax)
    launch(
        _residual_forward, (rows,),
        x_TD, update_TD, update_bias, weight, bias, seed, y_TD, sums_TD, statistics_T2, *fp8_arguments,
        columns, LAYER_NORM_EPS, scale, threshold, fp8 is not None, save, fp8.limit if fp8 else 0.0, block,
        moved=x_TD.nbytes * (3 + save) + statistics_T2.nbytes + (y8_TD.nbytes if fp8 else 0),
        num_warps=warp_count(block),
    )  # fmt: skip
    state = NormState(sums_TD, statistics_T2, weight, seed, probability) if save else None
    return y_TD, y8_TD if fp8 else None, state


def residual_norm_backward(
    state: NormState, dy_TD: Tensor, second_dy_TD: Tensor | None = None, fp8: Fp8Slot | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x and of the update [T, D], and partial sums [programs, 3, D] of the parameters'.

    The gradient of the output is dy, plus `second_dy_TD` if it is given. With `fp8` the gradient of the update is fp8
    and x's keeps its dtype. Parameters: update_bias, weight, bias.
    """
    sums_TD = state.sums_TD
    rows, columns = sums_TD.shape
    dx_TD = torch.empty_like(sums_TD)
    dupdate_TD = torch.empty_like(sums_TD, dtype=fp8.dtype if fp8 else None)
    programs = program_count(sums_TD.device, rows)
    parts = torch.empty(programs, 3, columns, device=sums_TD.device)
    (threshold, scale), block = dropout_threshold_and_scale(state.probability), block_size(columns)
    has_second = second_dy_TD is not None
    launch(
        _residual_backward, (programs,),
        dy_TD, second_dy_TD if has_second else dy_TD, sums_TD, state.statistics_T2, state.weight, state.seed,
        dx_TD, dupdate_TD, parts, *((fp8.scale, fp8.amax) if fp8 else (parts, parts)),
        rows, columns, scale, threshold, has_second, fp8 is not None, fp8.limit if fp8 else 0.0, block,
        moved=sums_TD.nbytes * (3 + has_second) + dupdate_TD.nbytes + state.statistics_T2.nbytes + parts.nbytes,
        num_warps=warp_count(block),
    )  # fmt: skip
    return dx_TD, dupdate_TD, parts


class _ResidualNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x_TD: Tensor, update_TD: Tensor, update_bias: Tensor, weight: Tensor, bias: Tensor, p: float
    ) -> Tensor:
        seed = draw_seeds(x_TD.device, p)
        y_TD, _, state = residual_norm_forward(x_TD, update_TD, update_bias, weight, bias, seed, p)
        assert state is not None
        ctx.save_for_backward(state.sums_TD, state.statistics_T2, weight, seed)
        ctx.probability = p
        return y_TD

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        sums_TD, statistics_T2, weight, seed = ctx.saved_tensors
        state = NormState(sums_TD, statistics_T2, weight, seed, ctx.probability)
        dx_TD, dupdate_TD, parts = residual_norm_backward(state, gradients[0].contiguous())
        return dx_TD, dupdate_TD, *parts.sum(0).unbind(), None


def residual_norm(
    x_TD: Tensor, update_TD: Tensor, update_bias_D: Tensor, weight_D: Tensor, bias_D: Tensor, probability: float
) -> Tensor:
    return apply(_ResidualNorm, x_TD.contiguous(), update_TD.contiguous(), update_bias_D, weight_D, bias_D, probability)


@triton.jit
def _sum_embeddings(  # type: ignore[no-untyped-def]
    token_ptr, position_ptr, segment_ptr, word_emb_ptr, pos_emb_ptr, seg_emb_ptr, row, columns, cols, mask,
):  # fmt: skip
    token, position, segment = tl.load(token_ptr + row), tl.load(position_ptr + row), tl.load(segment_ptr + row)
    total = tl.load(word_emb_ptr + token * columns + cols, mask=mask, other=0.0)
    total += tl.load(pos_emb_ptr + position * columns + cols, mask=mask, other=0.0)
    return total + tl.load(seg_emb_ptr + segment * columns + cols, mask=mask, other=0.0)


@triton.jit
def _embedding_forward(  # type: ignore[no-untyped-def]
    token_ptr, position_ptr, segment_ptr, word_emb_ptr, pos_emb_ptr, seg_emb_ptr, weight_ptr, bias_ptr, seed_ptr,
    y_ptr, statistics_ptr, columns, eps, scale, threshold: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < columns
    total = _sum_embeddings(
        token_ptr, position_ptr, segment_ptr, word_emb_ptr, pos_emb_ptr, seg_emb_ptr, row, columns, cols, mask
    )
    mean = tl.sum(total, 0) / columns
    centred = tl.where(mask, total - mean, 0.0)
    inverse_std = 1.0 / tl.sqrt(tl.sum(centred * centred, 0) / columns + eps)
    weight = tl.load(weight_ptr + cols, mask=mask, other=0.0)
    y = centred * inverse_std * weight + tl.load(bias_ptr + cols, mask=mask, other=0.0)
    if threshold > 0:
        y = tl.where(keep_mask(tl.load(seed_ptr), row, threshold, BLOCK), y * scale, 0.0)
    tl.store(y_ptr + row.to(tl.int64) * columns + cols, y.to(y_ptr.dtype.element_ty), mask=mask)
    tl.store(statistics_ptr + 2 * row, mean)
    tl.store(statistics_ptr + 2 * row + 1, inverse_std)


@triton.jit
def _embedding_backward(  # type: ignore[no-untyped-def]
    dy_ptr, token_ptr, position_ptr, segment_ptr, word_emb_ptr, pos_emb_ptr, seg_emb_ptr, weight_ptr, seed_ptr,
    statistics_ptr, dx_ptr, parts_ptr, rows, columns, scale, threshold: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    program, programs = tl.program_id(0), tl.num_programs(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < columns
    weight = tl.load(weight_ptr + cols, mask=mask, other=0.0)
    dweight = tl.zeros([BLOCK], tl.float32)
    dbias = tl.zeros([BLOCK], tl.float32)
    for row in range(program, rows, programs):
        offsets = tl.cast(row, tl.int64) * columns + cols
        dy = tl.load(dy_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
        if threshold > 0:
            dy = tl.where(keep_mask(tl.load(seed_ptr), row, threshold, BLOCK), dy * scale, 0.0)
        total = _sum_embeddings(
            token_ptr, position_ptr, segment_ptr, word_emb_ptr, pos_emb_ptr, seg_emb_ptr, row, columns, cols, mask
        )
        mean, inverse_std = tl.load(statistics_ptr + 2 * row), tl.load(statistics_ptr + 2 * row + 1)
        normalised = tl.where(mask, (total - mean) * inverse_std, 0.0)
        dweight += dy * normalised
        dbias += dy
        scaled = dy * weight
        centre, product = tl.sum(scaled, 0) / columns, tl.sum(scaled * normalised, 0) / columns
        # dx stays float32: the gradients of many tokens are added up for each row of the tables.
        tl.store(dx_ptr + offsets, inverse_std * (scaled - centre - normalised * product), mask=mask)
    part = parts_ptr + program * 2 * columns + cols
    tl.store(part, dweight, mask=mask)
    tl.store(part + columns, dbias, mask=mask)


class _EmbeddingNorm(torch.autograd.Function):
    """Saves the ids, tables, each row's mean and 1/std and the seed; backward looks the embeddings up again."""

    @staticmethod
    def forward(ctx: Any, p: float, dtype: torch.dtype, *inputs: Tensor) -> Tensor:
        tokens_T, word_embeddings_VD = inputs[0], inputs[3]
        rows, columns, device = len(tokens_T), word_embeddings_VD.shape[1], word_embeddings_VD.device
        seed, y_TD = draw_seeds(device, p), torch.empty(rows, columns, dtype=dtype, device=device)
        statistics_T2 = torch.empty(rows, 2, device=device)
        (threshold, scale), block = dropout_threshold_and_scale(p), block_size(columns)
        launch(
            _embedding_forward, (rows,), *inputs, seed, y_TD, statistics_T2,
            columns, LAYER_NORM_EPS, scale, threshold, block,
            moved=y_TD.nbytes + rows * (columns * word_embeddings_VD.itemsize + 8 * 4), num_warps=warp_count(block),
        )  # fmt: skip
        ctx.save_for_backward(*inputs[:7], seed, statistics_T2)
        ctx.probability = p
        return y_TD

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, seed, statistics_T2 = ctx.saved_tensors
        ids, tables = inputs[:3], inputs[3:6]
        rows, columns = gradients[0].shape
        dx_TD = torch.empty(rows, columns, device=seed.device)
        programs = program_count(seed.device, rows)
        parts = torch.empty(programs, 2, columns, device=seed.device)
        (threshold, scale), block = dropout_threshold_and_scale(ctx.probability), block_size(columns)
        launch(
            _embedding_backward, (programs,), gradients[0].contiguous(), *inputs, seed, statistics_T2, dx_TD, parts,
            rows, columns, scale, threshold, block,
            moved=gradients[0].nbytes + 2 * dx_TD.nbytes + parts.nbytes, num_warps=warp_count(block),
        )  # fmt: skip
        table_gradients = (table_gradient(table, index, dx_TD) for index, table in zip(ids, tables, strict=True))
        return None, None, None, None, None, *table_gradients, *parts.sum(0).unbind()


def embedding_norm(
    ids: ThreeTensors, tables: ThreeTensors, weight_D: Tensor, bias_D: Tensor, probability: float, dtype: torch.dtype
) -> Tensor:
    return apply(_EmbeddingNorm, probability, dtype, *ids, *tables, weight_D, bias_D)


_CONSTANTS = {"threshold": 6554, "BLOCK": 1024}
_FORWARD = "*bf16 *bf16 *fp32 *fp32 *fp32 *i64 *bf16 *bf16 *fp32 {} *fp32 *i32 i32 fp32 fp32"
_BACKWARD = "*bf16 *bf16 *bf16 *fp32 *fp32 *i64 *bf16 {} *fp32 *fp32 *i32 i32 i32 fp32"
_BF16, _FP8 = {"FP8": False, "LIMIT": 0.0}, {"FP8": True, "LIMIT": 448.0}
AHEAD = (
    Ahead(_residual_forward, _FORWARD.format("*bf16"), {**_CONSTANTS, **_BF16, "SAVE": True}, 4),
    Ahead(
        _residual_forward, _FORWARD.format("*fp8e4nv"), {**_CONSTANTS, **_FP8, "SAVE": True}, 4,
        variant="fp8", capability=89,
    ),
    # Backward: four programs of four warps on a multiprocessor (program_count) are a quarter of its warps.
    Ahead(
        _residual_backward, _BACKWARD.format("*bf16"), {**_CONSTANTS, **_BF16, "SECOND": True}, 4, occupancy=0.25,
    ),
    Ahead(
        _residual_backward, _BACKWARD.format("*fp8e5"), {**_CONSTANTS, **_FP8, "SECOND": True, "LIMIT": 57344.0}, 4,
        variant="fp8", capability=89, occupancy=0.25,
    ),
    Ahead(
        _embedding_forward, "*i64 *i64 *i64 *fp32 *fp32 *fp32 *fp32 *fp32 *i64 *bf16 *fp32 i32 fp32 fp32",
        _CONSTANTS, 4,
    ),
    Ahead(
        _embedding_backward,
        "*bf16 *i64 *i64 *i64 *fp32 *fp32 *fp32 *fp32 *i64 *fp32 *fp32 *fp32 i32 i32 fp32",
        _CONSTANTS, 4, occupancy=0.25,
    ),
)  # fmt: skip
