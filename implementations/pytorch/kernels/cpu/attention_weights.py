"""Softmax and dropout of attention scores in one pass over memory; keys beyond a sequence's end get weight 0."""

from typing import Any

import numpy as np
import torch
from numba import prange
from torch import Tensor

from implementations.pytorch.kernels import eager
from implementations.pytorch.kernels.cpu.common import (
    MIN_SORTABLE_INT,
    as_array,
    draw_row,
    draw_seed,
    draws_per_row,
    exponential,
    from_sortable_int,
    is_supported,
    load_float32,
    round_to_stored,
    sortable_int,
)
from implementations.pytorch.kernels.interface import apply, dropout_threshold_and_scale
from podium.core.jit import compiled_parallel

ZERO, ONE = np.float32(0.0), np.float32(1.0)


@compiled_parallel
def _forward(
    scores: np.ndarray,
    key_counts: np.ndarray,
    seed: np.ndarray,
    threshold: int,
    scale: float,
    probabilities: np.ndarray,
    dropped: np.ndarray,
    draw_count: int,
) -> None:
    heads, rows, queries, keys = scores.shape
    factor, keep_from = np.float32(scale), np.uint16(threshold)
    for plane in prange(heads * rows):
        head, row = plane // rows, plane % rows
        draws = np.empty(draw_count, dtype=np.uint16)
        values = np.empty(keys, dtype=np.float32)
        count = key_counts[row]
        for query in range(queries):
            order = MIN_SORTABLE_INT
            for key in range(count):
                values[key] = load_float32(scores[head, row, query, key])
                order = max(order, sortable_int(values[key]))
            # Subtracting the maximum keeps the exponentials at 1 or below: no overflow for any scores.
            row_max, total = from_sortable_int(order), ZERO
            for key in range(count):
                values[key] = exponential(values[key] - row_max)
                total += values[key]
            inverse_total = ONE / total  # at least one exponential is 1, so this is no division by 0
            for key in range(count):
                probabilities[head, row, query, key] = round_to_stored(probabilities, values[key] * inverse_total)
            if threshold:
                draw_row(seed[0], plane * queries + query, draws)
                for key in range(count):
                    keep_scale = factor * inverse_total if draws[key] >= keep_from else ZERO
                    dropped[head, row, query, key] = round_to_stored(dropped, values[key] * keep_scale)
                for key in range(count, keys):
                    dropped[head, row, query, key] = round_to_stored(dropped, ZERO)
            for key in range(count, keys):
                probabilities[head, row, query, key] = round_to_stored(probabilities, ZERO)


@compiled_parallel
def _backward(
    probabilities: np.ndarray,
    gradients: np.ndarray,
    key_counts: np.ndarray,
    seed: np.ndarray,
    threshold: int,
    scale: float,
    dscores: np.ndarray,
    draw_count: int,
) -> None:
    heads, rows, queries, keys = probabilities.shape
    factor, keep_from = np.float32(scale), np.uint16(threshold)
    for plane in prange(heads * rows):
        head, row = plane // rows, plane % rows
        draws = np.empty(draw_count, dtype=np.uint16)
        products = np.empty(keys, dtype=np.float32)
        count = key_counts[row]
        for query in range(queries):
            # Gradient of softmax: p · (dp − Σ p · dp), where dp includes the dropout mask, drawn again from the seed.
            total = ZERO
            if threshold:
                draw_row(seed[0], plane * queries + query, draws)
                for key in range(count):
                    keep_scale = factor if draws[key] >= keep_from else ZERO
                    products[key] = (
                        load_float32(probabilities[head, row, query, key])
                        * load_float32(gradients[head, row, query, key])
                        * keep_scale
                    )
                    total += products[key]
            else:
                for key in range(count):
                    products[key] = load_float32(probabilities[head, row, query, key]) * load_float32(
                        gradients[head, row, query, key]
                    )
                    total += products[key]
            for key in range(count):
                dscore = products[key] - load_float32(probabilities[head, row, query, key]) * total
                dscores[head, row, query, key] = round_to_stored(dscores, dscore)
            for key in range(count, keys):
                dscores[head, row, query, key] = round_to_stored(dscores, ZERO)


class _AttentionWeights(torch.autograd.Function):
    """Saves the probabilities before dropout and the seed; the mask is recomputed."""

    @staticmethod
    def forward(ctx: Any, scores_HRWW: Tensor, key_counts_R: Tensor, p: float) -> Tensor:
        seed, shares_HRWW = draw_seed(p), torch.empty_like(scores_HRWW)
        threshold, scale = dropout_threshold_and_scale(p)
        dropped_HRWW = torch.empty_like(scores_HRWW) if threshold else shares_HRWW
        draw_count = draws_per_row(scores_HRWW.shape[-1])
        rest = (threshold, scale, as_array(shares_HRWW), as_array(dropped_HRWW), draw_count)
        _forward(as_array(scores_HRWW), key_counts_R.numpy(), seed.numpy(), *rest)
        ctx.save_for_backward(shares_HRWW, key_counts_R, seed)
        ctx.probability = p
        return dropped_HRWW

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        shares_HRWW, key_counts_R, seed = ctx.saved_tensors
        dscores_HRWW = torch.empty_like(shares_HRWW)
        rest = (
            *dropout_threshold_and_scale(ctx.probability),
            as_array(dscores_HRWW),
            draws_per_row(shares_HRWW.shape[-1]),
        )
        _backward(as_array(shares_HRWW), as_array(gradients[0]), key_counts_R.numpy(), seed.numpy(), *rest)
        return dscores_HRWW, None, None


def attention_weights(scores_HRWW: Tensor, key_counts_R: Tensor, probability: float) -> Tensor:
    if not is_supported(scores_HRWW):
        return eager.attention_weights(scores_HRWW, key_counts_R, probability)
    return apply(_AttentionWeights, scores_HRWW.contiguous(), key_counts_R, probability)
