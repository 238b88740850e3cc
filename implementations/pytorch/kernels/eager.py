"""Eager kernels: the reference that other kernel sets are tested against, and the code that torch.compile fuses.

Signatures, shapes and dtypes are documented in `Kernels`. float64 is supported as well, for tests.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from implementations.pytorch.data.batch import IGNORED
from implementations.pytorch.kernels.interface import LAYER_NORM_EPS, Kernels, ThreeTensors


def embedding_norm(
    ids: ThreeTensors, tables: ThreeTensors, weight_D: Tensor, bias_D: Tensor, probability: float, dtype: torch.dtype
) -> Tensor:
    token, position, segment = (F.embedding(index, table) for index, table in zip(ids, tables, strict=True))
    return dropout(_norm(token + position + segment, weight_D, bias_D).to(dtype), probability)


def residual_norm(
    x_TD: Tensor, update_TD: Tensor, update_bias_D: Tensor, weight_D: Tensor, bias_D: Tensor, probability: float
) -> Tensor:
    update_TD = dropout(update_TD + update_bias_D.to(update_TD.dtype), probability)
    # The residual sum is rounded to the compute dtype, as autocast would do; only LayerNorm is computed in float32.
    return _norm(_at_least_float32(x_TD + update_TD), weight_D, bias_D).to(x_TD.dtype)


def bias_gelu(x_TF: Tensor, bias_F: Tensor) -> Tensor:
    return F.gelu(x_TF + bias_F.to(x_TF.dtype), approximate="tanh")


def cross_entropy(logits_MV: Tensor, labels_M: Tensor) -> Tensor:
    return F.cross_entropy(_at_least_float32(logits_MV), labels_M, ignore_index=IGNORED, reduction="sum")


def attention_weights(scores_HRWW: Tensor, key_counts_R: Tensor, probability: float) -> Tensor:
    hidden_RW = torch.arange(scores_HRWW.shape[-1], device=scores_HRWW.device) >= key_counts_R[:, None]
    # Rows have at least one key, so no row is all -inf, whose softmax would be NaN.
    scores_HRWW = scores_HRWW.masked_fill(hidden_RW[:, None, :], float("-inf"))
    return dropout(torch.softmax(scores_HRWW, dim=-1), probability)


def _norm(x_TD: Tensor, weight_D: Tensor, bias_D: Tensor) -> Tensor:
    return F.layer_norm(x_TD, x_TD.shape[-1:], weight_D, bias_D, LAYER_NORM_EPS)


def _at_least_float32(x: Tensor) -> Tensor:
    """Return x in float32, or unchanged if it is float64."""
    return x if x.dtype == torch.float64 else x.float()


def dropout(x: Tensor, probability: float) -> Tensor:
    return F.dropout(x, probability) if probability else x


EAGER = Kernels(embedding_norm, residual_norm, bias_gelu, cross_entropy, attention_weights)
