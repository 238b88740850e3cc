"""Shared parts of the CPU kernels: scalar arithmetic, tensors as numba arrays, and counter-based random numbers.

Whether dropout keeps an element is a function of the seed, the row and the column. So masks are never stored: backward
recomputes them, and they do not depend on the number of threads. The generator is Philox 4x32 with seven rounds (Salmon
et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11), the fewest that pass BigCrush. One call produces eight
16-bit numbers.

numba has no bfloat16. Such tensors are passed as uint16 arrays of their bits, and converted in registers.
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

INT32 = ir.IntType(32)


def _float_of_bits(_: Any, bits: Any) -> Any:
    """Reinterpret the bits of a uint32 as float32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.uint32), generate


float_of_bits: Any = intrinsic(_float_of_bits)


def _load_float32(_: Any, stored: Any) -> Any:
    """Convert a stored element (float32, or the bits of a bfloat16 as uint16) to float32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if stored == types.float32:
            return arguments[0]
        # bfloat16 is the upper half of a float32.
        bits = builder.shl(builder.zext(arguments[0], INT32), ir.Constant(INT32, 16))
        return builder.bitcast(bits, ir.FloatType())

    return (types.float32(stored), generate) if stored in (types.float32, types.uint16) else None


load_float32: Any = intrinsic(_load_float32)


def _round_to_stored(_: Any, like: Any, number: Any) -> Any:
    """Convert a float32 to the element type of the array `like`: unchanged, or rounded to bfloat16, ties to even.

    A NaN must be the usual one, 0x7FC00000 or 0xFFC00000: one with all lower bits set would overflow into a number.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if like.dtype == types.float32:
            return arguments[1]
        # Round half to even by integer arithmetic: add 0x7FFF, plus the lowest bit that is kept, and truncate.
        bits = builder.bitcast(arguments[1], INT32)
        odd = builder.and_(builder.lshr(bits, ir.Constant(INT32, 16)), ir.Constant(INT32, 1))
        rounded = builder.add(builder.add(bits, ir.Constant(INT32, 0x7FFF)), odd)
        return builder.trunc(builder.lshr(rounded, ir.Constant(INT32, 16)), ir.IntType(16))

    return (like.dtype(like, types.float32), generate) if like.dtype in (types.float32, types.uint16) else None


round_to_stored: Any = intrinsic(_round_to_stored)


def _sortable_int(_: Any, number: Any) -> Any:
    """Map a float32 to an int32 with the same order; NaN maps to the largest values (the smallest, if its sign is set).

    Unlike the maximum of floating-point numbers, that of integers vectorises without losing NaN.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _flip_negative(builder, builder.bitcast(arguments[0], INT32))

    return types.int32(types.float32), generate


sortable_int: Any = intrinsic(_sortable_int)


def _from_sortable_int(_: Any, number: Any) -> Any:
    """Return the float32 that `sortable_int` was computed from."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(_flip_negative(builder, arguments[0]), ir.FloatType())

    return types.float32(types.int32), generate


from_sortable_int: Any = intrinsic(_from_sortable_int)


def _flip_negative(builder: Any, bits: Any) -> Any:
    """Flip all bits but the sign where the sign is set; the function is its own inverse."""
    flips = builder.and_(builder.ashr(bits, ir.Constant(INT32, 31)), ir.Constant(INT32, 0x7FFFFFFF))
    return builder.xor(bits, flips)


MIN_SORTABLE_INT = np.int32(-(2**31))  # start value of a maximum

# Constants are float32, since a Python float would make the loops compute in float64.
LOG2_E = np.float32(1.4426950408889634)
LEAST_EXPONENT, GREATEST_EXPONENT = np.float32(-126.0), np.float32(126.0)
ONE, HALF = np.float32(1.0), np.float32(0.5)
# Taylor coefficients of 2**x at 0: ln(2)**n / n!
POWER_5, POWER_4, POWER_3 = np.float32(1.33335581e-3), np.float32(9.61812911e-3), np.float32(5.55041087e-2)
POWER_2, POWER_1 = np.float32(2.40226507e-1), np.float32(6.93147181e-1)


@compiled_inline
def exponential(x: Any) -> Any:
    """Return e**x in float32, clamped to [2**-126, 2**126]; NaN for NaN. Relative error below 7e-6 (on [-80, 80]).

    Computed as 2**n · 2**f with f in [-1/2, 1/2], the latter by the first six terms of its Taylor series. Unlike a call
    of the C library it is inlined and vectorised.
    """
    # Comparisons instead of min and max, since they are false for NaN and so let it pass.
    power = x * LOG2_E
    power = GREATEST_EXPONENT if power > GREATEST_EXPONENT else power
    power = LEAST_EXPONENT if power < LEAST_EXPONENT else power
    whole = np.floor(power + HALF)
    part = power - whole
    series = ((((POWER_5 * part + POWER_4) * part + POWER_3) * part + POWER_2) * part + POWER_1) * part + ONE
    # 2**n by writing n + 127 into the exponent bits of a float32.
    return series * float_of_bits(np.uint32((np.int32(whole) + np.int32(127)) << np.int32(23)))


STORED_DTYPES = {torch.bfloat16: torch.uint16, torch.float32: torch.float32}  # dtypes in compiled code
# Number of chunks that rows are divided into. More than there are threads, for load balance, and constant, so that sums
# over rows do not depend on the number of threads.
CHUNKS = 32


def as_array(tensor: Tensor) -> np.ndarray:
    """Return a contiguous tensor's memory, or a contiguous copy, as an array; bfloat16 as uint16."""
    return tensor.detach().contiguous().view(STORED_DTYPES[tensor.dtype]).numpy()


def is_supported(*tensors: Tensor) -> bool:
    """Return whether the compiled kernels support the dtypes of all tensors."""
    return all(tensor.dtype in STORED_DTYPES for tensor in tensors)


def use_torch_num_threads() -> None:
    """Set numba's number of threads to torch's."""
    # Starting numba's threads changes torch's number of threads, which is therefore restored.
    threads = torch.get_num_threads()
    numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]
    torch.set_num_threads(threads)


# Philox 4x32. Its 32-bit words are kept in uint64, so that the 64-bit products need no widening.
ROUNDS = 7
DRAWS = 8  # 16-bit numbers that one call of the generator produces
FACTOR_A, FACTOR_B = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
KEY_STEP_A, KEY_STEP_B = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
LOW, SHIFT, HALF_SHIFT, LOW_HALF = np.uint64(0xFFFFFFFF), np.uint64(32), np.uint64(16), np.uint64(0xFFFF)


def draw_seed(probability: float) -> Tensor:
    """Draw a dropout seed, int64 [1], from torch's default generator, so that `torch.manual_seed` determines masks.

    With a probability of 0 nothing is drawn, so that an evaluation does not change the masks of later training steps.
    """
    if not probability:
        return torch.zeros(1, dtype=torch.int64)
    return torch.empty(1, dtype=torch.int64).random_(-(2**63), None)


@compiled_inline
def philox(a: Any, b: Any, c: Any, d: Any, key_a: Any, key_b: Any, rounds: Any) -> Any:
    """Return four 32-bit random numbers (as uint64) for a counter of four and a key of two 32-bit words."""
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
    """Fill uint16 `draws`, whose length is a multiple of 8, with the random numbers of a row."""
    # The eight numbers of one call are stored `calls` apart, so that each store is contiguous over the loop.
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
    """Return how many numbers are drawn for a row of `columns` columns: a multiple of 8."""
    return -(-columns // DRAWS) * DRAWS
