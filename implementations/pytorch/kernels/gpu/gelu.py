"""GELU(x + bias) in one pass over memory in each direction, by the tanh approximation.

Source: Hendrycks and Gimpel, arXiv 1606.08415. 0.5 · (1 + tanh(z)) is computed as sigmoid(2z), with one exponential.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from implementations.pytorch.kernels.fp8_scaling import Fp8Slot
from implementations.pytorch.kernels.gpu.ahead import Ahead
from implementations.pytorch.kernels.gpu.cast import FP8_MULTIPLE, TILE_COLUMNS, TILE_ROWS
from implementations.pytorch.kernels.gpu.common import launch, program_count, record_amax, to_fp8
from implementations.pytorch.kernels.interface import apply
from podium.planning.batch_plan import round_up

BLOCK = 1024  # columns per program: eight for each thread of four warps, one 16-byte load in bfloat16
SLOPE = tl.constexpr(1.5957691216057308)  # 2 √(2/π): GELU(x) ≈ x · sigmoid(SLOPE · (x + CUBIC x³))
CUBIC = tl.constexpr(0.044715)


@triton.jit
def _sigmoid(x):  # type: ignore[no-untyped-def]
    return 1.0 / (1.0 + tl.exp(-(x * (1.0 + CUBIC * x * x)) * SLOPE))


@triton.jit
def _slope(x):  # type: ignore[no-untyped-def]
    sigmoid = _sigmoid(x)
    return sigmoid + x * sigmoid * (1.0 - sigmoid) * SLOPE * (1.0 + 3.0 * CUBIC * x * x)


@triton.jit
def _forward(x_ptr, bias_ptr, y_ptr, columns, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = cols < columns
    offsets = tl.program_id(0).to(tl.int64) * columns + cols
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32) + tl.load(bias_ptr + cols, mask=mask, other=0.0)
    y = x * _sigmoid(x)
    tl.store(y_ptr + offsets, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _backward(x_ptr, bias_ptr, dy_ptr, dx_ptr, parts_ptr, rows, columns, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    program, programs = tl.program_id(0), tl.num_programs(0)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = cols < columns
    bias = tl.load(bias_ptr + cols, mask=mask, other=0.0)
    dbias = tl.zeros([BLOCK], tl.float32)
    for row in range(program, rows, programs):
        offsets = tl.cast(row, tl.int64) * columns + cols
        x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32) + bias
        dx = tl.load(dy_ptr + offsets, mask=mask, other=0.0).to(tl.float32) * _slope(x)
        tl.store(dx_ptr + offsets, dx.to(dx_ptr.dtype.element_ty), mask=mask)
        dbias += dx
    tl.store(parts_ptr + program * columns + cols, dbias, mask=mask)


@triton.jit
def _forward_fp8(  # type: ignore[no-untyped-def]
    x_ptr, bias_ptr, rows_ptr, columns_ptr, scale_ptr, amax_ptr, rows, padded_rows, columns,
    LIMIT: tl.constexpr, TILE_ROWS: tl.constexpr, TILE_COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    col = tl.program_id(1) * TILE_COLUMNS + tl.arange(0, TILE_COLUMNS)
    inside = (row[:, None] < rows) & (col[None, :] < columns)
    offsets = row.to(tl.int64)[:, None] * columns + col[None, :]
    x = tl.load(x_ptr + offsets, mask=inside, other=0.0).to(tl.float32)
    x += tl.load(bias_ptr + col, mask=col < columns, other=0.0)[None, :]
    y = tl.where(inside, x * _sigmoid(x), 0.0)
    record_amax(amax_ptr, tl.abs(y))
    y8 = to_fp8(y, tl.load(scale_ptr), LIMIT, rows_ptr.dtype.element_ty)
    tl.store(rows_ptr + offsets, y8, mask=inside)
    inside = (col[:, None] < columns) & (row[None, :] < padded_rows)
    tl.store(columns_ptr + col.to(tl.int64)[:, None] * padded_rows + row[None, :], tl.trans(y8), mask=inside)


@triton.jit
def _backward_fp8(  # type: ignore[no-untyped-def]
    x_ptr, bias_ptr, dy_ptr, rows_ptr, columns_ptr, parts_ptr, scale_ptr, amax_ptr, rows, padded_rows, columns,
    LIMIT: tl.constexpr, TILE_ROWS: tl.constexpr, TILE_COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    col = tl.program_id(1) * TILE_COLUMNS + tl.arange(0, TILE_COLUMNS)
    inside = (row[:, None] < rows) & (col[None, :] < columns)
    offsets = row.to(tl.int64)[:, None] * columns + col[None, :]
    x = tl.load(x_ptr + offsets, mask=inside, other=0.0).to(tl.float32)
    x += tl.load(bias_ptr + col, mask=col < columns, other=0.0)[None, :]
    dx = tl.load(dy_ptr + offsets, mask=inside, other=0.0).to(tl.float32) * _slope(x)
    tl.store(parts_ptr + tl.program_id(0) * columns + col, tl.sum(dx, 0), mask=col < columns)
    record_amax(amax_ptr, tl.abs(dx))
    dx8 = to_fp8(dx, tl.load(scale_ptr), LIMIT, rows_ptr.dtype.element_ty)
    tl.store(rows_ptr + offsets, dx8, mask=inside)
    inside = (col[:, None] < columns) & (row[None, :] < padded_rows)
    tl.store(columns_ptr + col.to(tl.int64)[:, None] * padded_rows + row[None, :], tl.trans(dx8), mask=inside)


def gelu_forward(x_TF: Tensor, bias_F: Tensor) -> Tensor:
    """Return GELU(x + bias) [T, F] in the dtype of x."""
    (rows, columns), y_TF = x_TF.shape, torch.empty_like(x_TF)
    launch(_forward, (rows, triton.cdiv(columns, BLOCK)), x_TF, bias_F, y_TF, columns, BLOCK, num_warps=4)
    return y_TF


def gelu_backward(x_TF: Tensor, bias_F: Tensor, dy_TF: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradient of x [T, F], and partial sums [programs, 1, F] of the bias's."""
    rows, columns = x_TF.shape
    dx_TF, programs = torch.empty_like(x_TF), program_count(x_TF.device, rows)
    parts = torch.empty(programs, 1, columns, device=x_TF.device)
    grid = (programs, triton.cdiv(columns, BLOCK))
    launch(_backward, grid, x_TF, bias_F, dy_TF, dx_TF, parts, rows, columns, BLOCK, num_warps=4)
    return dx_TF, parts


