"""Shared parts of the CPU kernels: scalar arithmetic, tensors as numba arrays, and random numbers by position.

Which elements a dropout keeps is a function of its seed, the row and the column. So a mask is never stored: backward
computes it again, and the number of threads cannot change it. The generator is Philox 4x32 with seven rounds (Salmon
et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11), the fewest that pass BigCrush; one call makes eight
numbers of 16 bits.
"""

from typing import Any

import numba
import numpy as np
import torch
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic
from torch import Tensor

from podium.core.jit import compiled_inline

WORD = ir.IntType(32)


def _float_of_bits(_: Any, bits: Any) -> Any:
    """float32 from the uint32 that holds its bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.uint32), generate


float_of_bits: Any = intrinsic(_float_of_bits)


def _load_float32(_: Any, stored: Any) -> Any:
    """A stored element, float32 or bfloat16's bits, as float32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if stored == types.float32:
            return arguments[0]
        bits = builder.shl(builder.zext(arguments[0], WORD), ir.Constant(WORD, 16))
        return builder.bitcast(bits, ir.FloatType())

    return (types.float32(stored), generate) if stored in (types.float32, types.uint16) else None


load_float32: Any = intrinsic(_load_float32)


def _round_to_stored(_: Any, like: Any, number: Any) -> Any:
    """A float32 as an array like this one stores it: as it is, or rounded to bfloat16, ties to even."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if like.dtype == types.float32:
            return arguments[1]
        bits = builder.bitcast(arguments[1], WORD)
        odd = builder.and_(builder.lshr(bits, ir.Constant(WORD, 16)), ir.Constant(WORD, 1))
        rounded = builder.add(builder.add(bits, ir.Constant(WORD, 0x7FFF)), odd)
        return builder.trunc(builder.lshr(rounded, ir.Constant(WORD, 16)), ir.IntType(16))

    return (like.dtype(like, types.float32), generate) if like.dtype in (types.float32, types.uint16) else None


round_to_stored: Any = intrinsic(_round_to_stored)


def _sortable_int(_: Any, number: Any) -> Any:
    """A whole number of 32 bits that is larger for a larger float32, and largest for NaN.

    A NaN with its sign bit set is the smallest. Unlike that of floating-point numbers, the maximum of whole ones
    vectorises without losing NaN.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _flip_negative(builder, builder.bitcast(arguments[0], WORD))

    return types.int32(types.float32), generate


sortable_int: Any = intrinsic(_sortable_int)


def _from_sortable_int(_: Any, number: Any) -> Any:
    """The float32 that `ordered` made a number of."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(_flip_negative(builder, arguments[0]), ir.FloatType())

    return types.float32(types.int32), generate


from_sortable_int: Any = intrinsic(_from_sortable_int)


def _flip_negative(builder: Any, bits: Any) -> Any:
    """All bits but the sign's turned over where it is set: its own inverse."""
    flips = builder.and_(builder.ashr(bits, ir.Constant(WORD, 31)), ir.Constant(WORD, 0x7FFFFFFF))
    return builder.xor(bits, flips)


MIN_SORTABLE_INT = np.int32(-(2**31))

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


STORED_DTYPES = {torch.bfloat16: torch.uint16, torch.float32: torch.float32}  # types in compiled code
# Parts that rows are cut into. More than there are threads, so that they end together, and always as many, so that sums
# over rows do not depend on the number of threads.
CHUNKS = 32


def as_array(tensor: Tensor) -> np.ndarray:
    """The tensor's memory; bfloat16 as uint16."""
    return tensor.detach().contiguous().view(STORED_DTYPES[tensor.dtype]).numpy()


def is_supported(*tensors: Tensor) -> bool:
    return all(tensor.dtype in STORED_DTYPES for tensor in tensors)


def use_torchs_threads() -> None:
    """Let compiled loops run on as many threads as torch's own, whose number numba's start would change."""
    threads = torch.get_num_threads()
    numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]
    torch.set_num_threads(threads)


ROUNDS = 7
DRAWS = 8  # numbers of 16 bits that one call of the generator makes
FACTOR_A, FACTOR_B = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
KEY_STEP_A, KEY_STEP_B = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
LOW, SHIFT, HALF_SHIFT, LOW_HALF = np.uint64(0xFFFFFFFF), np.uint64(32), np.uint64(16), np.uint64(0xFFFF)


def draw_seed(probability: float) -> Tensor:
    """A seed [1] int64 from torch's default generator: the same `manual_seed` gives the same masks.

    Where nothing is dropped nothing is drawn: an evaluation leaves the masks of training as they are.
    """
    if not probability:
        return torch.zeros(1, dtype=torch.int64)
    return torch.empty(1, dtype=torch.int64).random_(-(2**63), None)


@compiled_inline
def philox(a: Any, b: Any, c: Any, d: Any, key_a: Any, key_b: Any, rounds: Any) -> Any:
    """Four numbers of 32 bits, each in an uint64, for a counter of four and a key of two."""
    for _ in range(rounds):
        product_a, product_b = FACTOR_A * a, FACTOR_B * c
        a, b, c, d = (
            (product_b >> SHIFT) ^ b ^ key_a,
            product_b & LOW,
            (product_a >> SHIFT) ^ d ^ key_b,
            product_a & LOW,
        )
        key_a, key_b = (key_a + KEY_STEP_A) & LOW, (key_b + KEY_STEP_B) & LOW
    return a, b, c, d


@compiled_inline
def draw_row(seed: Any, row: Any, draws: Any) -> None:
    """Fill uint16 `numbers` [a multiple of 8] with those of this row."""
    bits = np.uint64(seed)
    key_a, key_b = bits & LOW, bits >> SHIFT
    row_low, row_high = np.uint64(row) & LOW, np.uint64(row) >> SHIFT
    calls = len(draws) // DRAWS
    for i in range(calls):
        a, b, c, d = philox(np.uint64(i), np.uint64(0), row_low, row_high, key_a, key_b, ROUNDS)
        draws[i] = np.uint16(a & LOW_HALF)
        draws[calls + i] = np.uint16(a >> HALF_SHIFT)
        draws[2 * calls + i] = np.uint16(b & LOW_HALF)
        draws[3 * calls + i] = np.uint16(b >> HALF_SHIFT)
        draws[4 * calls + i] = np.uint16(c & LOW_HALF)
        draws[5 * calls + i] = np.uint16(c >> HALF_SHIFT)
        draws[6 * calls + i] = np.uint16(d & LOW_HALF)
        draws[7 * calls + i] = np.uint16(d >> HALF_SHIFT)


def draws_per_row(columns: int) -> int:
    """Numbers drawn for a row of so many columns."""
    return -(-columns // DRAWS) * DRAWS
