"""Dropout whose random numbers do not cost more than the layer they serve.

On a CPU, torch draws one Bernoulli number at a time from a serial generator and multiplies by a mask of another type,
which takes longer than the matrix products of a small layer. Here one 64-bit draw serves four elements: each is
dropped where its 16 bits, read as a signed number, fall below a threshold, and elements of 16 bits are multiplied by
the mask as integers. The drop probability is rounded to 1/65536 and the scale 1/(1-p) is that of the rounded p, so that
the expectation is exact. Draws come from torch's default generator: the same seed gives the same mask.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

STEPS = 65536
"""Drop probabilities are multiples of one over this."""


def keep_mask(count: int, probability: float) -> Tensor:
    """A mask [count] on the CPU, int16: 0 with `probability`, else 1."""
    draws = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(2**63), None).view(torch.int16)[:count]
    threshold = round(probability * STEPS) - STEPS // 2
    return torch.ge(draws, threshold, out=torch.empty(count, dtype=torch.int16))


def _masked_scale(x: Tensor, mask: Tensor, scale: float) -> Tensor:
    if x.element_size() == mask.element_size():
        return (x.view(mask.dtype) * mask).view(x.dtype).mul_(scale)
    return mask.to(x.dtype).mul_(scale).mul_(x)


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, probability: float) -> Tensor:
        mask = keep_mask(x.numel(), probability).view(x.shape)
        ctx.save_for_backward(mask)
        ctx.scale = STEPS / (STEPS - round(probability * STEPS))
        return _masked_scale(x, mask, ctx.scale)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (mask,) = ctx.saved_tensors
        return _masked_scale(gradients[0], mask, ctx.scale), None


def dropout(x: Tensor, probability: float, training: bool) -> Tensor:
    """Zero elements of x with `probability` and scale the rest by 1/(1-p); the identity outside training."""
    if not training or probability == 0.0:
        return x
    if x.device.type != "cpu":
        return F.dropout(x, probability)
    dropped: Tensor = _Dropout.apply(x, probability)  # type: ignore[no-untyped-call]
    return dropped
