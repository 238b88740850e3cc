"""The encoder's linear layers, whose bias may be left to the next kernel, also with fp8 matrix products.

The fp8 layers compute all three matrix products on fp8 numbers: e4m3 forward, e5m2 for gradients. Each tensor is
scaled by its greatest magnitude, found on the device in the same step, so that it fills the range of its format.
Source: Micikevicius et al., "FP8 formats for deep learning", arXiv 2209.05433.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Linear(nn.Linear):
    """nn.Linear with its two parts to be had one by one."""

    def product(self, x: Tensor) -> Tensor:
        """x Wᵀ, to which `bias` is still to be added."""
        return F.linear(x, self.weight)


FORWARD, GRADIENT = torch.float8_e4m3fn, torch.float8_e5m2
STEP = 16  # the hardware multiplies matrices whose dimensions are multiples of this


class Fp8Linear(Linear):
    """nn.Linear with the same parameters. Layers of which a dimension is no multiple of 16 stay in the type of x."""

    def product(self, x: Tensor) -> Tensor:
        if x.shape[-1] % STEP or self.out_features % STEP:
            return super().product(x)
        y: Tensor = _Product.apply(x, self.weight)  # type: ignore[no-untyped-call]
        return y

    def forward(self, input: Tensor) -> Tensor:
        y = self.product(input)
        return y if self.bias is None else y + self.bias.to(y.dtype)


class _Product(torch.autograd.Function):
    """y [T, O] = x [T, I] · weight [O, I]ᵀ in the type of x; the weight's gradient is in the weight's type."""

    @staticmethod
    def forward(ctx: Any, x_TI: Tensor, weight_OI: Tensor) -> Tensor:
        dtype = torch.get_autocast_dtype(x_TI.device.type)
        dtype = dtype if torch.is_autocast_enabled(x_TI.device.type) else x_TI.dtype
        x, weight = _Scaled(x_TI, FORWARD), _Scaled(weight_OI, FORWARD)
        ctx.save_for_backward(x.values, x.scale, weight.values, weight.scale)
        ctx.types = dtype, x_TI.dtype, weight_OI.dtype
        return scaled_product(x, weight, dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        x_values, x_scale, weight_values, weight_scale = ctx.saved_tensors
        dtype, x_type, weight_type = ctx.types
        upstream = _Scaled(gradients[0], GRADIENT)
        weight_IO = _Scaled.of(weight_values.t().contiguous(), weight_scale)
        x_IT = _Scaled.of(x_values.t().contiguous(), x_scale)
        upstream_OT = _Scaled.of(upstream.values.t().contiguous(), upstream.scale)
        dx_TI = scaled_product(upstream, weight_IO, dtype)
        dweight_OI = scaled_product(upstream_OT, x_IT, torch.float32)
        return dx_TI.to(x_type), dweight_OI.to(weight_type)


class _Scaled:
    """A matrix in fp8, row by row, and the number that its values are multiplied by (0-d float32), on the device alone.

    Divided in float32, since in bfloat16 the scale itself would be rounded and all products be off by as much. The
    scale is a normal number, also where the matrix is zero.
    """

    def __init__(self, tensor: Tensor, dtype: torch.dtype) -> None:
        range_ = torch.finfo(dtype).max
        greatest = tensor.detach().abs().amax().float().clamp(min=torch.finfo(torch.float32).tiny * range_)
        self.scale = greatest / range_
        self.values = (tensor.float() / self.scale).to(dtype).contiguous()

    @classmethod
    def of(cls, values: Tensor, scale: Tensor) -> "_Scaled":
        scaled = cls.__new__(cls)
        scaled.values, scaled.scale = values, scale
        return scaled


def scaled_product(a_MK: _Scaled, b_NK: _Scaled, dtype: torch.dtype) -> Tensor:
    """a · bᵀ [M, N] in `dtype`: in the hardware's fp8 on a GPU, and of the same numbers in float32 elsewhere."""
    multiply = _in_hardware if a_MK.values.is_cuda else _in_float32
    return multiply(a_MK, b_NK, dtype)


def _in_float32(a_MK: _Scaled, b_NK: _Scaled, dtype: torch.dtype) -> Tensor:
    return ((a_MK.values.float() @ b_NK.values.float().t()) * (a_MK.scale * b_NK.scale)).to(dtype)


def _in_hardware(a_MK: _Scaled, b_NK: _Scaled, dtype: torch.dtype) -> Tensor:
    """N is a multiple of 16; K, which may be a number of tokens, is padded with zeros to one.

    PyTorch's operator is private: this is the one place that calls it.
    """
    a, b = a_MK.values, b_NK.values
    spare = -a.shape[1] % STEP
    if spare:
        a, b = (F.pad(x.view(torch.uint8), (0, spare)).view(x.dtype) for x in (a, b))
    product: Tensor = torch._scaled_mm(a, b.t(), scale_a=a_MK.scale, scale_b=b_NK.scale, out_dtype=dtype)
    return product
