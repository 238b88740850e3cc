"""Which sample comes when: stateless seeded permutations, of all samples or of each length stratum.

Sample number i of a run is a function of (seed, i) alone, so nothing is shuffled in memory, a resumed run needs only
its position, and any rank can look ahead. An epoch is a permutation of all samples; the next epoch is another one.

The permutation is a balanced Feistel network on the smallest even number of bits that holds the dataset, with a
multiplicative hash as round function; numbers that fall outside the dataset are sent through again until they are
inside (cycle-walking, Black and Rogaway, CT-RSA 2002).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from benchmarks.compiled import compiled, compiled_inline
from benchmarks.errors import UsageError

ROUNDS = 6
CHUNK = 4096
"""Values that are permuted together."""
STRATA = 4
_U64 = np.uint64


class Order(Protocol):
    """Which sample of the dataset comes when, in a run without end."""

    def samples(self, first: int, count: int) -> np.ndarray:
        """Dataset indices [count] int64 of the run's samples number first … first + count - 1."""


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
        epoch, start = divmod(first, self.size)
        positions, epochs = np.arange(start, start + count, dtype=np.uint64), np.zeros(count, dtype=np.uint64)
        if start + count > self.size:
            epochs, positions = np.divmod(positions, _U64(self.size))
        numbers = range(epoch, epoch + (int(epochs[-1]) if count else 0) + 1)
        keys = np.stack([round_keys(self.seed, number) for number in numbers])
        return permute(positions, np.full(len(keys), self.size, dtype=np.uint64), self.size, keys, epochs)


class StratifiedSampler:
    """An order in which every local batch has a fixed number of samples of each length stratum, in stratum order.

    Sample number i belongs to local batch i // B, where it has slot i % B. The slots are shared out among the strata in
    proportion to their samples, by largest remainder. A stratum is an endless order of its own, with its own epochs:
    each of its samples comes exactly once in each of them. Strata are quarters of the longest length: 1–128, 129–256,
    257–384 and 385–512 of 512 (Samsung, arXiv 2402.02447). Stateless as `Sampler` is.

    Since counts are whole, a stratum's share of a batch is not quite its share of the data, and its epochs are shorter
    or longer than the others' by as much. A stratum without samples gets no slot.
    """

    def __init__(
        self, lengths: np.ndarray, *, batch: int, seed: int, max_length: int, counts: Sequence[int] | None = None
    ) -> None:
        """`lengths` [N] of all samples, of 1 to `max_length` tokens; `batch` is B, the samples of a local batch.

        `counts` are slots for each stratum in place of those that the lengths give. Holds one index of 4 bytes (8 from
        2³² samples on) for each sample. Raises ValueError where there are no samples or no slots, or counts that are
        not whole batches or not of strata that have samples, and UsageError where a stratum that has samples gets no
        slot: they would never be drawn.
        """
        if batch < 1 or not len(lengths):
            raise ValueError("a stratified sampler needs at least one sample, and batches of at least one")
        if lengths.min() < 1 or lengths.max() > max_length:
            raise ValueError(f"a stratified sampler needs samples of 1 to {max_length} tokens")
        self.batch = batch
        self.bounds = stratum_bounds(max_length)
        """[strata] the longest length of each."""
        stratum_of = np.searchsorted(self.bounds, np.arange(max_length + 1)).astype(np.uint8)[lengths]
        sizes = np.bincount(stratum_of, minlength=len(self.bounds))
        self.counts = shares(sizes, batch) if counts is None else np.array(counts, dtype=np.int64)
        """[strata] slots of a local batch."""
        fitting = len(self.counts) == STRATA and self.counts.min() >= 0 and not self.counts[sizes == 0].any()
        if not fitting or self.counts.sum() != batch:
            raise ValueError(
                f"slots {self.counts.tolist()} are no batch of {batch} of strata of {sizes.tolist()} samples"
            )
        self._require_slots(sizes)
        kind = np.uint32 if len(lengths) < 2**32 else np.int64
        self._indices = [np.flatnonzero(stratum_of == stratum).astype(kind) for stratum in range(len(sizes))]
        self._samplers = [
            Sampler(len(indices), _seed_of_stratum(seed, stratum)) if len(indices) else None
            for stratum, indices in enumerate(self._indices)
        ]
        self._slots = np.repeat(np.arange(len(sizes)), self.counts)

    def samples(self, first: int, count: int) -> np.ndarray:
        """Dataset indices [count] int64 of the run's samples number first … first + count - 1."""
        strata = self._slots[np.arange(first, first + count) % self.batch]
        drawn = np.empty(count, dtype=np.int64)
        for stratum, (indices, sampler) in enumerate(zip(self._indices, self._samplers, strict=True)):
            if sampler is not None:
                before, after = self._drawn(stratum, first), self._drawn(stratum, first + count)
                drawn[strata == stratum] = indices[sampler.samples(before, after - before)]
        return drawn

    def _drawn(self, stratum: int, number: int) -> int:
        """Samples of a stratum among the run's first `number`."""
        count, before = int(self.counts[stratum]), int(self.counts[:stratum].sum())
        batches, slot = divmod(number, self.batch)
        return batches * count + min(max(slot - before, 0), count)

    def _require_slots(self, sizes: np.ndarray) -> None:
        for stratum in np.flatnonzero((sizes > 0) & (self.counts == 0)):
            shortest = int(self.bounds[stratum - 1]) + 1 if stratum else 1
            raise UsageError(
                f"balancing: found stratified samples in local batches of {self.batch}, of which none would be one of "
                f"the {sizes[stratum]:,} samples of {shortest} to {self.bounds[stratum]} tokens; allowed are local "
                f"batches with one of each stratum, such as {_next_batch(sizes, self.batch)}; "
                "set global_batch_size, or use balancing=indexed"
            )


