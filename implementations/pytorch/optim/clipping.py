"""Gradient clipping by norm, without synchronizing with the host; gradients that are not finite stay so."""

import torch
from torch import Tensor


def clip_factor(norm: Tensor, limit: float | Tensor) -> Tensor:
    """What a gradient of this norm (0-d) is multiplied by so that its norm is `limit` at most: 1 or less.

    A norm of infinity gives 0, which makes NaN of the infinite elements, and NaN gives NaN: overflow is still found.
    """
    return (limit / norm).clamp(max=1.0)


def total_norm(norms: list[Tensor]) -> Tensor:
    """The norm of a whole whose parts have these norms (0-d each)."""
    norm: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return norm
