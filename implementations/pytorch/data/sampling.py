"""Which sample comes when: a stateless seeded permutation.

Sample number i of a run is a function of (seed, i) alone, so nothing is shuffled in memory, a resumed run needs only
its position, and any rank can look ahead. An epoch is a permutation of all samples; the next epoch is another one.

The permutation is a balanced Feistel network on the smallest even number of bits that holds the dataset, with a
multiplicative hash as round function; numbers that fall outside the dataset are sent through again until they are
inside (cycle-walking, Black and Rogaway, CT-RSA 2002).
"""

from dataclasses import dataclass

import numpy as np

ROUNDS = 6
_U64 = np.uint64


@dataclass(frozen=True)
class Sampler:
    """The order of `size` samples under `seed`."""

    size: int
    seed: int

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError("a sampler needs at least one sample")

    def samples(self, first: int, count: int) -> np.ndarray:
        """Dataset indices [count] int64 of the run's samples number first … first + count - 1."""
        numbers = np.arange(first, first + count, dtype=np.uint64)
        epochs, positions = np.divmod(numbers, _U64(self.size))
        indices = np.empty(count, dtype=np.int64)
        for epoch in np.unique(epochs):
            inside = epochs == epoch
            indices[inside] = self._permute(positions[inside], int(epoch))
        return indices

    def _permute(self, values: np.ndarray, epoch: int) -> np.ndarray:
        half_bits = max(1, ((self.size - 1).bit_length() + 1) // 2)
        keys = _round_keys(self.seed, epoch)
        result = _feistel(values, half_bits, keys)
        while np.any(outside := result >= self.size):
            result[outside] = _feistel(result[outside], half_bits, keys)
        return result.astype(np.int64)


def _round_keys(seed: int, epoch: int) -> np.ndarray:
    keys: np.ndarray = np.random.SeedSequence([seed, epoch]).generate_state(ROUNDS, np.uint64)
    return keys


def _feistel(values: np.ndarray, half_bits: int, keys: np.ndarray) -> np.ndarray:
    shift, mask = _U64(half_bits), _U64((1 << half_bits) - 1)
    left, right = values >> shift, values & mask
    for key in keys:
        left, right = right, left ^ (_mix(right ^ key) & mask)
    return (left << shift) | right


def _mix(x: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    x = (x ^ (x >> _U64(30))) * _U64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> _U64(27))) * _U64(0x94D049BB133111EB)
    mixed: np.ndarray = x ^ (x >> _U64(31))
    return mixed
