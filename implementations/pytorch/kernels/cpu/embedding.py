"""LayerNorm and dropout of the summed embeddings; look-ups and LayerNorm use torch, since they cost little."""

from typing import Any

import numpy as np
import torch
from numba import prange
from torch import Tensor

from implementations.pytorch.kernels import eager
from implementations.pytorch.kernels.cpu.common import (
    CHUNKS,
    as_array,
    draw_row,
    draw_seed,
    draws_per_row,
    is_supported,
    load_float32,
    round_to_stored,
)
from implementations.pytorch.kernels.interface import ThreeTensors, apply, dropout_threshold_and_scale
from podium.core.jit import compiled_parallel

ZERO = np.float32(0.0)


@compiled_parallel
def _drop(x: np.ndarray, seed: np.ndarray, threshold: int, scale: float, y: np.ndarray, draw_count: int) -> None:
    rows, columns = x.shape
    factor, keep_from = np.float32(scale), np.uint16(threshold)
    for chunk in prange(CHUNKS):
        draws = np.empty(draw_count, dtype=np.uint16)
        for row in range(rows * chunk // CHUNKS, rows * (chunk + 1) // CHUNKS):
            draw_row(seed[0], row, draws)
            for column in range(columns):
                keep_scale = factor if draws[column] >= keep_from else ZERO
                y[row, column] = round_to_stored(y, load_float32(x[row, column]) * keep_scale)


class _Dropout(torch.autograd.Function):
    """Saves only the seed; backward applies the same mask to the gradient."""

    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, p: float) -> Tensor:
        ctx.seed, ctx.probability = draw_seed(p), p
        return _dropped(x_TD, ctx.seed, p)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _dropped(gradients[0], ctx.seed, ctx.probability), None


def _dropped(x_TD: Tensor, seed: Tensor, p: float) -> Tensor:
    y_TD = torch.empty_like(x_TD, memory_format=torch.contiguous_format)
    _drop(as_array(x_TD), seed.numpy(), *dropout_threshold_and_scale(p), as_array(y_TD), draws_per_row(x_TD.shape[-1]))
    return y_TD


def embedding_norm(
    ids: ThreeTensors, tables: ThreeTensors, weight_D: Tensor, bias_D: Tensor, probability: float, dtype: torch.dtype
) -> Tensor:
    x_TD = eager.embedding_norm(ids, tables, weight_D, bias_D, 0.0, dtype)
    if not probability:
        return x_TD
    if not is_supported(x_TD):
        return eager.dropout(x_TD, probability)
    return apply(_Dropout, x_TD, probability)
