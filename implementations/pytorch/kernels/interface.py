"""Interface of a set of fused kernels; each set is one value of `Kernels`, and the eager set is the reference.

T tokens, D the hidden width, F the feed-forward width, M masked tokens, V the vocabulary size. Activations are
passed and returned in the compute type (float32, bfloat16 or float16); parameters are float32, and so are
statistics, sums and gradients of parameters. A dropout probability of 0 means none: callers pass 0 outside training.
Every function is differentiable in all floating-point arguments.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

LAYER_NORM_EPS = 1e-12


class EmbeddingNorm(Protocol):
    def __call__(
        self,
        ids: tuple[Tensor, Tensor, Tensor],
        tables: tuple[Tensor, Tensor, Tensor],
        weight_D: Tensor,
        bias_D: Tensor,
        probability: float,
        dtype: torch.dtype,
    ) -> Tensor:
        """dropout(LayerNorm(word + position + segment)) [T, D] in `dtype`.

        `ids` are token, position and segment ids, int64 [T] each, and `tables` their embeddings [·, D], in that order.
        """


class ResidualNorm(Protocol):
    def __call__(
        self,
        x_TD: Tensor,
        update_TD: Tensor,
        update_bias_D: Tensor,
        weight_D: Tensor,
        bias_D: Tensor,
        probability: float,
    ) -> Tensor:
        """LayerNorm(x + dropout(update + update_bias)) [T, D] in the type of x."""


class BiasGelu(Protocol):
    def __call__(self, x_TF: Tensor, bias_F: Tensor) -> Tensor:
        """GELU(x + bias) [T, F] in the type of x, in its tanh approximation."""


class CrossEntropy(Protocol):
    def __call__(self, logits_MV: Tensor, labels_M: Tensor) -> Tensor:
        """The sum of cross-entropies over the rows whose label is not `IGNORED`, a 0-d float32 tensor."""


class AttentionWeights(Protocol):
    def __call__(self, scores_HRWW: Tensor, key_counts_R: Tensor, probability: float) -> Tensor:
        """dropout(softmax(scores)) over the keys, in the type of scores [heads, rows, queries, keys].

        Row r attends to its first `key_counts_R[r]` keys (int32, at least 1); the others get weight 0.
        """


@dataclass(frozen=True)
class Kernels:
    embedding_norm: EmbeddingNorm
    residual_norm: ResidualNorm
    bias_gelu: BiasGelu
    cross_entropy: CrossEntropy
    attention_weights: AttentionWeights
