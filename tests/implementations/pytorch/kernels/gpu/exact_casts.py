"""Casts between floating-point types for Triton's interpreter, by PyTorch.

The interpreter's own casts drop the carry when rounding up reaches the next power of two, and turn NaN into numbers in
fp8. A GPU rounds to the nearest value, ties to even, as PyTorch does.
"""

from typing import Any

import numpy as np
import torch
from triton.runtime import interpreter

TYPES = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8e4nv": torch.float8_e4m3fn,
    "fp8e5": torch.float8_e5m2,
}
BITS = {1: (np.uint8, torch.uint8), 2: (np.uint16, torch.int16), 4: (np.uint32, torch.int32)}


def convert(values: np.ndarray, source: Any, target: Any, rounding: Any) -> np.ndarray:
    """Return the bits of `values` in the type `target`."""
    one, other = TYPES[source.name], TYPES[target.name]
    bits = torch.from_numpy(np.ascontiguousarray(values).view(BITS[one.itemsize][0]).view(f"i{one.itemsize}").copy())
    cast = bits.view(torch.uint8 if one.itemsize == 1 else bits.dtype).view(one).to(other)
    number, tensor = BITS[other.itemsize]
    return cast.view(tensor).numpy().view(number).reshape(values.shape)


def install() -> None:
    interpreter._convert_float = convert
