"""Softmax and dropout of attention scores in one pass; keys beyond a sequence's end are neither read nor summed."""

from typing import Any

import numpy as np
import torch
from numba import prange
from torch import Tensor

from implementations.pytorch.kernels import eager
from implementations.pytorch.kernels.cpu.common import (
    LEAST_ORDER,
    array,
    draw_row,
    draw_seed,
    exponential,
    is_supported,
    load,
    of_order,
    ordered,
    row_draws,
    stored_as,
)
from implementations.pytorch.kernels.interface import apply, threshold_and_scale
from podium.core.jit import compiled_parallel

ZERO, ONE = np.float32(0.0), np.float32(1.0)


@compiled_parallel
def _forward(
    scores: np.ndarray,
    key_counts: np.ndarray,
    seed: np.ndarray,
    threshold: int,
    scale: float,
    shares: np.ndarray,
    dropped: np.ndarray,
    draws: int,
) -> None:
    heads, rows, queries, keys = scores.shape
    factor, least = np.float32(scale), np.uint16(threshold)
    for line in prange(heads * rows):
        head, row = line // rows, line % rows
        numbers = np.empty(draws, dtype=np.uint16)
        values = np.empty(keys, dtype=np.float32)
        count = key_counts[row]
        for query in range(queries):
            order = LEAST_ORDER
            for key in range(count):
                values[key] = load(scores[head, row, query, key])
                order = max(order, ordered(values[key]))
            highest, total = of_order(order), ZERO
            for key in range(count):
                values[key] = exponential(values[key] - highest)
                total += values[key]
            share = ONE / total
            for key in range(count):
                shares[head, row, query, key] = stored_as(shares, values[key] * share)
            if threshold:
                draw_row(seed[0], line * queries + query, numbers)
                for key in range(count):
                    kept = factor * share if numbers[key] >= least else ZERO
                    dropped[head, row, query, key] = stored_as(dropped, values[key] * kept)
                for key in range(count, keys):
                    dropped[head, row, query, key] = stored_as(dropped, ZERO)
            for key in range(count, keys):
                shares[head, row, query, key] = stored_as(shares, ZERO)


@compiled_parallel
def _backward(
    shares: np.ndarray,
    gradients: np.ndarray,
    key_counts: np.ndarray,
    seed: np.ndarray,
    threshold: int,
    scale: float,
    dscores: np.ndarray,
    draws: int,
) -> None:
    heads, rows, queries, keys = shares.shape
    factor, least = np.float32(scale), np.uint16(threshold)
    for line in prange(heads * rows):
        head, row = line // rows, line % rows
        numbers = np.empty(draws, dtype=np.uint16)
        products = np.empty(keys, dtype=np.float32)
        count = key_counts[row]
        for query in range(queries):
            total = ZERO
            if threshold:
                draw_row(seed[0], line * queries + query, numbers)
                for key in range(count):
                    kept = factor if numbers[key] >= least else ZERO
                    products[key] = load(shares[head, row, query, key]) * load(gradients[head, row, query, key]) * kept
                    total += products[key]
            else:
                for key in range(count):
                    products[key] = load(shares[head, row, query, key]) * load(gradients[head, row, query, key])
                    total += products[key]
            for key in range(count):
                dscore = products[key] - load(shares[head, row, query, key]) * total
                dscores[head, row, query, key] = stored_as(dscores, dscore)
            for key in range(count, keys):
                dscores[head, row, query, key] = stored_as(dscores, ZERO)


class _AttentionWeights(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores_HRWW: Tensor, key_counts_R: Tensor, p: float) -> Tensor:
        seed, shares_HRWW = draw_seed(p), torch.empty_like(scores_HRWW)
        threshold, scale = threshold_and_scale(p)
        dropped_HRWW = torch.empty_like(scores_HRWW) if threshold else shares_HRWW
        draws = row_draws(scores_HRWW.shape[-1])
        rest = (threshold, scale, array(shares_HRWW), array(dropped_HRWW), draws)
        _forward(array(scores_HRWW), key_counts_R.numpy(), seed.numpy(), *rest)
        ctx.save_for_backward(shares_HRWW, key_counts_R, seed)
        ctx.probability = p
        return dropped_HRWW

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        shares_HRWW, key_counts_R, seed = ctx.saved_tensors
        dscores_HRWW = torch.empty_like(shares_HRWW)
        rest = (*threshold_and_scale(ctx.probability), array(dscores_HRWW), row_draws(shares_HRWW.shape[-1]))
        _backward(array(shares_HRWW), array(gradients[0]), key_counts_R.numpy(), seed.numpy(), *rest)
        return dscores_HRWW, None, None


def attention_weights(scores_HRWW: Tensor, key_counts_R: Tensor, probability: float) -> Tensor:
    if not is_supported(scores_HRWW):
        return eager.attention_weights(scores_HRWW, key_counts_R, probability)
    return apply(_AttentionWeights, scores_HRWW.contiguous(), key_counts_R, probability)
