"""Numbers inside compiled loops: bfloat16 held as uint16, and an exponential that vectorises."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from benchmarks.compiled import compiled_inline

WORD = ir.IntType(32)


def _float_of_bits(_: Any, bits: Any) -> Any:
    """float32 from the uint32 that holds its bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.uint32), generate


float_of_bits: Any = intrinsic(_float_of_bits)


def _load(_: Any, stored: Any) -> Any:
    """A stored element, float32 or bfloat16's bits, as float32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if stored == types.float32:
            return arguments[0]
        bits = builder.shl(builder.zext(arguments[0], WORD), ir.Constant(WORD, 16))
        return builder.bitcast(bits, ir.FloatType())

    return (types.float32(stored), generate) if stored in (types.float32, types.uint16) else None


load: Any = intrinsic(_load)


def _stored_as(_: Any, like: Any, number: Any) -> Any:
    """A float32 as an array like this one stores it: as it is, or rounded to bfloat16, ties to even."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if like.dtype == types.float32:
            return arguments[1]
        bits = builder.bitcast(arguments[1], WORD)
        odd = builder.and_(builder.lshr(bits, ir.Constant(WORD, 16)), ir.Constant(WORD, 1))
        rounded = builder.add(builder.add(bits, ir.Constant(WORD, 0x7FFF)), odd)
        return builder.trunc(builder.lshr(rounded, ir.Constant(WORD, 16)), ir.IntType(16))

    return (like.dtype(like, types.float32), generate) if like.dtype in (types.float32, types.uint16) else None


stored_as: Any = intrinsic(_stored_as)


def _ordered(_: Any, number: Any) -> Any:
    """A whole number of 32 bits that is larger for a larger float32, and largest for NaN.

    A NaN with its sign bit set is the smallest. Unlike that of floating-point numbers, the maximum of whole ones
    vectorises without losing NaN.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _flip_negative(builder, builder.bitcast(arguments[0], WORD))

    return types.int32(types.float32), generate


ordered: Any = intrinsic(_ordered)


def _of_order(_: Any, number: Any) -> Any:
    """The float32 that `ordered` made a number of."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(_flip_negative(builder, arguments[0]), ir.FloatType())

    return types.float32(types.int32), generate


of_order: Any = intrinsic(_of_order)


def _flip_negative(builder: Any, bits: Any) -> Any:
    """All bits but the sign's turned over where it is set: its own inverse."""
    flips = builder.and_(builder.ashr(bits, ir.Constant(WORD, 31)), ir.Constant(WORD, 0x7FFFFFFF))
    return builder.xor(bits, flips)


LEAST_ORDER = np.int32(-(2**31))

LOG2_E = np.float32(1.4426950408889634)
LEAST_EXPONENT, GREATEST_EXPONENT = np.float32(-126.0), np.float32(126.0)
ONE, HALF = np.float32(1.0), np.float32(0.5)
POWER_5, POWER_4, POWER_3 = np.float32(1.33335581e-3), np.float32(9.61812911e-3), np.float32(5.55041087e-2)
POWER_2, POWER_1 = np.float32(2.40226507e-1), np.float32(6.93147181e-1)


@compiled_inline
def exponential(x: Any) -> Any:
    """e**x in float32 within 3e-7 of it, relatively; the result stays within 2**-126 and 2**126, or is NaN for NaN.

    2**n · 2**f with f in [-1/2, 1/2], the latter by the first six terms of its series at 0.
    """
    power = x * LOG2_E
    power = GREATEST_EXPONENT if power > GREATEST_EXPONENT else power
    power = LEAST_EXPONENT if power < LEAST_EXPONENT else power
    whole = np.floor(power + HALF)
    part = power - whole
    series = ((((POWER_5 * part + POWER_4) * part + POWER_3) * part + POWER_2) * part + POWER_1) * part + ONE
    return series * float_of_bits(np.uint32((np.int32(whole) + np.int32(127)) << np.int32(23)))
