"""Linear layers of the encoder, whose bias can be added by the next kernel, with an fp8 variant.

The fp8 layer computes all three matrix products (forward, input gradient, weight gradient) on fp8 operands: e4m3 for
weights and activations, e5m2 for gradients. Each tensor has one scale, from its largest magnitude in the same step
(current scaling), so that it fills the range of its format.
Source: Micikevicius et al., "FP8 formats for deep learning", arXiv 2209.05433.

Suffixes of shapes: T tokens, I input features, O output features; M, N, K of a product [M, K] · [N, K]ᵀ.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Linear(nn.Linear):
    """nn.Linear whose matrix product can be computed without the bias, for kernels that fuse the bias."""

    def product(self, x: Tensor) -> Tensor:
        """Return x Wᵀ [T, O] of x [T, I]; the caller adds `bias`."""
        return F.linear(x, self.weight)


# Gradients need the range of five exponent bits more than a third mantissa bit.
FORWARD_DTYPE, GRADIENT_DTYPE = torch.float8_e4m3fn, torch.float8_e5m2
DIMENSION_MULTIPLE = 16  # fp8 tensor cores require dimensions that are multiples of this


class Fp8Linear(Linear):
    """nn.Linear with fp8 matrix products; parameters and state dict are those of nn.Linear.

    A layer with a dimension that is not a multiple of 16 is computed in the dtype of autocast.
    """

    def product(self, x: Tensor) -> Tensor:
        if x.shape[-1] % DIMENSION_MULTIPLE or self.out_features % DIMENSION_MULTIPLE:
            return super().product(x)
        y: Tensor = _Fp8Product.apply(x, self.weight)  # type: ignore[no-untyped-call]
        return y

    def forward(self, input: Tensor) -> Tensor:
        y = self.product(input)
        return y if self.bias is None else y + self.bias.to(y.dtype)


class _Fp8Product(torch.autograd.Function):
    """y [T, O] = x [T, I] · weight [O, I]ᵀ in the dtype of x or autocast; gradients have the inputs' dtypes."""

    @staticmethod
    def forward(ctx: Any, x_TI: Tensor, weight_OI: Tensor) -> Tensor:
        dtype = torch.get_autocast_dtype(x_TI.device.type)
        dtype = dtype if torch.is_autocast_enabled(x_TI.device.type) else x_TI.dtype
        x, weight = _Fp8Matrix(x_TI, FORWARD_DTYPE), _Fp8Matrix(weight_OI, FORWARD_DTYPE)
        ctx.save_for_backward(x.values, x.scale, weight.values, weight.scale)
        ctx.types = dtype, x_TI.dtype, weight_OI.dtype
        return scaled_product(x, weight, dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        x_values, x_scale, weight_values, weight_scale = ctx.saved_tensors
        dtype, x_type, weight_type = ctx.types
        # The saved fp8 values are reused, so that forward and backward see the same rounded operands. The operator
        # multiplies row-major [M, K] and [N, K], so each operand is transposed to have its summed dimension last.
        upstream = _Fp8Matrix(gradients[0], GRADIENT_DTYPE)
        weight_IO = _Fp8Matrix.of(weight_values.t().contiguous(), weight_scale)
        x_IT = _Fp8Matrix.of(x_values.t().contiguous(), x_scale)
        upstream_OT = _Fp8Matrix.of(upstream.values.t().contiguous(), upstream.scale)
        dx_TI = scaled_product(upstream, weight_IO, dtype)
        # float32 output: weight gradients are accumulated over micro-batches and summed over ranks.
        dweight_OI = scaled_product(upstream_OT, x_IT, torch.float32)
        return dx_TI.to(x_type), dweight_OI.to(weight_type)


class _Fp8Matrix:
    """A row-major fp8 matrix and its scale (0-d float32); the matrix is values · scale. Never read on the host."""

    def __init__(self, tensor: Tensor, dtype: torch.dtype) -> None:
        """Quantise a matrix so that its largest magnitude becomes the largest finite number of `dtype`."""
        dtype_max = torch.finfo(dtype).max
        # The clamp keeps the scale a normal float32 number for zero and tiny matrices, so that no division by 0 or by a
        # denormal occurs.
        largest = tensor.detach().abs().amax().float().clamp(min=torch.finfo(torch.float32).tiny * dtype_max)
        # The division is in float32: a scale rounded to bfloat16 would be off by up to 0.4%, and with it all products.
        self.scale = largest / dtype_max
        self.values = (tensor.float() / self.scale).to(dtype).contiguous()

    @classmethod
    def of(cls, values: Tensor, scale: Tensor) -> "_Fp8Matrix":
        """Wrap fp8 values that are already scaled."""
        matrix = cls.__new__(cls)
        matrix.values, matrix.scale = values, scale
        return matrix


def scaled_product(a_MK: _Fp8Matrix, b_NK: _Fp8Matrix, dtype: torch.dtype) -> Tensor:
    """Return a · bᵀ [M, N] in `dtype`: by fp8 tensor cores on a GPU, elsewhere in float32 on the same fp8 values."""
    multiply = _multiply_fp8 if a_MK.values.is_cuda else _multiply_in_float32
    return multiply(a_MK, b_NK, dtype)


def _multiply_in_float32(a_MK: _Fp8Matrix, b_NK: _Fp8Matrix, dtype: torch.dtype) -> Tensor:
    return ((a_MK.values.float() @ b_NK.values.float().t()) * (a_MK.scale * b_NK.scale)).to(dtype)


def _multiply_fp8(a_MK: _Fp8Matrix, b_NK: _Fp8Matrix, dtype: torch.dtype) -> Tensor:
    """Multiply by torch._scaled_mm, a private operator that only this function calls. N must be a multiple of 16."""
    a, b = a_MK.values, b_NK.values
    # K may be a number of tokens (weight gradient). It is padded to a multiple of 16 with zero bytes, which are fp8
    # zeros; as uint8, since F.pad does not support fp8.
    spare = -a.shape[1] % DIMENSION_MULTIPLE
    if spare:
        a, b = (F.pad(x.view(torch.uint8), (0, spare)).view(x.dtype) for x in (a, b))
    product: Tensor = torch._scaled_mm(a, b.t(), scale_a=a_MK.scale, scale_b=b_NK.scale, out_dtype=dtype)
    return product
