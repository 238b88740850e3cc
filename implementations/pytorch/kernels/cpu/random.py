"""Random numbers by position: which elements a dropout keeps is a function of its seed, the row and the column.

So a mask is never stored: backward computes it again, and how many threads there are cannot change it. The generator
is Philox 4x32 with seven rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11), the fewest that
pass BigCrush; one call makes eight numbers of 16 bits. Drop probabilities are rounded to multiples of 1/65536.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.compiled import compiled, compiled_inline

STEPS = 65536
"""Drop probabilities are multiples of one over this."""
ROUNDS = 7
DRAWS = 8
"""Numbers of 16 bits that one call of the generator makes."""
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


def threshold_and_scale(probability: float) -> tuple[int, float]:
    """Elements whose number lies below the threshold are dropped, the rest multiplied by the scale.

    The scale is that of the rounded probability, so that the expectation is exact.
    """
    threshold = round(probability * STEPS)
    return threshold, STEPS / (STEPS - threshold)


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
def draw_row(seed: Any, row: Any, numbers: Any) -> None:
    """Fill uint16 `numbers` [a multiple of 8] with those of this row."""
    bits = np.uint64(seed)
    key_a, key_b = bits & LOW, bits >> SHIFT
    row_low, row_high = np.uint64(row) & LOW, np.uint64(row) >> SHIFT
    calls = len(numbers) // DRAWS
    for i in range(calls):
        a, b, c, d = philox(np.uint64(i), np.uint64(0), row_low, row_high, key_a, key_b, ROUNDS)
        numbers[i] = np.uint16(a & LOW_HALF)
        numbers[calls + i] = np.uint16(a >> HALF_SHIFT)
        numbers[2 * calls + i] = np.uint16(b & LOW_HALF)
        numbers[3 * calls + i] = np.uint16(b >> HALF_SHIFT)
        numbers[4 * calls + i] = np.uint16(c & LOW_HALF)
        numbers[5 * calls + i] = np.uint16(c >> HALF_SHIFT)
        numbers[6 * calls + i] = np.uint16(d & LOW_HALF)
        numbers[7 * calls + i] = np.uint16(d >> HALF_SHIFT)


@compiled
def _numbers(seed: np.ndarray, out: np.ndarray) -> None:
    for row in range(len(out)):
        draw_row(seed[0], row, out[row])


def kept(seed: Tensor, rows: int, columns: int, probability: float) -> Tensor:
    """Which elements [rows, columns] a dropout with this seed keeps, as booleans."""
    numbers = np.empty((rows, row_draws(columns)), dtype=np.uint16)
    _numbers(seed.numpy(), numbers)
    return torch.from_numpy(numbers[:, :columns] >= threshold_and_scale(probability)[0])


def row_draws(columns: int) -> int:
    """Numbers drawn for a row of so many columns."""
    return -(-columns // DRAWS) * DRAWS
