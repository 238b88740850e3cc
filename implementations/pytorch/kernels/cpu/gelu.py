"""GELU(x + bias) in one pass over memory in each direction, by the tanh approximation.

Source: Hendrycks and Gimpel, arXiv 1606.08415. 0.5 · (1 + tanh(z)) is computed as sigmoid(2z), with one exponential.
"""

from typing import Any

import numpy as np
import torch
from numba import prange
from torch import Tensor

from implementations.pytorch.kernels import eager
from implementations.pytorch.kernels.cpu.common import (
    CHUNKS,
    as_array,
    exponential,
    is_supported,
    load_float32,
    round_to_stored,
)
from implementations.pytorch.kernels.interface import apply
from podium.core.jit import compiled_inline, compiled_parallel

SLOPE = np.float32(1.5957691216057308)  # 2 √(2/π): GELU(x) ≈ x · sigmoid(SLOPE · (x + CUBIC x³))
CUBIC = np.float32(0.044715)
ONE, THREE = np.float32(1.0), np.float32(3.0)


@compiled_inline
def _sigmoid(x: Any) -> Any:
    return ONE / (ONE + exponential(-SLOPE * x * (ONE + CUBIC * x * x)))


@compiled_parallel
def _forward(x: np.ndarray, bias: np.ndarray, y: np.ndarray) -> None:
    rows, columns = x.shape
    for row in prange(rows):
        for column in range(columns):
            value = load_float32(x[row, column]) + bias[column]
            y[row, column] = round_to_stored(y, value * _sigmoid(value))


@compiled_parallel
def _backward(x: np.ndarray, bias: np.ndarray, dy: np.ndarray, dx: np.ndarray, bias_sums: np.ndarray) -> None:
    rows, columns = x.shape
    chunks = len(bias_sums)
    # Each chunk of rows has a separate row of `bias_sums`, so that threads do not share sums and the order of additions
    # does not depend on the number of threads.
    for chunk in prange(chunks):
        sums = bias_sums[chunk]
        for row in range(rows * chunk // chunks, rows * (chunk + 1) // chunks):
            for column in range(columns):
                value = load_float32(x[row, column]) + bias[column]
                sigmoid = _sigmoid(value)
                slope = SLOPE * (ONE + THREE * CUBIC * value * value)
                gradient = load_float32(dy[row, column]) * (sigmoid + value * sigmoid * (ONE - sigmoid) * slope)
                dx[row, column] = round_to_stored(dx, gradient)
                sums[column] += gradient


class _BiasGelu(torch.autograd.Function):
    """Saves only its inputs; backward recomputes the sigmoid."""

    @staticmethod
    def forward(ctx: Any, x_TF: Tensor, bias_F: Tensor) -> Tensor:
        y_TF = torch.empty_like(x_TF, memory_format=torch.contiguous_format)
        _forward(as_array(x_TF), as_array(bias_F), as_array(y_TF))
        ctx.save_for_backward(x_TF, bias_F)
        return y_TF

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        x_TF, bias_F = ctx.saved_tensors
        dx_TF = torch.empty_like(x_TF, memory_format=torch.contiguous_format)
        sums = torch.zeros(CHUNKS, len(bias_F))
        _backward(as_array(x_TF), as_array(bias_F), as_array(gradients[0]), as_array(dx_TF), as_array(sums))
        return dx_TF, sums.sum(0)


def bias_gelu(x_TF: Tensor, bias_F: Tensor) -> Tensor:
    if not is_supported(x_TF, bias_F):
        return eager.bias_gelu(x_TF, bias_F)
    return apply(_BiasGelu, x_TF, bias_F)