def gelu_forward_fp8(x_TF: Tensor, bias_F: Tensor, fp8: Fp8Slot) -> tuple[Tensor, Tensor]:
    """Return GELU(x + bias) [T, F] and its transpose [F, T rounded up] in fp8."""
    rows, columns = x_TF.shape
    y_TF = torch.empty_like(x_TF, dtype=fp8.dtype)
    y_FT = torch.empty(columns, round_up(rows, FP8_MULTIPLE), dtype=fp8.dtype, device=x_TF.device)
    launch(
        _forward_fp8, _tiles(y_FT), x_TF, bias_F, y_TF, y_FT, fp8.scale, fp8.amax, rows, y_FT.shape[1], columns,
        fp8.limit, TILE_ROWS, TILE_COLUMNS, num_warps=4,
    )  # fmt: skip
    return y_TF, y_FT


def gelu_backward_fp8(x_TF: Tensor, bias_F: Tensor, dy_TF: Tensor, fp8: Fp8Slot) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradient of x [T, F] and its transpose in fp8, and partial sums [tiles, 1, F] of the bias's."""
    rows, columns = x_TF.shape
    dx_TF = torch.empty_like(x_TF, dtype=fp8.dtype)
    dx_FT = torch.empty(columns, round_up(rows, FP8_MULTIPLE), dtype=fp8.dtype, device=x_TF.device)
    grid = _tiles(dx_FT)
    parts = torch.empty(grid[0], 1, columns, device=x_TF.device)
    launch(
        _backward_fp8, grid, x_TF, bias_F, dy_TF, dx_TF, dx_FT, parts, fp8.scale, fp8.amax,
        rows, dx_FT.shape[1], columns, fp8.limit, TILE_ROWS, TILE_COLUMNS, num_warps=8,
    )  # fmt: skip
    return dx_TF, dx_FT, parts


def _tiles(transposed: Tensor) -> tuple[int, int]:
    columns, rows = transposed.shape
    return triton.cdiv(rows, TILE_ROWS), triton.cdiv(columns, TILE_COLUMNS)


class _BiasGelu(torch.autograd.Function):
    """Saves only its inputs; backward recomputes the sigmoid."""

    @staticmethod
    def forward(ctx: Any, x_TF: Tensor, bias_F: Tensor) -> Tensor:
        ctx.save_for_backward(x_TF, bias_F)
        return gelu_forward(x_TF, bias_F)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        x_TF, bias_F = ctx.saved_tensors
        dx_TF, parts = gelu_backward(x_TF, bias_F, gradients[0].contiguous())
        return dx_TF, parts.sum((0, 1))


def bias_gelu(x_TF: Tensor, bias_F: Tensor) -> Tensor:
    return apply(_BiasGelu, x_TF.contiguous(), bias_F)


_TILE = {"TILE_ROWS": TILE_ROWS, "TILE_COLUMNS": TILE_COLUMNS}
AHEAD = (
    Ahead(_forward, "*bf16 *fp32 *bf16 i32", {"BLOCK": BLOCK}, 4),
    Ahead(_backward, "*bf16 *fp32 *bf16 *bf16 *fp32 i32 i32", {"BLOCK": BLOCK}, 4),
    Ahead(
        _forward_fp8, "*bf16 *fp32 *fp8e4nv *fp8e4nv *fp32 *i32 i32 i32 i32", {"LIMIT": 448.0, **_TILE}, 4,
        aligned=("columns", "padded_rows"), capability=89,
    ),
    # 16 elements of each of two tensors for a thread: fewer warps keep as many loads in flight.
    Ahead(
        _backward_fp8, "*bf16 *fp32 *bf16 *fp8e5 *fp8e5 *fp32 *fp32 *i32 i32 i32 i32", {"LIMIT": 57344.0, **_TILE}, 8,
        aligned=("columns", "padded_rows"), capability=89, occupancy=0.3,
    ),
)  # fmt: skip
