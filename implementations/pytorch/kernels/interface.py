"""Interface of a set of fused kernels. Each set is a value of `Kernels`; the eager set is the reference.

Suffixes of shapes: T tokens, D hidden width, F feed-forward width, M masked tokens, V vocabulary size, H heads, R rows,
W width. Activations are passed and returned in the compute dtype (float32, bfloat16 or float16). Parameters, their
gradients, statistics and sums are float32. A dropout probability of 0 disables dropout; callers pass 0 outside
training. Every function is differentiable with respect to all floating-point arguments.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

LAYER_NORM_EPS = 1e-12  # as in MLPerf's reference
DROPOUT_STEPS = 65536  # 2**16: masks compare 16-bit random numbers, so probabilities are multiples of 1/65536
ThreeTensors = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Kernels:
    """A set of kernels, each with the signature and result documented at its field."""

    # dropout(LayerNorm(word + position + segment)) [T, D] in `dtype`. Arguments: token, position and segment ids, int64
    # [T] each; their embedding tables [·, D]; weight [D]; bias [D]; dropout probability; dtype.
    embedding_norm: Callable[[ThreeTensors, ThreeTensors, Tensor, Tensor, float, torch.dtype], Tensor]
    # LayerNorm(x + dropout(update + update_bias)) [T, D] in the dtype of x. Arguments: x [T, D]; update [T, D];
    # update_bias [D]; weight [D]; bias [D]; dropout probability.
    residual_norm: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, float], Tensor]
    # GELU(x + bias) [T, F] in the dtype of x, by the tanh approximation (Hendrycks and Gimpel, arXiv 1606.08415).
    # Arguments: x [T, F]; bias [F].
    bias_gelu: Callable[[Tensor, Tensor], Tensor]
    # Sum of the cross-entropies of the rows whose label is not `IGNORED`, a 0-d float32 tensor. Arguments: logits
    # [M, V]; labels int64 [M].
    cross_entropy: Callable[[Tensor, Tensor], Tensor]
    # dropout(softmax(scores)) over the keys [H, R, W, W], in the dtype of the scores. Arguments: scores [H, R, queries,
    # keys]; number of leading keys that each row attends to, int32 [R], at least 1 (later keys get weight 0); dropout
    # probability.
    attention_weights: Callable[[Tensor, Tensor, float], Tensor]


def apply(function: type[torch.autograd.Function], *inputs: object) -> Tensor:
    """Return `function.apply(*inputs)`, with a type annotation that PyTorch's own `apply` lacks."""
    result: Tensor = function.apply(*inputs)  # type: ignore[no-untyped-call]
    return result


def dropout_threshold_and_scale(probability: float) -> tuple[int, float]:
    """Return the threshold below which a 16-bit random number drops an element, and the scale of kept elements."""
    # The scale is the inverse of the rounded keep probability, so that the expectation is exact.
    threshold = round(probability * DROPOUT_STEPS)
    return threshold, DROPOUT_STEPS / (DROPOUT_STEPS - threshold)
