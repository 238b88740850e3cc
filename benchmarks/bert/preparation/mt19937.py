"""CPython's random number generator in compiled code: the same draws from the same state as `random.Random`.

Source of the algorithm: Matsumoto and Nishimura, "Mersenne Twister" (1998), MT19937, and CPython's documented use of
it. A float takes 53 bits from two 32-bit words. An integer below n is drawn as n.bit_length() bits, again and again
until it is below n.

A state is a uint32 array [625]: the generator's 624 words, then the number of words that are used up.
"""

from random import Random

import numpy as np
from numpy.typing import NDArray

from podium.core.jit import compiled_leaf

WORDS = 624
MIDDLE = 397

State = NDArray[np.uint32]


def copy_state(random: Random) -> State:
    """Return a copy [625] of a generator's state, to draw from. The generator itself does not change."""
    return np.array(random.getstate()[1], dtype=np.uint32)


@compiled_leaf
def _twist(word: np.uint32, following: np.uint32, distant: np.uint32) -> np.uint32:
    y = (word & np.uint32(0x80000000)) | (following & np.uint32(0x7FFFFFFF))
    return distant ^ (y >> np.uint32(1)) ^ ((y & np.uint32(1)) * np.uint32(0x9908B0DF))


@compiled_leaf
def _refill(state: State) -> None:
    """Replace the 624 words by the next 624 ("twist"), in place."""
    for i in range(WORDS - MIDDLE):
        state[i] = _twist(state[i], state[i + 1], state[i + MIDDLE])
    for i in range(WORDS - MIDDLE, WORDS - 1):
        state[i] = _twist(state[i], state[i + 1], state[i + MIDDLE - WORDS])
    state[WORDS - 1] = _twist(state[WORDS - 1], state[0], state[MIDDLE - 1])
    state[WORDS] = 0


@compiled_leaf
def draw_word(state: State) -> np.uint32:
    """Return the next 32 random bits, tempered."""
    if state[WORDS] >= WORDS:
        _refill(state)
    y: np.uint32 = state[state[WORDS]]
    state[WORDS] += np.uint32(1)
    y ^= y >> np.uint32(11)
    y ^= (y << np.uint32(7)) & np.uint32(0x9D2C5680)
    y ^= (y << np.uint32(15)) & np.uint32(0xEFC60000)
    y ^= y >> np.uint32(18)
    return y


@compiled_leaf
def draw_float(state: State) -> float:
    """Return a float in [0, 1) with 53 random bits, like `random.random()`."""
    # (27 bits · 2²⁶ + 26 bits) / 2⁵³: all steps are exact in a double.
    high = np.int64(draw_word(state) >> np.uint32(5))
    low = np.int64(draw_word(state) >> np.uint32(6))
    return (high * 67108864.0 + low) / 9007199254740992.0


@compiled_leaf
def _bit_length(n: int) -> int:
    bits = 0
    while n >> bits:
        bits += 1
    return bits


@compiled_leaf
def _draw_bits_below(state: State, n: int, bits: int) -> int:
    shift = np.uint32(32 - bits)
    while True:
        drawn = np.int64(draw_word(state) >> shift)
        if drawn < n:
            return int(drawn)


@compiled_leaf
def draw_below(state: State, n: int) -> int:
    """Return an integer in [0, n), for n from 1 to 2³¹, like CPython's `Random._randbelow(n)`.

    `randint(a, b)` is a + draw_below(state, b − a + 1).
    """
    return _draw_bits_below(state, n, _bit_length(n))


@compiled_leaf
def shuffle(state: State, values: NDArray[np.int64], count: int) -> None:
    """Shuffle the first `count` values in place, like `random.shuffle`."""
    bits = _bit_length(count)  # kept up to date below: computing it for each n costs more than the draw
    for n in range(count, 1, -1):
        if n >> (bits - 1) == 0:
            bits -= 1
        j = _draw_bits_below(state, n, bits)
        values[n - 1], values[j] = values[j], values[n - 1]
