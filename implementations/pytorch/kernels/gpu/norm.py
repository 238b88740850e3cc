"""Residual LayerNorm with bias and dropout, and LayerNorm and dropout of the summed embeddings.

Forward kernels have one program per row. Backward kernels have a fixed number of programs that loop over rows, and
write one partial sum of the parameters' gradients each. All arithmetic is in float32.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from implementations.pytorch.kernels.gpu.ahead import Ahead
from implementations.pytorch.kernels.gpu.common import (
    block_size,
    draw_seed,
    keep_mask,
    launch,
    program_count,
    warp_count,
)
from implementations.pytorch.kernels.gpu.embedding_gradient import table_gradient
from implementations.pytorch.kernels.interface import LAYER_NORM_EPS, ThreeTensors, apply, dropout_threshold_and_scale


@triton.jit
def _residual_forward(  # type: ignore[no-untyped-def]
    x_ptr, update_ptr, update_bias_ptr, weight_ptr, bias_ptr, seed_ptr, y_ptr, sums_ptr, statistics_ptr,
    columns, eps, scale, threshold: tl.constexpr, BLOCK: tl.constexpr,
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
    total = (x + update).to(sums_ptr.dtype.element_ty)
    tl.store(sums_ptr + offsets, total, mask=mask)
    total = total.to(tl.float32)
    mean = tl.sum(total, 0) / columns
    centred = tl.where(mask, total - mean, 0.0)
    inverse_std = 1.0 / tl.sqrt(tl.sum(centred * centred, 0) / columns + eps)
    weight = tl.load(weight_ptr + cols, mask=mask, other=0.0)
    bias = tl.load(bias_ptr + cols, mask=mask, other=0.0)
    tl.store(y_ptr + offsets, (centred * inverse_std * weight + bias).to(y_ptr.dtype.element_ty), mask=mask)
    tl.store(statistics_ptr + 2 * row, mean)
    tl.store(statistics_ptr + 2 * row + 1, inverse_std)


@triton.jit
def _residual_backward(  # type: ignore[no-untyped-def]
    dy_ptr, sums_ptr, statistics_ptr, weight_ptr, seed_ptr, dx_ptr, dupdate_ptr, parts_ptr,
    rows, columns, scale, threshold: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    program, programs = tl.program_id(0), tl.num_programs(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < columns
    weight = tl.load(weight_ptr + cols, mask=mask, other=0.0)
    dupdate_bias = tl.zeros([BLOCK], tl.float32)
    dweight = tl.zeros([BLOCK], tl.float32)
    dbias = tl.zeros([BLOCK], tl.float32)
    for row in range(program, rows, programs):
        offsets = tl.cast(row, tl.int64) * columns + cols
        dy = tl.load(dy_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
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
        tl.store(dupdate_ptr + offsets, dx.to(dupdate_ptr.dtype.element_ty), mask=mask)
        dupdate_bias += dx
    part = parts_ptr + program * 3 * columns + cols
    tl.store(part, dupdate_bias, mask=mask)
    tl.store(part + columns, dweight, mask=mask)
    tl.store(part + 2 * columns, dbias, mask=mask)


class _ResidualNorm(torch.autograd.Function):
    """Saves the sum that is normalised, in the dtype of x, each row's mean and 1/std, and the dropout seed."""

    @staticmethod
    def forward(
        ctx: Any, x_TD: Tensor, update_TD: Tensor, update_bias: Tensor, weight: Tensor, bias: Tensor, p: float
    ) -> Tensor:
        (rows, columns), seed = x_TD.shape, draw_seed(x_TD.device, p)
        sums_TD, y_TD = torch.empty_like(x_TD), torch.empty_like(x_TD)
        statistics_T2 = torch.empty(rows, 2, device=x_TD.device)
        (threshold, scale), block = dropout_threshold_and_scale(p), block_size(columns)
        launch(
            _residual_forward, (rows,),
            x_TD, update_TD, update_bias, weight, bias, seed, y_TD, sums_TD, statistics_T2,
            columns, LAYER_NORM_EPS, scale, threshold, block, num_warps=warp_count(block),
        )  # fmt: skip
        ctx.save_for_backward(sums_TD, statistics_T2, weight, seed)
        ctx.probability = p
        return y_TD

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        sums_TD, statistics_T2, weight, seed = ctx.saved_tensors
        rows, columns = sums_TD.shape
        dx_TD, dupdate_TD = torch.empty_like(sums_TD), torch.empty_like(sums_TD)
        programs = program_count(sums_TD.device, rows)
        parts = torch.empty(programs, 3, columns, device=sums_TD.device)
        (threshold, scale), block = dropout_threshold_and_scale(ctx.probability), block_size(columns)
        launch(
            _residual_backward, (programs,),
            gradients[0].contiguous(), sums_TD, statistics_T2, weight, seed, dx_TD, dupdate_TD, parts,
            rows, columns, scale, threshold, block, num_warps=warp_count(block),
        )  # fmt: skip
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
        seed, y_TD = draw_seed(device, p), torch.empty(rows, columns, dtype=dtype, device=device)
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
AHEAD = (
    Ahead(_residual_forward, "*bf16 *bf16 *fp32 *fp32 *fp32 *i64 *bf16 *bf16 *fp32 i32 fp32 fp32", _CONSTANTS, 4),
    # Backward: four programs of four warps on a multiprocessor (program_count) are a quarter of its warps.
    Ahead(
        _residual_backward, "*bf16 *bf16 *fp32 *fp32 *i64 *bf16 *bf16 *fp32 i32 i32 fp32", _CONSTANTS, 4,
        occupancy=0.25,
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
