"""The masked-LM decoder with a padded vocabulary: rows of logits begin at multiples of 16 bytes, as tensor cores need.

The parameters keep their V rows. The copy of the word embeddings in the compute dtype, which each forward pass makes
anyway, gets rows of zeros up to P, a multiple of the given number, and the copy of the bias gets -inf. So a logit of
padding is -inf in every row: its probability and its gradient are exactly 0, it is never the largest, and no loss or
accuracy has to know of it.

Suffixes of shapes: M masked tokens, D hidden width, V vocabulary size, P padded vocabulary size.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from implementations.pytorch.kernels.interface import apply

GPU_MULTIPLE = 64  # of the padded vocabulary size on a GPU: 128 bytes of a 16-bit row


def vocabulary_multiple(device: torch.device) -> int:
    """Return the number that the vocabulary size is rounded up to a multiple of; 1 means no padding."""
    return GPU_MULTIPLE if device.type == "cuda" else 1


def decode_padded(x_MD: Tensor, weight_VD: Tensor, bias_V: Tensor, multiple: int) -> Tensor:
    """Return logits [M, P] in the dtype of x, with -inf in the columns from V on.

    Backward adds the weight's gradient to `weight_VD.grad` if it exists; for `torch.autograd.grad` it must be None.
    """
    return apply(_PaddedDecoder, x_MD, weight_VD, bias_V, multiple)


class _PaddedDecoder(torch.autograd.Function):
    """Saves x and the padded copy of the weight."""

    @staticmethod
    def forward(ctx: Any, x_MD: Tensor, weight_VD: Tensor, bias_V: Tensor, multiple: int) -> Tensor:
        vocabulary_size, dtype = len(weight_VD), x_MD.dtype
        padding = -vocabulary_size % multiple
        # Written by parts: a cast and then a pad would be another pass over the weight.
        weight_PD = torch.empty(vocabulary_size + padding, weight_VD.shape[1], dtype=dtype, device=weight_VD.device)
        weight_PD[:vocabulary_size].copy_(weight_VD)
        weight_PD[vocabulary_size:].zero_()
        bias_P = F.pad(bias_V.to(dtype), (0, padding), value=float("-inf"))
        ctx.save_for_backward(x_MD, weight_PD)
        ctx.weight, ctx.multiple = weight_VD, multiple
        return torch.addmm(bias_P, x_MD, weight_PD.t())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None, Tensor, None]:
        x_MD, weight_PD = ctx.saved_tensors
        (dlogits_MP,), weight_VD = gradients, ctx.weight
        vocabulary_size = len(weight_VD)
        dx_MD = torch.mm(dlogits_MP, weight_PD)  # columns of padding contribute 0 · 0
        dbias_V = dlogits_MP.sum(0, dtype=weight_VD.dtype)[:vocabulary_size]
        exists = weight_VD.grad is not None
        dweight_VD = weight_VD.grad if exists else torch.zeros_like(weight_VD)
        # Two products, so that in the large one the number of rows is a multiple as well, and nothing is copied.
        whole = vocabulary_size - vocabulary_size % ctx.multiple
        for rows in (slice(0, whole), slice(whole, vocabulary_size)):
            if rows.start < rows.stop:
                _add_product(dweight_VD[rows], dlogits_MP[:, rows].t(), x_MD)
        # None: autograd has nothing to add. It still runs DDP's hook, after the gradient of the embedding lookup.
        return dx_MD, None if exists else dweight_VD, dbias_V, None


def _add_product(target: Tensor, a: Tensor, b: Tensor) -> None:
    """Add the product a b to a float32 or float64 target in place, without a rounding of the product to a's dtype."""
    if a.dtype != target.dtype and target.device.type != "cpu":
        torch.addmm(target, a, b, out_dtype=target.dtype, out=target)
    else:  # on a CPU, PyTorch has no products with an output of another dtype
        target.addmm_(a.to(target.dtype), b.to(target.dtype))
