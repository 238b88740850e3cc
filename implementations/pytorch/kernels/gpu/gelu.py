"""GELU(x + bias) in one pass over memory in each direction, by the tanh approximation.

Source: Hendrycks and Gimpel, arXiv 1606.08415. 0.5 · (1 + tanh(z)) is computed as sigmoid(2z), with one exponential.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from implementations.pytorch.kernels.gpu.ahead import Ahead
from implementations.pytorch.kernels.gpu.common import launch, program_count
from implementations.pytorch.kernels.interface import apply

BLOCK = 1024  # columns per program: eight for each thread of four warps, one 16-byte load in bfloat16
SLOPE = tl.constexpr(1.5957691216057308)  # 2 √(2/π): GELU(x) ≈ x · sigmoid(SLOPE · (x + CUBIC x³))
CUBIC = tl.constexpr(0.044715)


@triton.jit
def _sigmoid(x):  # type: ignore[no-untyped-def]
    return 1.0 / (1.0 + tl.exp(-(x * (1.0 + CUBIC * x * x)) * SLOPE))


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
        sigmoid = _sigmoid(x)
        slope = sigmoid + x * sigmoid * (1.0 - sigmoid) * SLOPE * (1.0 + 3.0 * CUBIC * x * x)
        dx = tl.load(dy_ptr + offsets, mask=mask, other=0.0).to(tl.float32) * slope
        tl.store(dx_ptr + offsets, dx.to(dx_ptr.dtype.element_ty), mask=mask)
        dbias += dx
    tl.store(parts_ptr + program * columns + cols, dbias, mask=mask)


class _BiasGelu(torch.autograd.Function):
    """Saves only its inputs; backward recomputes the sigmoid."""

    @staticmethod
    def forward(ctx: Any, x_TF: Tensor, bias_F: Tensor) -> Tensor:
        rows, columns = x_TF.shape
        y_TF = torch.empty_like(x_TF)
        launch(_forward, (rows, triton.cdiv(columns, BLOCK)), x_TF, bias_F, y_TF, columns, BLOCK, num_warps=4)
        ctx.save_for_backward(x_TF, bias_F)
        return y_TF

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        x_TF, bias_F = ctx.saved_tensors
        rows, columns = x_TF.shape
        dx_TF, programs = torch.empty_like(x_TF), program_count(x_TF.device, rows)
        # One partial sum of the bias gradient per program; torch adds them up, in a fixed order.
        parts = torch.empty(programs, columns, device=x_TF.device)
        grid = (programs, triton.cdiv(columns, BLOCK))
        launch(
            _backward, grid, x_TF, bias_F, gradients[0].contiguous(), dx_TF, parts, rows, columns, BLOCK, num_warps=4
        )
        return dx_TF, parts.sum(0)


def bias_gelu(x_TF: Tensor, bias_F: Tensor) -> Tensor:
    return apply(_BiasGelu, x_TF.contiguous(), bias_F)


AHEAD = (
    Ahead(_forward, "*bf16 *fp32 *bf16 i32", {"BLOCK": BLOCK}, 4),
    Ahead(_backward, "*bf16 *fp32 *bf16 *bf16 *fp32 i32 i32", {"BLOCK": BLOCK}, 4),
)
