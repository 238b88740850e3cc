"""LayerNorm with the dropout, bias and residual around it, in one pass over memory in each direction."""

from typing import Any

import numpy as np
import torch
from numba import prange
from torch import Tensor

from implementations.pytorch.kernels import eager
from implementations.pytorch.kernels.cpu.common import (
    CHUNKS,
    array,
    draw_row,
    draw_seed,
    is_supported,
    load,
    row_draws,
    stored_as,
)
from implementations.pytorch.kernels.interface import LAYER_NORM_EPS, apply, threshold_and_scale
from podium.core.jit import compiled_inline, compiled_parallel

ZERO, ONE = np.float32(0.0), np.float32(1.0)
EPS = np.float32(LAYER_NORM_EPS)


@compiled_inline
def _statistics(values: Any) -> Any:
    """Mean and 1/√(variance + eps) of a row."""
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
    draws: int,
) -> None:
    rows, columns = x.shape
    factor, least = np.float32(scale), np.uint16(threshold)
    for chunk in prange(CHUNKS):
        numbers = np.empty(draws, dtype=np.uint16)
        values = np.empty(columns, dtype=np.float32)
        for row in range(rows * chunk // CHUNKS, rows * (chunk + 1) // CHUNKS):
            if threshold:
                draw_row(seed[0], row, numbers)
                for column in range(columns):
                    kept = factor if numbers[column] >= least else ZERO
                    value = load(x[row, column]) + kept * (load(update[row, column]) + update_bias[column])
                    sums[row, column] = stored_as(sums, value)
                    values[column] = load(sums[row, column])
            else:
                for column in range(columns):
                    value = load(x[row, column]) + load(update[row, column]) + update_bias[column]
                    sums[row, column] = stored_as(sums, value)
                    values[column] = load(sums[row, column])
            mean, deviation = _statistics(values)
            statistics[row, 0], statistics[row, 1] = mean, deviation
            for column in range(columns):
                normal = (values[column] - mean) * deviation
                y[row, column] = stored_as(y, normal * weight[column] + bias[column])


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
    draws: int,
) -> None:
    rows, columns = dy.shape
    factor, least, count = np.float32(scale), np.uint16(threshold), np.float32(columns)
    for chunk in prange(CHUNKS):
        numbers = np.empty(draws, dtype=np.uint16)
        normals, scaled = np.empty(columns, dtype=np.float32), np.empty(columns, dtype=np.float32)
        of_update_bias, of_weight, of_bias = parameter_sums[chunk]
        for row in range(rows * chunk // CHUNKS, rows * (chunk + 1) // CHUNKS):
            mean, deviation = statistics[row, 0], statistics[row, 1]
            total, product = ZERO, ZERO
            for column in range(columns):
                normals[column] = (load(sums[row, column]) - mean) * deviation
                scaled[column] = load(dy[row, column])
            for column in range(columns):
                of_weight[column] += scaled[column] * normals[column]
                of_bias[column] += scaled[column]
            for column in range(columns):
                scaled[column] *= weight[column]
                total += scaled[column]
                product += scaled[column] * normals[column]
            total, product = total / count, product / count
            if threshold:
                draw_row(seed[0], row, numbers)
                for column in range(columns):
                    scaled[column] = deviation * (scaled[column] - total - normals[column] * product)
                    dx[row, column] = stored_as(dx, scaled[column])
                for column in range(columns):
                    scaled[column] *= factor if numbers[column] >= least else ZERO
                    dupdate[row, column] = stored_as(dupdate, scaled[column])
            else:
                for column in range(columns):
                    scaled[column] = deviation * (scaled[column] - total - normals[column] * product)
                    dx[row, column] = stored_as(dx, scaled[column])
                    dupdate[row, column] = dx[row, column]
            for column in range(columns):
                of_update_bias[column] += scaled[column]


class _ResidualNorm(torch.autograd.Function):
    """Keeps for backward what is normalised, in the type of x, and each row's statistics."""

    @staticmethod
    def forward(
        ctx: Any, x_TD: Tensor, update_TD: Tensor, update_bias_D: Tensor, weight_D: Tensor, bias_D: Tensor, p: float
    ) -> Tensor:
        (rows, columns), seed = x_TD.shape, draw_seed(p)
        sums_TD, y_TD, statistics_T2 = torch.empty_like(x_TD), torch.empty_like(x_TD), torch.empty(rows, 2)
        _residual_forward(
            array(x_TD),
            array(update_TD),
            array(update_bias_D),
            array(weight_D),
            array(bias_D),
            seed.numpy(),
            *threshold_and_scale(p),
            array(y_TD),
            array(sums_TD),
            array(statistics_T2),
            row_draws(columns),
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
            array(gradients[0]),
            array(sums_TD),
            array(statistics_T2),
            array(weight_D),
            seed.numpy(),
            *threshold_and_scale(ctx.probability),
            array(dx_TD),
            array(dupdate_TD),
            array(parameter_sums),
            row_draws(columns),
        )
        return dx_TD, dupdate_TD, *parameter_sums.sum(0).unbind(), None


def residual_norm(
    x_TD: Tensor, update_TD: Tensor, update_bias_D: Tensor, weight_D: Tensor, bias_D: Tensor, probability: float
) -> Tensor:
    if not is_supported(x_TD, update_TD, update_bias_D, weight_D, bias_D) or x_TD.dtype != update_TD.dtype:
        return eager.residual_norm(x_TD, update_TD, update_bias_D, weight_D, bias_D, probability)
    return apply(_ResidualNorm, x_TD.contiguous(), update_TD.contiguous(), update_bias_D, weight_D, bias_D, probability)
