"""Dropout whose random numbers do not cost more than the layer they serve.

On a CPU, torch draws one Bernoulli number at a time from a serial generator, which takes longer than the matrix
products of a small layer. Here one 64-bit draw serves four elements: each is dropped where its 16 bits, read as a
signed number, fall below a threshold. The drop probability is rounded to 1/65536 and the scale 1/(1-p) is that of the
rounded p, so that the expectation is exact. Draws come from torch's default generator: the same seed gives the same
mask.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def keep_mask(count: int, probability: float) -> Tensor:
    """A bool mask [count] on the CPU, False with `probability`."""
    draws = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    threshold = round(probability * 65536) - 32768
    return draws.view(torch.int16)[:count] >= threshold


class _MaskedScale(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, probability: float) -> Tensor:
        mask = keep_mask(x.numel(), probability).view(x.shape)
        ctx.save_for_backward(mask)
        ctx.scale = 65536 / (65536 - round(probability * 65536))
        return (x * mask).mul_(ctx.scale)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (mask,) = ctx.saved_tensors
        return (gradients[0] * mask).mul_(ctx.scale), None


def dropout(x: Tensor, probability: float, training: bool) -> Tensor:
    """Zero elements of x with `probability` and scale the rest by 1/(1-p); the identity outside training."""
    if not training or probability == 0.0:
        return x
    if x.device.type != "cpu":
        return F.dropout(x, probability)
    dropped: Tensor = _MaskedScale.apply(x, probability)  # type: ignore[no-untyped-call]
    return dropped
