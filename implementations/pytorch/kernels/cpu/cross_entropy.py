"""Cross-entropy over a vocabulary without a float32 copy of the logits: one pass forward, one backward."""

from typing import Any

import numpy as np
import torch
from numba import prange
from torch import Tensor

from implementations.pytorch.data.batch import IGNORED
from implementations.pytorch.kernels import eager
from implementations.pytorch.kernels.cpu.common import (
    LEAST_ORDER,
    array,
    exponential,
    is_supported,
    load,
    of_order,
    ordered,
    stored_as,
)
from implementations.pytorch.kernels.interface import apply
from podium.core.jit import compiled_parallel

ZERO = np.float32(0.0)


@compiled_parallel
def _forward(logits: np.ndarray, labels: np.ndarray, log_totals: np.ndarray, losses: np.ndarray) -> None:
    rows, words = logits.shape
    for row in prange(rows):
        order = LEAST_ORDER
        for word in range(words):
            order = max(order, ordered(load(logits[row, word])))
        highest, total = of_order(order), ZERO
        for word in range(words):
            total += exponential(load(logits[row, word]) - highest)
        log_totals[row] = highest + np.log(total)
        label = labels[row]
        losses[row] = ZERO if label == IGNORED else log_totals[row] - load(logits[row, label])


@compiled_parallel
def _backward(
    logits: np.ndarray, labels: np.ndarray, log_totals: np.ndarray, gradient: np.ndarray, dlogits: np.ndarray
) -> None:
    rows, words = logits.shape
    upstream = gradient[0]
    for row in prange(rows):
        label = labels[row]
        if label == IGNORED:
            for word in range(words):
                dlogits[row, word] = stored_as(dlogits, ZERO)
        else:
            log_total = log_totals[row]
            for word in range(words):
                share = exponential(load(logits[row, word]) - log_total)
                dlogits[row, word] = stored_as(dlogits, share * upstream)
            share = exponential(load(logits[row, label]) - log_total)
            dlogits[row, label] = stored_as(dlogits, (share - np.float32(1.0)) * upstream)


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits_MV: Tensor, labels_M: Tensor) -> Tensor:
        log_totals_M, losses_M = torch.empty(2, len(labels_M)).unbind()
        _forward(array(logits_MV), labels_M.numpy(), array(log_totals_M), array(losses_M))
        ctx.save_for_backward(logits_MV, labels_M, log_totals_M)
        return losses_M.sum()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        logits_MV, labels_M, log_totals_M = ctx.saved_tensors
        dlogits_MV = torch.empty_like(logits_MV)
        upstream = array(gradients[0].view(1))
        _backward(array(logits_MV), labels_M.numpy(), array(log_totals_M), upstream, array(dlogits_MV))
        return dlogits_MV, None


def cross_entropy(logits_MV: Tensor, labels_M: Tensor) -> Tensor:
    if not is_supported(logits_MV):
        return eager.cross_entropy(logits_MV, labels_M)
    return apply(_CrossEntropy, logits_MV.contiguous(), labels_M)
