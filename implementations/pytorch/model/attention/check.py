"""Numerical check of an attention backend on the device that it is to run on."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from implementations.pytorch.data.batch import RaggedBatch, collate
from implementations.pytorch.data.synthetic import synthetic_sample
from implementations.pytorch.kernels.eager import EAGER
from implementations.pytorch.model.attention.dispatch import attend

LENGTHS = (61, 40, 1)
HEADS, HEAD_SIZE = 2, 64  # the head size of BERT's large and base size
PROBABILITY = 0.5


@dataclass(frozen=True)
class Deviations:
    """Deviations of a backend from padded attention in float32, and of its dropout from what must hold exactly."""

    context: float  # relative, in the Frobenius norm
    gradient: float
    kept: float  # of the mean of kept and scaled weights from 1
    mask: float  # 0 if forward and backward have the same dropout mask, about 1 if not; not a number without dropout
    finite: bool  # whether all results are finite, those of spare slots included
    spare: float  # largest gradient of a spare slot, whose upstream gradient is zero

    def describe_failure(self, tolerance: float = 0.02) -> str | None:
        """Return the first deviation above its tolerance as text; None if there is none."""
        for name, value, limit in (
            ("some results are not finite", float(not self.finite), 0.5),
            ("the context deviates from padded attention in float32", self.context, tolerance),
            ("the gradient deviates from padded attention in float32", self.gradient, tolerance),
            ("the gradient of spare slots is not zero", self.spare, 0.0),
            ("dropout does not keep the mean of the attention weights", self.kept, 0.1),
            ("there is no dropout, or forward and backward have different masks", self.mask, 0.1),
        ):
            if not value <= limit:
                return f"{name} ({value:.3g}, allowed are at most {limit:g})"
        return None


def example_batch(lengths: tuple[int, ...] = LENGTHS, shape_step: int = 64) -> RaggedBatch:
    """Return a batch of random samples with one sequence without tokens, and with spare slots after the last one."""
    rng = np.random.default_rng(0)
    samples = [synthetic_sample(length, int(length > 1), 100, rng) for length in lengths]
    slots = shape_step * (sum(lengths) // shape_step + 1)  # more than the tokens need, whatever the lengths are
    return collate(samples, None, slots, sequence_slots=len(lengths) + 1)


def measure_deviations(
    backend: str,
    device: torch.device,
    dtype: torch.dtype,
    batch: RaggedBatch | None = None,
    heads: int = HEADS,
    head_size: int = HEAD_SIZE,
) -> Deviations:
    """Run forward and backward of a backend and compare with padded attention in float32 on the same device.

    The batch is a small one unless it is given. Random generators are left as they were.

    With dropout, queries of zero give every key the same weight, and values of one give the context the sum of the
    kept weights, 1 on average. The context is linear in the values, so the product of context and upstream gradient
    equals that of values and their gradient if backward uses the mask of forward. The upstream gradient is the
    context minus 1, so that with an independent mask the second product would be about zero.
    """
    batch = (batch or example_batch()).to(device)
    shape = (batch.slots, 3, heads, head_size)
    generator = torch.Generator().manual_seed(1)
    qkv = torch.randn(shape, generator=generator).to(device, dtype)
    upstream = torch.randn(batch.slots, heads * head_size, generator=generator).to(device, dtype)
    upstream[batch.tokens :] = 0
    found = _run(backend, qkv, upstream, batch)
    expected = _run("padded", qkv.float(), upstream.float(), batch)
    context, gradient = (
        _relative(one[: batch.tokens], other[: batch.tokens]) for one, other in zip(found, expected, strict=True)
    )
    ones = torch.zeros(shape, device=device, dtype=dtype)
    ones[:, 2] = 1
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(1)
        leaf = ones.requires_grad_()
        dropped = attend(leaf, batch, backend=backend, kernels=EAGER, probability=PROBABILITY)
        towards = dropped.detach() - 1
        towards[batch.tokens :] = 0
        (dropped_gradient,) = torch.autograd.grad(dropped, leaf, towards)
    inside = (towards * dropped.detach()).float().sum()
    return Deviations(
        context=context,
        gradient=gradient,
        kept=abs(float(dropped[: batch.tokens].detach().float().mean()) - 1),
        mask=abs(float(dropped_gradient[:, 2].float().sum() / inside) - 1),
        finite=all(bool(tensor.isfinite().all()) for tensor in (*found, dropped.detach(), dropped_gradient)),
        spare=float(found[1][batch.tokens :].abs().max()) if batch.spare_slots else 0.0,
    )


def _run(backend: str, qkv_T3HK: Tensor, upstream_TD: Tensor, batch: RaggedBatch) -> tuple[Tensor, Tensor]:
    """Return the context and the gradient of queries, keys and values, without dropout."""
    leaf = qkv_T3HK.clone().requires_grad_()
    context = attend(leaf, batch, backend=backend, kernels=EAGER, probability=0.0)
    (gradient,) = torch.autograd.grad(context, leaf, upstream_TD)
    return context.detach(), gradient


def _relative(found: Tensor, expected: Tensor) -> float:
    return float((found.float() - expected.float()).norm() / expected.float().norm())
