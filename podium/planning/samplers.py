"""Samplers: the order in which a run draws its samples, from stateless seeded permutations.

Sample number i of a run is a function of (seed, i) alone: nothing is shuffled in memory, a resumed run needs only its
position, and any rank can look ahead. Each epoch is another permutation of all samples, or of each length stratum: a
balanced Feistel network on the smallest even number of bits that covers the dataset, with a multiplicative hash as
round function; numbers outside the dataset are permuted again (cycle-walking, Black and Rogaway, CT-RSA 2002).

- Sharded: every rank draws its local batches from its own part of the dataset, a consecutive range of the store, so
  that a rank needs only the shards of its part on its disk.
- Phases: training first on samples prepared for a shorter length, later on samples of the full length. Source: BERT's
  pre-training (Devlin et al., arXiv 1810.04805), at length 128 first and at 512 later. The stores of all phases are
  one dataset, and each phase draws from a range of it.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np

from benchmarks.bert.length_index import Counts
from podium.core.errors import UsageError
from podium.core.jit import compiled, compiled_inline
from podium.planning.strata import Strata

ROUNDS = 6  # of the Feistel network
CHUNK = 4096  # values that are permuted together: few enough to stay in the cache
STRATA_COUNT = 4
CACHED_EPOCHS = 4  # whose keys of all parts are cached
_U64 = np.uint64


class Order(Protocol):
    """Infinite order in which a run draws the samples of the dataset."""

    def samples(self, first: int, count: int) -> np.ndarray:
        """Dataset indices [count] int64 of the run's samples number first … first + count - 1."""


@dataclass(frozen=True)
class Sampler:
    """Order of `size` samples: a seeded permutation for each epoch."""

    size: int
    seed: int
    start: int = 0  # dataset index of the first sample

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
        keys = np.stack([_keys(self.seed, number) for number in numbers])
        places = permute(positions, np.full(len(keys), self.size, dtype=np.uint64), self.size, keys, epochs)
        return places + self.start if self.start else places


