"""Interface of a set of fused kernels; each set is one value of `Kernels`, and the eager set is the reference.

T tokens, D the hidden width, F the feed-forward width, M masked tokens, V the vocabulary size. Activations are
passed and returned in the compute type (float32, bfloat16 or float16); parameters are float32, and so are
statistics, sums and gradients of parameters. A dropout probability of 0 means none: callers pass 0 outside training.
Every function is differentiable in all floating-point arguments.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

LAYER_NORM_EPS = 1e-12
DROPOUT_STEPS = 65536  # drop probabilities are multiples of one over this
ThreeTensors = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Kernels:
    # dropout(LayerNorm(word + position + segment)) [T, D] in a type. Arguments: token, position and segment ids, int64
    # [T] each; their embeddings [·, D]; weight [D]; bias [D]; probability; type.
    embedding_norm: Callable[[ThreeTensors, ThreeTensors, Tensor, Tensor, float, torch.dtype], Tensor]
    # LayerNorm(x + dropout(update + update_bias)) [T, D] in the type of x. Arguments: x [T, D]; update [T, D];
    # update_bias [D]; weight [D]; bias [D]; probability.
    residual_norm: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, float], Tensor]
    # GELU(x + bias) [T, F] in the type of x, in its tanh approximation. Arguments: x [T, F]; bias [F].
    bias_gelu: Callable[[Tensor, Tensor], Tensor]
    # The sum of cross-entropies over the rows whose label is not `IGNORED`, a 0-d float32 tensor. Arguments: logits
    # [M, V]; labels [M].
    cross_entropy: Callable[[Tensor, Tensor], Tensor]
    # dropout(softmax(scores)) over the keys, in the type of scores. Arguments: scores [heads, rows, queries, keys]; how
    # many keys row r attends to, the first ones (int32 [rows], at least 1; the others get weight 0); probability.
    attention_weights: Callable[[Tensor, Tensor, float], Tensor]


def apply(function: type[torch.autograd.Function], *inputs: object) -> Tensor:
    """The result of an autograd function, whose own `apply` has no types."""
    result: Tensor = function.apply(*inputs)  # type: ignore[no-untyped-call]
    return result


def dropout_threshold_and_scale(probability: float) -> tuple[int, float]:
    """Elements whose number of 16 bits lies below the threshold are dropped, the rest multiplied by the scale.

    The scale is that of the rounded probability, so that the expectation is exact.
    """
    threshold = round(probability * DROPOUT_STEPS)
    return threshold, DROPOUT_STEPS / (DROPOUT_STEPS - threshold)
