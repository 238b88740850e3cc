"""Cross-entropy over a vocabulary without a float32 copy of the logits [M, V]."""

from typing import Any

import numpy as np
import torch
from numba import prange
from torch import Tensor

from implementations.pytorch.data.batch import IGNORED
from implementations.pytorch.kernels import eager
from implementations.pytorch.kernels.cpu.common import (
    MIN_SORTABLE_INT,
    as_array,
    exponential,
    from_sortable_int,
    is_supported,
    load_float32,
    round_to_stored,
    sortable_int,
)
from implementations.pytorch.kernels.interface import apply
from podium.core.jit import compiled_parallel

ZERO = np.float32(0.0)


@compiled_parallel
def _forward(logits: np.ndarray, labels: np.ndarray, log_totals: np.ndarray, losses: np.ndarray) -> None:
    rows, vocabulary_size = logits.shape
    for row in prange(rows):
        order = MIN_SORTABLE_INT
        for token in range(vocabulary_size):
            order = max(order, sortable_int(load_float32(logits[row, token])))
        # log Σ exp(x) = max + log Σ exp(x − max): the exponentials cannot overflow. Sums are float32.
        row_max, total = from_sortable_int(order), ZERO
        for token in range(vocabulary_size):
            total += exponential(load_float32(logits[row, token]) - row_max)
        log_totals[row] = row_max + np.log(total)
        label = labels[row]
        losses[row] = ZERO if label == IGNORED else log_totals[row] - load_float32(logits[row, label])


@compiled_parallel
def _backward(
    logits: np.ndarray, labels: np.ndarray, log_totals: np.ndarray, gradient: np.ndarray, dlogits: np.ndarray
) -> None:
    rows, vocabulary_size = logits.shape
    upstream = gradient[0]
    for row in prange(rows):
        label = labels[row]
        if label == IGNORED:
            for token in range(vocabulary_size):
                dlogits[row, token] = round_to_stored(dlogits, ZERO)
        else:
            log_total = log_totals[row]
            for token in range(vocabulary_size):
                probability = exponential(load_float32(logits[row, token]) - log_total)
                dlogits[row, token] = round_to_stored(dlogits, probability * upstream)
            probability = exponential(load_float32(logits[row, label]) - log_total)
            dlogits[row, label] = round_to_stored(dlogits, (probability - np.float32(1.0)) * upstream)


class _CrossEntropy(torch.autograd.Function):
    """Saves the logits and one log-sum-exp per row, from which backward recomputes the probabilities."""

    @staticmethod
    def forward(ctx: Any, logits_MV: Tensor, labels_M: Tensor) -> Tensor:
        log_totals_M, losses_M = torch.empty(2, len(labels_M)).unbind()
        _forward(as_array(logits_MV), labels_M.numpy(), as_array(log_totals_M), as_array(losses_M))
        ctx.save_for_backward(logits_MV, labels_M, log_totals_M)
        return losses_M.sum()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        logits_MV, labels_M, log_totals_M = ctx.saved_tensors
        dlogits_MV = torch.empty_like(logits_MV)
        upstream = as_array(gradients[0].view(1))
        _backward(as_array(logits_MV), labels_M.numpy(), as_array(log_totals_M), upstream, as_array(dlogits_MV))
        return dlogits_MV, None


def cross_entropy(logits_MV: Tensor, labels_M: Tensor) -> Tensor:
    if not is_supported(logits_MV):
        return eager.cross_entropy(logits_MV, labels_M)
    return apply(_CrossEntropy, logits_MV.contiguous(), labels_M)
