"""Cross-entropy over a vocabulary without a float32 copy of the logits: each is read twice, its gradient written once.

Source: online softmax with a running maximum (Milakov and Gimelshein, arXiv 1805.02867).
"""

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from implementations.pytorch.data.batch import IGNORED
from implementations.pytorch.kernels.gpu.ahead import Ahead
from implementations.pytorch.kernels.gpu.common import launch
from implementations.pytorch.kernels.interface import apply

BLOCK = 4096  # logits per iteration: sixteen for each thread of eight warps
MAX_ALIGNMENT = 16  # largest divisor, in elements, that Triton distinguishes when it specialises on an argument


@triton.jit
def _forward(  # type: ignore[no-untyped-def]
    logits_ptr, labels_ptr, log_totals_ptr, losses_ptr,
    groups, GROUP: tl.constexpr, ignored: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, vocabulary_size = tl.program_id(0), groups * GROUP
    row_ptr = logits_ptr + row.to(tl.int64) * vocabulary_size
    row_max = tl.full((), float("-inf"), tl.float32)
    total = tl.zeros((), tl.float32)
    for first in range(0, vocabulary_size, BLOCK):
        cols = first + tl.arange(0, BLOCK)
        logits = tl.load(row_ptr + cols, mask=cols < vocabulary_size, other=float("-inf")).to(tl.float32)
        # NaN is propagated, so that a NaN logit makes the loss NaN instead of being ignored by the maximum.
        new_max = tl.maximum(row_max, tl.max(logits, 0, return_indices=False), propagate_nan=tl.PropagateNan.ALL)
        # The sum so far is rescaled to the new maximum; exponentials never exceed 1. In the first block it is
        # 0 · exp(-inf) = 0.
        total = total * tl.exp(row_max - new_max) + tl.sum(tl.exp(logits - new_max), 0)
        row_max = new_max
    log_total = row_max + tl.log(total)
    tl.store(log_totals_ptr + row, log_total)
    label = tl.load(labels_ptr + row)
    counted = label != ignored
    own = tl.load(row_ptr + label, mask=counted, other=0.0).to(tl.float32)
    tl.store(losses_ptr + row, tl.where(counted, log_total - own, 0.0))


@triton.jit
def _backward(  # type: ignore[no-untyped-def]
    logits_ptr, labels_ptr, log_totals_ptr, upstream_ptr, dlogits_ptr,
    groups, GROUP: tl.constexpr, ignored: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, vocabulary_size = tl.program_id(0), groups * GROUP
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = cols < vocabulary_size
    offsets = row.to(tl.int64) * vocabulary_size + cols
    label = tl.load(labels_ptr + row)
    logits = tl.load(logits_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    probability = tl.exp(logits - tl.load(log_totals_ptr + row))
    gradient = tl.where(cols == label, probability - 1.0, probability) * tl.load(upstream_ptr)
    gradient = tl.where(label != ignored, gradient, 0.0)
    tl.store(dlogits_ptr + offsets, gradient.to(dlogits_ptr.dtype.element_ty), mask=mask)


def split_row(vocabulary_size: int) -> tuple[int, int]:
    """Return the vocabulary size as a product: number of groups, and elements in a group (a power of two up to 16)."""
    # The second factor is a compile-time constant, from which Triton derives the alignment of rows and so the width of
    # vectorised accesses. For a vocabulary of 30522 that is two elements; the plain number would give one.
    group = math.gcd(vocabulary_size, MAX_ALIGNMENT)
    return vocabulary_size // group, group


class _CrossEntropy(torch.autograd.Function):
    """Saves the logits and one log-sum-exp per row (float32), from which backward recomputes the probabilities."""

    @staticmethod
    def forward(ctx: Any, logits_MV: Tensor, labels_M: Tensor) -> Tensor:
        rows, vocabulary_size = logits_MV.shape
        log_totals_M, losses_M = torch.empty(2, rows, device=logits_MV.device).unbind()
        launch(
            _forward,
            (rows,),
            logits_MV,
            labels_M,
            log_totals_M,
            losses_M,
            *split_row(vocabulary_size),
            IGNORED,
            BLOCK,
            num_warps=8,
        )
        ctx.save_for_backward(logits_MV, labels_M, log_totals_M)
        return losses_M.sum()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        logits_MV, labels_M, log_totals_M = ctx.saved_tensors
        rows, vocabulary_size = logits_MV.shape
        dlogits_MV, grid = torch.empty_like(logits_MV), (rows, triton.cdiv(vocabulary_size, BLOCK))
        launch(
            _backward,
            grid,
            logits_MV,
            labels_M,
            log_totals_M,
            gradients[0],
            dlogits_MV,
            *split_row(vocabulary_size),
            IGNORED,
            BLOCK,
            num_warps=8,
        )
        return dlogits_MV, None


def cross_entropy(logits_MV: Tensor, labels_M: Tensor) -> Tensor:
    return apply(_CrossEntropy, logits_MV.contiguous(), labels_M)


# A vocabulary of 30,522, padded to 30,528 = 1,908 · 16.
_CONSTANTS = {"GROUP": 16, "ignored": IGNORED, "BLOCK": BLOCK}
AHEAD = (
    Ahead(_forward, "*bf16 *i64 *fp32 *fp32 i32", _CONSTANTS, 8, narrow_accesses=1),  # the label's logit
    Ahead(_backward, "*bf16 *i64 *fp32 *fp32 *bf16 i32", _CONSTANTS, 8),
)
