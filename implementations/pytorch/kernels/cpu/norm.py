"""Residual LayerNorm with bias and dropout, in one pass over memory in each direction."""

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
from implementations.pytorch.kernels.interface import LAYER_NORM_EPS, apply, dropout_threshold_and_scale
from podium.core.jit import compiled_inline, compiled_parallel

ZERO, ONE = np.float32(0.0), np.float32(1.0)
EPS = np.float32(LAYER_NORM_EPS)


@compiled_inline
def _statistics(values: Any) -> Any:
    """Return mean and 1/√(variance + eps) of a row, both float32."""
    # Two passes over the row, which is in cache: E[x²] − E[x]² would cancel when the mean is large.
    columns = len(values)
    total = ZERO
    for column in range(columns):
        total += values[column]
    mean = total / np.float32(columns)
    squares = ZERO
    for column in range(columns):
        squares += (values[column] - mean) ** 2
    return mean, ONE / np.sqrt(squares / np.float32(columns) + EPS)


@compiled_parallel
def _residual_forward(
    x: np.ndarray,
    update: np.ndarray,
    update_bias: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray,
    seed: np.ndarray,
    threshold: int,
    scale: float,
    y: np.ndarray,
    sums: np.ndarray,
    statistics: np.ndarray,
    draw_count: int,
) -> None:
    rows, columns = x.shape
    factor, keep_from = np.float32(scale), np.uint16(threshold)
    for chunk in prange(CHUNKS):
        draws = np.empty(draw_count, dtype=np.uint16)
        values = np.empty(columns, dtype=np.float32)
        for row in range(rows * chunk // CHUNKS, rows * (chunk + 1) // CHUNKS):
            # The sum is normalised as it is stored, after rounding to bfloat16, so that backward sees the same values.
            if threshold:
                draw_row(seed[0], row, draws)
                for column in range(columns):
                    keep_scale = factor if draws[column] >= keep_from else ZERO
                    value = load_float32(x[row, column]) + keep_scale * (
                        load_float32(update[row, column]) + update_bias[column]
                    )
                    sums[row, column] = round_to_stored(sums, value)
                    values[column] = load_float32(sums[row, column])
            else:
                for column in range(columns):
                    value = load_float32(x[row, column]) + load_float32(update[row, column]) + update_bias[column]
                    sums[row, column] = round_to_stored(sums, value)
                    values[column] = load_float32(sums[row, column])
            mean, inverse_std = _statistics(values)
            statistics[row, 0], statistics[row, 1] = mean, inverse_std
            for column in range(columns):
                normalised_value = (values[column] - mean) * inverse_std
                y[row, column] = round_to_stored(y, normalised_value * weight[column] + bias[column])


@compiled_parallel
def _residual_backward(
    dy: np.ndarray,
    sums: np.ndarray,
    statistics: np.ndarray,
    weight: np.ndarray,
    seed: np.ndarray,
    threshold: int,
    scale: float,
    dx: np.ndarray,
    dupdate: np.ndarray,
    parameter_sums: np.ndarray,
    draw_count: int,
) -> None:
    rows, columns = dy.shape
    factor, keep_from, count = np.float32(scale), np.uint16(threshold), np.float32(columns)
    for chunk in prange(CHUNKS):
        draws = np.empty(draw_count, dtype=np.uint16)
        normalised, scaled = np.empty(columns, dtype=np.float32), np.empty(columns, dtype=np.float32)
        # Per chunk, so that threads do not share sums and the order of additions does not depend on their number.
        dupdate_bias, dweight, dbias = parameter_sums[chunk]
        for row in range(rows * chunk // CHUNKS, rows * (chunk + 1) // CHUNKS):
            mean, inverse_std = statistics[row, 0], statistics[row, 1]
            total, product = ZERO, ZERO
            for column in range(columns):
                normalised[column] = (load_float32(sums[row, column]) - mean) * inverse_std
                scaled[column] = load_float32(dy[row, column])
            for column in range(columns):
                dweight[column] += scaled[column] * normalised[column]
                dbias[column] += scaled[column]
            for column in range(columns):
                scaled[column] *= weight[column]
                total += scaled[column]
                product += scaled[column] * normalised[column]
            # dx = (g − mean(g) − x̂ · mean(g · x̂)) / std, with g = dy · weight
            total, product = total / count, product / count
            if threshold:
                draw_row(seed[0], row, draws)
                for column in range(columns):
                    scaled[column] = inverse_std * (scaled[column] - total - normalised[column] * product)
                    dx[row, column] = round_to_stored(dx, scaled[column])
                for column in range(columns):
                    scaled[column] *= factor if draws[column] >= keep_from else ZERO
                    dupdate[row, column] = round_to_stored(dupdate, scaled[column])
            else:
                for column in range(columns):
                    scaled[column] = inverse_std * (scaled[column] - total - normalised[column] * product)
                    dx[row, column] = round_to_stored(dx, scaled[column])
                    dupdate[row, column] = dx[row, column]
            for column in range(columns):
                dupdate_bias[column] += scaled[column]


class _ResidualNorm(torch.autograd.Function):
    """Saves the sum that is normalised, in the dtype of x, and each row's mean and 1/std (float32 [T, 2])."""

    @staticmethod
    def forward(
        ctx: Any, x_TD: Tensor, update_TD: Tensor, update_bias_D: Tensor, weight_D: Tensor, bias_D: Tensor, p: float
    ) -> Tensor:
        (rows, columns), seed = x_TD.shape, draw_seed(p)
        sums_TD, y_TD, statistics_T2 = torch.empty_like(x_TD), torch.empty_like(x_TD), torch.empty(rows, 2)
        _residual_forward(
            as_array(x_TD),
            as_array(update_TD),
            as_array(update_bias_D),
            as_array(weight_D),
            as_array(bias_D),
            seed.numpy(),
            *dropout_threshold_and_scale(p),
            as_array(y_TD),
            as_array(sums_TD),
            as_array(statistics_T2),
            draws_per_row(columns),
        )
        ctx.save_for_backward(sums_TD, statistics_T2, weight_D, seed)
        ctx.probability = p
        return y_TD

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        sums_TD, statistics_T2, weight_D, seed = ctx.saved_tensors
        columns = len(weight_D)
        dx_TD, dupdate_TD = torch.empty_like(sums_TD), torch.empty_like(sums_TD)
        parameter_sums = torch.zeros(CHUNKS, 3, columns)
        _residual_backward(
            as_array(gradients[0]),
            as_array(sums_TD),
            as_array(statistics_T2),
            as_array(weight_D),
            seed.numpy(),
            *dropout_threshold_and_scale(ctx.probability),
            as_array(dx_TD),
            as_array(dupdate_TD),
            as_array(parameter_sums),
            draws_per_row(columns),
        )
        return dx_TD, dupdate_TD, *parameter_sums.sum(0).unbind(), None


def residual_norm(
    x_TD: Tensor, update_TD: Tensor, update_bias_D: Tensor, weight_D: Tensor, bias_D: Tensor, probability: float
) -> Tensor:
    if not is_supported(x_TD, update_TD, update_bias_D, weight_D, bias_D) or x_TD.dtype != update_TD.dtype:
        return eager.residual_norm(x_TD, update_TD, update_bias_D, weight_D, bias_D, probability)
    return apply(_ResidualNorm, x_TD.contiguous(), update_TD.contiguous(), update_bias_D, weight_D, bias_D, probability)
