"""Packing a histogram of lengths by non-negative least squares: how often to use each way of filling a row exactly.

Source: Krell, Kosec, Perez and Fitzgibbon (Graphcore), arXiv 2107.02027. There are 22,102 ways in which up to three
sequences fill 512 tokens. Their numbers x ≥ 0 are to use up the histogram b: minimise ‖A·x − b‖², where A has the
lengths of each way as a column. The problem is solved by projected gradients with momentum (Beck and Teboulle, SIAM J.
Imaging Sciences 2009; restarts by O'Donoghue and Candès, 2015): a product with A or its transpose is three look-ups a
way, and no matrix is stored.
"""

from dataclasses import dataclass

import numpy as np

from implementations.pytorch.data.packing.greedy import longest_pack_first
from implementations.pytorch.data.packing.packs import Packs, require_histogram

DEPTH = 3
"""Sequences of a row, at most."""
CHECKED_EVERY, LEAST_GAIN, MOST_ITERATIONS = 100, 1e-4, 2000
"""The solver ends where the error ‖A·x − b‖ has fallen by less than this share in so many iterations."""


def least_squares_packs(histogram: np.ndarray, row_tokens: int) -> Packs:
    """Pack all of a histogram (numbers of sequences of length 0, 1, 2, …), at most three to a row.

    The solution is rounded down. Where it uses a length more often than there are sequences, rows have an empty place
    instead; what it leaves over is packed best-fit decreasing, at most three to a row too. Raises ValueError for a
    sequence longer than a row.
    """
    require_histogram(histogram, row_tokens)
    wanted = np.zeros(row_tokens + 1, dtype=np.int64)
    wanted[: len(histogram[: row_tokens + 1])] = histogram[: row_tokens + 1]
    if not wanted.any():
        return Packs(row_tokens, {})
    ways = full_rows(row_tokens)
    times = np.floor(non_negative_least_squares(ways, wanted)).astype(np.int64)
    used = [(tuple(n for n in way if n), count) for way, count in zip(ways.tolist(), times.tolist(), strict=True)]
    packs = _without_excess(Packs.of(row_tokens, used), wanted)
    return packs + longest_pack_first(wanted - packs.histogram(), row_tokens, DEPTH)


def full_rows(row_tokens: int) -> np.ndarray:
    """[ways, 3] int64: every multiset of at most three lengths that sum to `row_tokens`, longest first, 0 for none."""
    shortest = np.arange(row_tokens // 3 + 1)
    ways = [
        np.stack([row_tokens - least - (middle := np.arange(least, (row_tokens - least) // 2 + 1)), middle], axis=1)
        for least in shortest
    ]
    leasts = np.repeat(shortest, [len(way) for way in ways])
    return np.concatenate([np.concatenate(ways), leasts[:, None]], axis=1)


def non_negative_least_squares(ways: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """[ways] float64 x ≥ 0 of least ‖A·x − wanted‖, where A·x counts the lengths in x rows of each way but length 0."""
    problem = _Problem(ways, wanted.astype(np.float64))
    rate = 1.0 / problem.greatest_eigenvalue()
    x = ahead = np.zeros(len(ways))
    momentum, last = 1.0, np.inf
    for iteration in range(1, MOST_ITERATIONS + 1):
        following = np.maximum(ahead - rate * problem.transposed(-problem.missing(ahead)), 0.0)
        if (ahead - following) @ (following - x) > 0:
            momentum = 1.0
        grown = (1 + np.sqrt(1 + 4 * momentum * momentum)) / 2
        ahead = following + (momentum - 1) / grown * (following - x)
        x, momentum = following, float(grown)
        if iteration % CHECKED_EVERY == 0:
            error = float(np.linalg.norm(problem.missing(x)))
            if error > last * (1 - LEAST_GAIN):
                break
            last = error
    return x


@dataclass(frozen=True)
class _Problem:
    ways: np.ndarray
    wanted: np.ndarray

    def missing(self, x: np.ndarray) -> np.ndarray:
        """wanted − A·x."""
        missing: np.ndarray = self.wanted - self._product(x)
        missing[0] = 0.0
        return missing

    def transposed(self, lengths: np.ndarray) -> np.ndarray:
        """Aᵀ of numbers [lengths] that has 0 for length 0."""
        sums: np.ndarray = lengths[self.ways].sum(axis=1)
        return sums

    def greatest_eigenvalue(self) -> float:
        """Of AᵀA, by power iteration; a little more, to be on the safe side."""
        x, value = np.ones(len(self.ways)), 0.0
        for _ in range(50):
            lengths = self._product(x)
            lengths[0] = 0.0
            x = self.transposed(lengths)
            value = float(np.linalg.norm(x))
            x /= value
        return 1.01 * value

    def _product(self, x: np.ndarray) -> np.ndarray:
        lengths: np.ndarray = np.bincount(
            self.ways.reshape(-1), np.repeat(x, self.ways.shape[1]), minlength=len(self.wanted)
        )
        return lengths


def _without_excess(packs: Packs, wanted: np.ndarray) -> Packs:
    """Empty places where a length is used more often than there are sequences, in the kinds that use it most."""
    counts = dict(packs.counts)
    excess = packs.histogram() - wanted
    for length in np.flatnonzero(excess > 0).tolist():
        too_many = int(excess[length])
        for kind in sorted((kind for kind in counts if length in kind), key=lambda kind: (-counts[kind], kind)):
            changed = min(counts[kind], too_many)
            shorter = list(kind)
            shorter.remove(length)
            counts[kind] -= changed
            counts[tuple(shorter)] = counts.get(tuple(shorter), 0) + changed
            too_many -= changed
            if not too_many:
                break
        if too_many:  # from kinds that have it twice or more, of which each round takes one
            return _without_excess(Packs.of(packs.row_tokens, counts.items()), wanted)
    return Packs.of(packs.row_tokens, ((kind, count) for kind, count in counts.items() if kind))
