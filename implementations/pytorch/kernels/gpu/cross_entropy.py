"""Cross-entropy over a vocabulary without a float32 copy of the logits: two reads of each, one write of its gradient.

The sum of exponentials is computed over blocks with a running maximum (Milakov and Gimelshein, arXiv 1805.02867).
"""

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from implementations.pytorch.data.batch import IGNORED
from implementations.pytorch.kernels.interface import apply

BLOCK = 4096
WIDEST = 16  # a row's alignment is told up to so many words: the unit in which Triton itself looks at arguments


@triton.jit
def _forward(  # type: ignore[no-untyped-def]
    logits_ptr, labels_ptr, log_totals_ptr, losses_ptr,
    groups, GROUP: tl.constexpr, ignored: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, words = tl.program_id(0), groups * GROUP
    begin = logits_ptr + row.to(tl.int64) * words
    highest = tl.full((), float("-inf"), tl.float32)
    total = tl.zeros((), tl.float32)
    for first in range(0, words, BLOCK):
        at = first + tl.arange(0, BLOCK)
        logits = tl.load(begin + at, mask=at < words, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(highest, tl.max(logits, 0, return_indices=False), propagate_nan=tl.PropagateNan.ALL)
        total = total * tl.exp(highest - higher) + tl.sum(tl.exp(logits - higher), 0)
        highest = higher
    log_total = highest + tl.log(total)
    tl.store(log_totals_ptr + row, log_total)
    label = tl.load(labels_ptr + row)
    counted = label != ignored
    own = tl.load(begin + label, mask=counted, other=0.0).to(tl.float32)
    tl.store(losses_ptr + row, tl.where(counted, log_total - own, 0.0))


@triton.jit
def _backward(  # type: ignore[no-untyped-def]
    logits_ptr, labels_ptr, log_totals_ptr, upstream_ptr, dlogits_ptr,
    groups, GROUP: tl.constexpr, ignored: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, words = tl.program_id(0), groups * GROUP
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < words
    place = row.to(tl.int64) * words + at
    label = tl.load(labels_ptr + row)
    logits = tl.load(logits_ptr + place, mask=inside, other=0.0).to(tl.float32)
    share = tl.exp(logits - tl.load(log_totals_ptr + row))
    gradient = tl.where(at == label, share - 1.0, share) * tl.load(upstream_ptr)
    gradient = tl.where(label != ignored, gradient, 0.0)
    tl.store(dlogits_ptr + place, gradient.to(dlogits_ptr.dtype.element_ty), mask=inside)


def groups_of(words: int) -> tuple[int, int]:
    """How many groups a row is made of, and of how many words each: the most that rows are aligned to.

    Said as a product of which one factor is a constant, a row's length tells Triton its alignment and so how many
    logits a thread may access at once. Of 30522 words that is two, where the bare number would mean one.
    """
    group = math.gcd(words, WIDEST)
    return words // group, group


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits_MV: Tensor, labels_M: Tensor) -> Tensor:
        rows, words = logits_MV.shape
        log_totals_M, losses_M = torch.empty(2, rows, device=logits_MV.device).unbind()
        _forward[(rows,)](logits_MV, labels_M, log_totals_M, losses_M, *groups_of(words), IGNORED, BLOCK, num_warps=8)
        ctx.save_for_backward(logits_MV, labels_M, log_totals_M)
        return losses_M.sum()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        logits_MV, labels_M, log_totals_M = ctx.saved_tensors
        rows, words = logits_MV.shape
        dlogits_MV, grid = torch.empty_like(logits_MV), (rows, triton.cdiv(words, BLOCK))
        _backward[grid](
            logits_MV, labels_M, log_totals_M, gradients[0], dlogits_MV, *groups_of(words), IGNORED, BLOCK, num_warps=8
        )
        return dlogits_MV, None


def cross_entropy(logits_MV: Tensor, labels_M: Tensor) -> Tensor:
    return apply(_CrossEntropy, logits_MV.contiguous(), labels_M)
