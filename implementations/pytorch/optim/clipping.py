"""Gradient clipping by norm without host synchronisation; non-finite gradients stay non-finite."""

import torch
from torch import Tensor


def clip_factor(norm: Tensor, limit: float | Tensor) -> Tensor:
    """Return the factor (0-d, at most 1) that scales a gradient of this norm (0-d) to a norm of at most `limit`."""
    # No eps is added to the norm: a norm of 0 gives infinity, which is clamped to 1. A norm of infinity gives 0, and
    # 0 · inf is NaN, so the loss scaler still detects the overflow after clipping.
    return (limit / norm).clamp(max=1.0)


def total_norm(norms: list[Tensor]) -> Tensor:
    """Return the 2-norm (0-d) of a vector whose parts have the given 2-norms (0-d each)."""
    norm: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return norm