class StratifiedSampler:
    """Order in which every local batch has a fixed number of samples of each length stratum, in stratum order.

    Sample number i has slot i % B of local batch i // B. The slots are distributed among the strata in proportion to
    their samples, by largest remainder. Each stratum has a separate order with its own epochs, in each of which every
    sample of the stratum is drawn exactly once. Strata are quarters of the longest length: 1–128, 129–256, 257–384 and
    385–512 of 512 (Samsung, arXiv 2402.02447). Stateless like `Sampler`.

    Since slots are integers, the epochs of strata differ somewhat in length. A stratum without samples gets no slot.
    """

    def __init__(
        self, lengths: Counts, *, batch: int, seed: int, max_length: int, counts: Sequence[int] | None = None
    ) -> None:
        """`lengths` [N] of all samples, of 1 to `max_length` tokens; `batch` is B, the samples of a local batch.

        `counts` [strata] replace the proportional slots of each stratum. Raises ValueError for no samples, an empty
        batch, or counts that do not sum to a batch. Raises UsageError for a stratum with samples but without slots,
        whose samples would never be drawn, and for one with slots but without samples.
        """
        if batch < 1 or not len(lengths):
            raise ValueError("a stratified sampler needs at least one sample, and batches of at least one")
        self.batch = batch
        self.bounds = stratum_bounds(max_length)  # [strata] longest length of each
        self._strata = Strata(lengths, self.bounds)
        sizes = self._strata.sizes
        if counts is None:
            self.counts = apportion(sizes, batch)  # [strata] slots
            self._require_slots(sizes)
        else:
            self.counts = np.array(counts, dtype=np.int64)
            self._require_matching_counts(sizes)
        self._samplers = [
            Sampler(int(size), _derived_seed(seed, stratum)) if size else None for stratum, size in enumerate(sizes)
        ]

    def samples(self, first: int, count: int) -> np.ndarray:
        """Dataset indices [count] int64 of the run's samples number first … first + count - 1."""
        batch, skipped = divmod(first, self.batch)
        batches = -(-(skipped + count) // self.batch)
        drawn = np.empty((batches, self.batch), dtype=np.int64)
        slot = 0
        for stratum, (sampler, slots) in enumerate(zip(self._samplers, self.counts.tolist(), strict=True)):
            if sampler is not None:
                numbers = sampler.samples(batch * slots, batches * slots)
                drawn[:, slot : slot + slots] = self._strata.indices(stratum, numbers).reshape(batches, slots)
            slot += slots
        return drawn.reshape(-1)[skipped : skipped + count]

    def mean_of(self, values: np.ndarray) -> float:
        """Mean over whole epochs of the values [N] of the samples that are drawn.

        It differs from the mean of `values`: slots are integers, so that a stratum may be drawn more often than its
        share of the samples.
        """
        means = np.array(
            [values[self._strata.members(int(stratum))].mean() for stratum in np.flatnonzero(self._strata.sizes)]
        )
        return float(self.counts[self.counts > 0] @ means) / self.batch

    def _require_slots(self, sizes: np.ndarray) -> None:
        for stratum in np.flatnonzero((sizes > 0) & (self.counts == 0)):
            shortest = int(self.bounds[stratum - 1]) + 1 if stratum else 1
            raise UsageError(
                f"balancing: found stratified samples in local batches of {self.batch}, which would have none of the "
                f"{sizes[stratum]:,} samples of {shortest} to {self.bounds[stratum]} tokens; allowed are local "
                f"batches with one of each stratum, such as {_next_batch(sizes, self.batch)}; "
                "set global_batch_size, or use balancing=indexed"
            )

    def _require_matching_counts(self, sizes: np.ndarray) -> None:
        """Raise an error unless the configured counts match strata of these sizes [strata]."""
        counts = self.counts.tolist()
        if len(counts) != STRATA_COUNT or min(counts) < 0 or sum(counts) != self.batch:
            raise ValueError(f"slots {counts} of {STRATA_COUNT} strata do not add up to a batch of {self.batch}")
        for stratum in np.flatnonzero((sizes > 0) != (self.counts > 0)):
            raise UsageError(
                f"strata_counts: found {counts}, but the {sizes[stratum]:,} samples of up to {self.bounds[stratum]} "
                f"tokens in stratum {stratum + 1} do not match its {counts[stratum]} slots; give slots to all strata "
                "with samples and to no other, or leave strata_counts out"
            )


def stratum_bounds(max_length: int) -> np.ndarray:
    """Longest length of each stratum [strata]: quarters of `max_length`, rounded down."""
    bounds: np.ndarray = np.arange(1, STRATA_COUNT + 1) * max_length // STRATA_COUNT
    return bounds


def apportion(sizes: np.ndarray, places: int) -> np.ndarray:
    """Distribute `places` among groups of these sizes [n] in proportion, by largest remainder: int64 [n].

    Ties go to the first group.
    """
    # Python integers, exact for any size, so that every machine computes the same.
    whole = int(sizes.sum())
    exact = [int(size) * places for size in sizes]
    counts = np.array([value // whole for value in exact], dtype=np.int64)
    remainders = np.array([value % whole for value in exact], dtype=np.int64)
    counts[np.argsort(-remainders, kind="stable")[: places - int(counts.sum())]] += 1
    return counts


def _next_batch(sizes: np.ndarray, batch: int) -> int:
    """Return a larger batch in which every stratum with samples has a slot: the next one, if it is near."""
    used = sizes[sizes > 0]
    certain = -(-int(used.sum()) // int(used.min()))  # the rarest stratum has a share of one slot or more
    near = range(batch + 1, min(certain, batch + 1000))
    return next((larger for larger in near if apportion(used, larger).min() > 0), certain)


def _derived_seed(seed: int, number: int) -> int:
    return int(np.random.SeedSequence(seed, spawn_key=(number,)).generate_state(1, np.uint64)[0])


def permute(values: np.ndarray, sizes: np.ndarray, largest: int, keys: np.ndarray, which: np.ndarray) -> np.ndarray:
    """Permute each value [n] uint64 within 0 … size − 1 by one of k permutations: int64 [n].

    Value i is permuted by number which[i], whose size and keys are in `sizes` [k] uint64 and `keys` [k, ROUNDS].
    `largest` is the maximum of `sizes`.
    """
    half_bits = max(1, ((largest - 1).bit_length() + 1) // 2)
    places = np.empty(len(values), dtype=np.int64)
    _permute(values, sizes, keys, which, _U64(half_bits), _U64((1 << half_bits) - 1), places)
    return places


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
            for i in range(len(walking)):  # branch-free, so that it is vectorised
                left, right = walking[i] >> shift, walking[i] & mask
                left, right = right, left ^ (_splitmix64(right ^ a) & mask)
                left, right = right, left ^ (_splitmix64(right ^ b) & mask)
                left, right = right, left ^ (_splitmix64(right ^ c) & mask)
                left, right = right, left ^ (_splitmix64(right ^ d) & mask)
                left, right = right, left ^ (_splitmix64(right ^ e) & mask)
                left, right = right, left ^ (_splitmix64(right ^ f) & mask)
                walking[i] = (left << shift) | right
            # Cycle-walking: values outside of the dataset are permuted again.
            outside = 0
            for i in range(len(walking)):
                value = walking[i]
                places[at[i]] = value
                walking[outside], at[outside] = value, at[i]
                outside += value >= inside
            walking = walking[:outside]
        first = last


@compiled_inline
def _splitmix64(x: np.uint64) -> np.uint64:
    """The finaliser of splitmix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    x = (x ^ (x >> _U64(30))) * _U64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> _U64(27))) * _U64(0x94D049BB133111EB)
    return x ^ (x >> _U64(31))


@dataclass(frozen=True)
class Phase:
    """Part of a run that draws from a range of the dataset, with samples of at most `max_sequence_length` tokens."""

    max_sequence_length: int
    samples: int | None  # rounded up to whole global batches; None (only in the last phase): to the end of the run
    start: int = 0  # dataset index of the first sample of its range
    stop: int | None = None  # index after the last one; None: the end of the dataset
    accumulation_steps: int | None = None  # micro-batches of a local batch; None: the run's


@dataclass(frozen=True)
class Phased:
    """Concatenation of orders: order p has the sample numbers from firsts[p] to the first one of order p + 1."""

    orders: Sequence[Order]
    firsts: Sequence[int]

    def samples(self, first: int, count: int) -> np.ndarray:
        parts = []
        while count > 0:
            phase = phase_of(self.firsts, first)
            here = min(count, self.firsts[phase + 1] - first) if phase + 1 < len(self.firsts) else count
            parts.append(self.orders[phase].samples(first - self.firsts[phase], here))
            first, count = first + here, count - here
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


def phase_of(firsts: Sequence[int], number: int) -> int:
    """Phase of a sample number, where phase p begins with number firsts[p], ascending from 0."""
    return bisect_right(firsts, number) - 1


def first_samples(phases: Sequence[Phase], batch: int) -> list[int]:
    """Number of each phase's first sample; phases are whole global batches of `batch` samples."""
    firsts = [0]
    for phase in phases[:-1]:
        assert phase.samples is not None, "only the last phase has no end"
        firsts.append(firsts[-1] + -(-phase.samples // batch) * batch)
    return firsts


def part_bounds(samples: int, ranks: int) -> np.ndarray:
    """Bounds [ranks + 1] int64 of equal parts of a dataset: rank r has the samples bounds[r] to bounds[r + 1]."""
    bounds: np.ndarray = np.arange(ranks + 1, dtype=np.int64) * samples // ranks
    return bounds


class ShardedSampler:
    """Order in which each rank draws from its own part of the dataset.

    Sample number i belongs to global batch i // (W · B), and there to the local batch of rank (i // B) % W. A rank
    draws its sample number k (B in every global batch) from its part, with keys derived from seed, epoch and rank.
    """

    def __init__(self, bounds: np.ndarray, *, batch: int, seed: int) -> None:
        """`bounds` [W + 1] of the parts; `batch` is B, the samples of a local batch.

        Raises ValueError for no part, an empty part, or an empty batch.
        """
        self.sizes = np.diff(bounds).astype(np.uint64)
        if batch < 1 or not len(self.sizes) or not (np.diff(bounds) > 0).all():
            raise ValueError("per-rank parts need at least one sample each, and batches of at least one")
        self.bounds, self.batch, self.seed = bounds.astype(np.int64), batch, seed
        self._key_cache: dict[int, np.ndarray] = {}

    def samples(self, first: int, count: int) -> np.ndarray:
        """Dataset indices [count] int64 of the run's samples number first … first + count - 1."""
        ranks = len(self.sizes)
        local_batches, slots = np.divmod(np.arange(first, first + count), self.batch)
        batches, rank_of = np.divmod(local_batches, ranks)
        numbers = (batches * self.batch + slots).astype(np.uint64)
        epochs, positions = np.divmod(numbers, self.sizes[rank_of])
        if not count:
            return np.empty(0, dtype=np.int64)
        first_epoch, last_epoch = int(epochs.min()), int(epochs.max())
        keys = np.concatenate([self._keys_of(epoch) for epoch in range(first_epoch, last_epoch + 1)])
        sizes = np.tile(self.sizes, last_epoch + 1 - first_epoch)
        which = (epochs.astype(np.int64) - first_epoch) * ranks + rank_of
        places = permute(positions, sizes, int(self.sizes.max()), keys, which)
        indices: np.ndarray = self.bounds[rank_of] + places
        return indices

    def _keys_of(self, epoch: int) -> np.ndarray:
        """Keys [W, ROUNDS] of all parts in an epoch; those of the last few epochs are cached."""
        if (keys := self._key_cache.get(epoch)) is None:
            # A single rank has the same order as `Sampler`.
            parts = [(epoch, 1 + rank) if len(self.sizes) > 1 else (epoch,) for rank in range(len(self.sizes))]
            keys = np.stack([_keys(self.seed, *part) for part in parts])
            while len(self._key_cache) >= CACHED_EPOCHS:
                self._key_cache.pop(min(self._key_cache))
            self._key_cache[epoch] = keys
        return keys


@lru_cache(maxsize=4096)
def _keys(*entropy: int) -> np.ndarray:
    """Keys [ROUNDS] uint64 of a permutation, from seed and epoch, and for parts also the rank + 1."""
    return np.random.SeedSequence(entropy).generate_state(ROUNDS, np.uint64)


def build_order(
    samples: int,
    *,
    seed: int,
    ranks: int,
    local_batch: int,
    shards: str = "shared",
    phases: Sequence[Phase] = (),
) -> Order:
    """Build the order of a dataset of `samples` samples, without strata.

    `shards`: `shared`, where any rank draws any sample, or `per_rank`, where the r-th run of `local_batch` samples in
    each global batch is from the r-th part of the dataset or of the phase's range. Raises UsageError where a rank has
    no sample to draw.
    """
    if not phases:
        return _range_order(0, samples, seed, ranks, local_batch, shards)
    orders = [
        _range_order(
            phase.start,
            samples if phase.stop is None else phase.stop,
            _derived_seed(seed, number),
            ranks,
            local_batch,
            shards,
        )
        for number, phase in enumerate(phases)
    ]
    return Phased(orders, first_samples(phases, ranks * local_batch))


def _range_order(start: int, stop: int, seed: int, ranks: int, local_batch: int, shards: str) -> Order:
    """Build the order of the samples with dataset indices start … stop - 1."""
    if shards == "shared":
        return Sampler(stop - start, seed, start)
    if stop - start < ranks:
        raise UsageError(
            f"shards: found per_rank, but {ranks} ranks cannot each have a part of {stop - start:,} samples; use fewer "
            "ranks, a longer text, or shards=shared"
        )
    return ShardedSampler(start + part_bounds(stop - start, ranks), batch=local_batch, seed=seed)