def stratum_bounds(max_length: int) -> np.ndarray:
    """[strata] the longest length of each stratum: quarters of the longest there is, rounded down."""
    bounds: np.ndarray = np.arange(1, STRATA + 1) * max_length // STRATA
    return bounds


def shares(sizes: np.ndarray, places: int) -> np.ndarray:
    """[n] places for groups of these sizes [n]: in proportion, what is left over to the largest remainders.

    Of equal remainders the first is preferred. Whole numbers only, so that every machine finds the same.
    """
    whole = int(sizes.sum())
    exact = [int(size) * places for size in sizes]
    counts = np.array([value // whole for value in exact], dtype=np.int64)
    remainders = np.array([value % whole for value in exact], dtype=np.int64)
    counts[np.argsort(-remainders, kind="stable")[: places - int(counts.sum())]] += 1
    return counts


def _next_batch(sizes: np.ndarray, batch: int) -> int:
    """A larger batch in which every stratum that has samples has a slot: the next, or one that is sure to be."""
    used = sizes[sizes > 0]
    certain = -(-int(used.sum()) // int(used.min()))  # the rarest stratum has a whole slot
    near = range(batch + 1, min(certain, batch + 1000))
    return next((larger for larger in near if shares(used, larger).min() > 0), certain)


def _seed_of_stratum(seed: int, stratum: int) -> int:
    return int(np.random.SeedSequence(seed, spawn_key=(stratum,)).generate_state(1, np.uint64)[0])


def permute(values: np.ndarray, sizes: np.ndarray, largest: int, keys: np.ndarray, which: np.ndarray) -> np.ndarray:
    """Where each value [n] uint64 of 0 … size - 1 goes: int64 [n], each size's values permuted among themselves.

    Value i goes by permutation which[i] of [k], one for each of `sizes` [k] uint64 with its `keys` [k, ROUNDS].
    `largest` is the greatest size that there is.
    """
    half_bits = max(1, ((largest - 1).bit_length() + 1) // 2)
    places = np.empty(len(values), dtype=np.int64)
    _permute(values, sizes, keys, which, _U64(half_bits), _U64((1 << half_bits) - 1), places)
    return places


def round_keys(seed: int, epoch: int) -> np.ndarray:
    """Keys [ROUNDS] uint64 of an epoch's permutation."""
    return round_keys_of(np.random.SeedSequence([seed, epoch]))


def round_keys_of(source: np.random.SeedSequence) -> np.ndarray:
    """Keys [ROUNDS] uint64 from any source."""
    keys: np.ndarray = source.generate_state(ROUNDS, np.uint64)
    return keys


@compiled
def _permute(
    values: np.ndarray,
    sizes: np.ndarray,
    keys: np.ndarray,
    which: np.ndarray,
    shift: np.uint64,
    mask: np.uint64,
    places: np.ndarray,
) -> None:
    first = 0
    while first < len(values):
        last, chosen = first + 1, which[first]
        while last < len(values) and which[last] == chosen and last - first < CHUNK:
            last += 1
        inside, own = sizes[chosen], keys[chosen]
        a, b, c, d, e, f = own[0], own[1], own[2], own[3], own[4], own[5]
        walking, at = values[first:last].copy(), np.arange(first, last)
        while len(walking):
            for i in range(len(walking)):  # nothing but arithmetic, so that it is vectorised
                left, right = walking[i] >> shift, walking[i] & mask
                left, right = right, left ^ (_mix(right ^ a) & mask)
                left, right = right, left ^ (_mix(right ^ b) & mask)
                left, right = right, left ^ (_mix(right ^ c) & mask)
                left, right = right, left ^ (_mix(right ^ d) & mask)
                left, right = right, left ^ (_mix(right ^ e) & mask)
                left, right = right, left ^ (_mix(right ^ f) & mask)
                walking[i] = (left << shift) | right
            outside = 0
            for i in range(len(walking)):
                value = walking[i]
                places[at[i]] = value
                walking[outside], at[outside] = value, at[i]
                outside += value >= inside
            walking = walking[:outside]
        first = last


@compiled_inline
def _mix(x: np.uint64) -> np.uint64:
    """The finaliser of splitmix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    x = (x ^ (x >> _U64(30))) * _U64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> _U64(27))) * _U64(0x94D049BB133111EB)
    return x ^ (x >> _U64(31))
