"""Inputs for every function of a kernel set, at the sizes of BERT-large or tiny ones, for tests and for timing.

Suffixes of shapes: T tokens, D hidden width, F feed-forward width, M masked tokens, V vocabulary size, H heads, R rows,
W width.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from benchmarks.bert.sizes import LARGE, VOCABULARY_SIZE, Size
from implementations.pytorch.data.batch import IGNORED
from implementations.pytorch.kernels.interface import Kernels

# Kernels, inputs (activations, then parameters), compute dtype, dropout probability → result.
Call = Callable[[Kernels, list[Tensor], torch.dtype, float], Tensor]


@dataclass(frozen=True)
class Shapes:
    """Sizes of a batch and its model, and the device; random inputs of these sizes."""

    device: torch.device
    size: Size
    vocabulary: int
    tokens: int
    masked: int
    rows: int  # of attention
    width: int

    def normal(self, *shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
        """Return random float64 numbers on the device, the same for the same seed."""
        generator = torch.Generator(self.device).manual_seed(seed)
        return scale * torch.randn(shape, generator=generator, dtype=torch.float64, device=self.device)

    def integers(self, high: int, count: int, seed: int = 0) -> Tensor:
        """Return random numbers below `high`, int64 [count], on the device."""
        return torch.randint(0, high, (count,), generator=torch.Generator().manual_seed(seed)).to(self.device)


def large_shapes(device: torch.device) -> Shapes:
    """Return the shapes of 56 sequences of BERT-large, the local batch of h200_1x."""
    return Shapes(device, LARGE, VOCABULARY_SIZE, tokens=14_336, masked=2_304, rows=8, width=512)


def tiny_shapes() -> Shapes:
    """Return shapes that Triton's interpreter computes in milliseconds, on the CPU."""
    size = replace(LARGE, name="tiny", layers=1, hidden=32, heads=4, feed_forward=48, positions=32)
    return Shapes(torch.device("cpu"), size, 101, tokens=12, masked=6, rows=2, width=8)


@dataclass(frozen=True)
class Case:
    """Inputs of a kernel in float64, of which activations are rounded to the compute dtype, and the call."""

    activations: list[Tensor]
    parameters: list[Tensor]
    call: Call

    def inputs(self, rounded_to: torch.dtype, compute: torch.dtype) -> list[Tensor]:
        """Return leaves: activations rounded to `rounded_to` in the dtype `compute`, parameters in float32 or more."""
        other = torch.float64 if compute == torch.float64 else torch.float32
        activations = [x.to(rounded_to).to(compute).requires_grad_() for x in self.activations]
        return activations + [x.float().to(other).requires_grad_() for x in self.parameters]


def _embedding_norm(shapes: Shapes) -> Case:
    rows = (shapes.vocabulary, shapes.size.positions, shapes.size.segments)
    ids: Any = tuple(shapes.integers(high, shapes.tokens, seed) for seed, high in enumerate(rows))
    tables = [shapes.normal(count, shapes.size.hidden, seed=seed) for seed, count in enumerate(rows)]
    norm = [shapes.normal(shapes.size.hidden, seed=seed) for seed in (3, 4)]

    def call(kernels: Kernels, inputs: list[Tensor], dtype: torch.dtype, probability: float) -> Tensor:
        word, position, segment, weight_D, bias_D = inputs
        return kernels.embedding_norm(ids, (word, position, segment), weight_D, bias_D, probability, dtype)

    return Case([], [*tables, *norm], call)


def _residual_norm(shapes: Shapes) -> Case:
    activations = [shapes.normal(shapes.tokens, shapes.size.hidden, seed=seed) for seed in (1, 2)]
    parameters = [shapes.normal(shapes.size.hidden, seed=seed) for seed in (3, 4, 5)]

    def call(kernels: Kernels, inputs: list[Tensor], dtype: torch.dtype, probability: float) -> Tensor:
        x_TD, update_TD, update_bias_D, weight_D, bias_D = inputs
        return kernels.residual_norm(x_TD, update_TD, update_bias_D, weight_D, bias_D, probability)

    return Case(activations, parameters, call)


def _bias_gelu(shapes: Shapes) -> Case:
    x_TF = shapes.normal(shapes.tokens, shapes.size.feed_forward, scale=3)
    bias_F = shapes.normal(shapes.size.feed_forward, seed=1)
    return Case([x_TF], [bias_F], lambda kernels, inputs, dtype, probability: kernels.bias_gelu(*inputs))


def _cross_entropy(shapes: Shapes) -> Case:
    labels_M = shapes.integers(shapes.vocabulary, shapes.masked)
    labels_M[1::5] = IGNORED
    logits_MV = shapes.normal(shapes.masked, shapes.vocabulary, scale=4)
    return Case([logits_MV], [], lambda kernels, inputs, dtype, probability: kernels.cross_entropy(inputs[0], labels_M))


def _attention_weights(shapes: Shapes) -> Case:
    counts_R = (1 + shapes.integers(shapes.width, shapes.rows)).int()
    scores_HRWW = shapes.normal(shapes.size.heads, shapes.rows, shapes.width, shapes.width)
    return Case(
        [scores_HRWW],
        [],
        lambda kernels, inputs, dtype, probability: kernels.attention_weights(inputs[0], counts_R, probability),
    )


# A field of `Kernels` → its inputs.
CASES: dict[str, Callable[[Shapes], Case]] = {
    "embedding_norm": _embedding_norm,
    "residual_norm": _residual_norm,
    "bias_gelu": _bias_gelu,
    "cross_entropy": _cross_entropy,
    "attention_weights": _attention_weights,
}
