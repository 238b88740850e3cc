"""Detection of duplicate samples within a shard and across shards, by hash and confirmed by content.

The hashes are processed in partitions by their highest bits, so that memory in addition to the hashes does not grow
with the store: about 400 MB, and 8 bytes for each pair of shards.

The 64-bit hash covers the whole sample: lengths of its arrays, first segment length, label, token ids, masked positions
and masked token ids. Four 16-bit values at a time are joined into a word w, and the state h
becomes rotate(h ^ mix(w)) * ODD; each of these steps is a bijection of h, so no state is lost, and a final mix lets
every bit reach every other. `mix` is the finaliser of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom
number generators, OOPSLA 2014). Of n different samples about n²/2⁶⁵ pairs have the same hash: 0.0007 of 1.6e8.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.bert.samples import FlatArrays, Samples
from benchmarks.bert.shard import Shard
from podium.core.jit import compiled

PARTITION_HASHES = 2**23  # approximate number of hashes that are sorted at once
MAX_COMPARED_PAIRS = 4_096  # of equal hashes, whose samples are read and compared
# Steps for counting the samples that pairs of shards share. Where more would be needed, a random part of the hashes
# (those whose low bits are 0) is counted and the result is extrapolated.
MAX_PAIR_STEPS = 2**30
MAX_OPEN_SHARDS = 32


@dataclass(frozen=True, eq=False)
class Duplicates:
    """Duplicates among all samples of some shards."""

    samples: int  # in all shards
    repeated: int  # samples equal to an earlier one
    # [shards, shards] number of samples that two shards share, above the diagonal; a sample that occurs a times in one
    # and b times in the other counts min(a, b). Extrapolated from a random part above MAX_PAIR_STEPS.
    shared: NDArray[np.float64]
    compared: int  # pairs of samples with equal hashes whose content was compared
    collisions: int  # compared pairs that differ: collisions of the hash

    def shares(self, sizes: Sequence[int]) -> NDArray[np.float64]:
        """`shared` relative to the smaller shard [shards, shards]; `sizes` are the samples of each shard."""
        smaller = np.minimum.outer(np.array(sizes), np.array(sizes))
        shares: NDArray[np.float64] = np.minimum(1.0, self.shared / smaller)
        return shares


def find_duplicates(paths: Sequence[Path], hashes: Sequence[NDArray[np.uint64]]) -> Duplicates:
    """Find duplicate samples in shards, from the hashes of each shard, u8 [samples].

    Counts are reduced by the share of hash collisions among the compared pairs. Raises WorkError for a shard that can
    no longer be read.
    """
    total = sum(len(part) for part in hashes)
    if not total:
        return Duplicates(0, 0, np.zeros((0, 0)), 0, 0)
    bits = max(0, (total - 1).bit_length() - (PARTITION_HASHES - 1).bit_length())
    shared = np.zeros((len(hashes), len(hashes)))
    places: list[NDArray[np.int64]] = []
    repeated = 0
    step = 0
    for partition in range(2**bits):
        values, shards, indices = _select_partition(hashes, partition, bits)
        order = np.argsort(values, kind="stable")
        values, shards, indices = values[order], shards[order], indices[order]
        if not step:  # one in `step` hashes is counted, a power of 2; estimated from the first partition
            work = _pair_work(values, shards) * 2**bits
            step = 1 << max(0, (-(-work // MAX_PAIR_STEPS) - 1).bit_length())
        _count_shared(values, shards, np.uint64(step - 1), float(step), shared)
        again = np.flatnonzero(values[1:] == values[:-1])
        repeated += len(again)
        again = again[: max(1, MAX_COMPARED_PAIRS >> bits)]
        places.append(np.stack([shards[again], indices[again], shards[again + 1], indices[again + 1]], axis=1))
    compared = np.concatenate(places)
    collisions = _count_collisions(paths, compared)
    real = 1 - collisions / len(compared) if len(compared) else 1.0
    return Duplicates(total, round(repeated * real), shared * real, len(compared), collisions)


def _select_partition(
    hashes: Sequence[NDArray[np.uint64]], partition: int, bits: int
) -> tuple[NDArray[np.uint64], NDArray[np.int32], NDArray[np.int64]]:
    """Select the hashes whose highest bits are `partition`: hashes, shard numbers, indices within the shards [n]."""
    shift, wanted = np.uint64(64 - bits), np.uint64(partition)
    chosen = [np.flatnonzero(part >> shift == wanted) if bits else np.arange(len(part)) for part in hashes]
    values = np.concatenate([part[indices] for part, indices in zip(hashes, chosen, strict=True)])
    shards = np.repeat(np.arange(len(hashes), dtype=np.int32), [len(indices) for indices in chosen])
    return values, shards, np.concatenate(chosen)


@compiled
def _pair_work(values: NDArray[np.uint64], shards: NDArray[np.int32]) -> int:
    """Number of innermost steps of _count_shared for these sorted hashes."""
    work, start, different = 0, 0, 1
    for place in range(1, len(values) + 1):
        if place == len(values) or values[place] != values[start]:
            work += different * (different - 1) // 2
            start, different = place, 1
        else:
            different += shards[place] != shards[place - 1]
    return work


@compiled
def _count_shared(
    values: NDArray[np.uint64],
    shards: NDArray[np.int32],
    low_bits: np.uint64,
    weight: float,
    shared: NDArray[np.float64],
) -> None:
    """Add `weight` to shared[a, b], a < b, for each sample that shards a and b share, if its hash has `low_bits` 0.

    `values` are the sorted hashes; equal ones are sorted by shard.
    """
    start = 0
    runs = np.empty((shared.shape[0], 2), dtype=np.int64)  # of one hash: the shard, and its occurrences there
    for place in range(1, len(values) + 1):
        if place < len(values) and values[place] == values[start]:
            continue
        if place - start > 1 and shards[start] != shards[place - 1] and values[start] & low_bits == 0:
            count = 0
            for member in range(start, place):
                if member == start or shards[member] != shards[member - 1]:
                    runs[count, 0] = shards[member]
                    runs[count, 1] = 0
                    count += 1
                runs[count - 1, 1] += 1
            for one in range(count):
                for other in range(one + 1, count):
                    shared[runs[one, 0], runs[other, 0]] += weight * min(runs[one, 1], runs[other, 1])
        start = place


def _count_collisions(paths: Sequence[Path], pairs: NDArray[np.int64]) -> int:
    """Number of pairs [n, 4] (shard, index, shard, index) whose samples differ."""
    opened = lru_cache(MAX_OPEN_SHARDS)(Shard)

    def read(shard: int, index: int) -> tuple[Any, ...]:
        return opened(paths[shard]).read(index)

    collisions = 0
    # Sorted by pairs of shards, so that the cache of open shards is effective.
    for shard, index, other_shard, other_index in sorted(map(tuple, pairs.tolist()), key=lambda p: (p[0], p[2])):
        parts = zip(read(shard, index), read(other_shard, other_index), strict=True)
        collisions += not all(np.array_equal(one, other) for one, other in parts)
    return collisions


_START = np.uint64(0x6A09E667F3BCC909)  # the fraction of √2
_ODD = np.uint64(0x9E3779B97F4A7C15)  # the fraction of the golden ratio
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_S16, _S27, _S30, _S31, _S32, _S35, _S48 = (np.uint64(shift) for shift in (16, 27, 30, 31, 32, 35, 48))


@compiled
def mix(word: np.uint64) -> np.uint64:
    """A bijection of 64 bits in which every bit depends on every other."""
    word = (word ^ (word >> _S30)) * _MIX_1
    word = (word ^ (word >> _S27)) * _MIX_2
    return word ^ (word >> _S31)


@compiled
def _absorb(state: np.uint64, word: np.uint64) -> np.uint64:
    mixed = state ^ mix(word + _ODD)
    return ((mixed << _S27) | (mixed >> (np.uint64(64) - _S27))) * _ODD


@compiled
def _absorb_values(state: np.uint64, values: NDArray[np.uint16], start: int, end: int) -> np.uint64:
    """Return the state after values[start:end], four values a word; the last word is padded with zeros."""
    place = start
    while place + 4 <= end:
        word = (
            np.uint64(values[place])
            | np.uint64(values[place + 1]) << _S16
            | np.uint64(values[place + 2]) << _S32
            | np.uint64(values[place + 3]) << _S48
        )
        state = _absorb(state, word)
        place += 4
    rest = np.uint64(0)
    shift = np.uint64(0)
    while place < end:
        rest |= np.uint64(values[place]) << shift
        shift += _S16
        place += 1
    return _absorb(state, rest) if shift else state


@compiled
def _hash_flat(arrays: FlatArrays) -> NDArray[np.uint64]:
    token_ids, sample_offsets, first_lengths, masked_positions, masked_token_ids, masked_offsets, labels = arrays
    hashes = np.empty(len(labels), dtype=np.uint64)
    for sample in range(len(labels)):
        start, end = sample_offsets[sample], sample_offsets[sample + 1]
        masked_start, masked_end = masked_offsets[sample], masked_offsets[sample + 1]
        sizes = (
            np.uint64(end - start)
            | np.uint64(masked_end - masked_start) << _S16
            | np.uint64(first_lengths[sample]) << _S32
            | np.uint64(labels[sample]) << _S48
        )
        state = _absorb(_START, sizes)
        state = _absorb_values(state, token_ids, start, end)
        state = _absorb_values(state, masked_positions, masked_start, masked_end)
        state = _absorb_values(state, masked_token_ids, masked_start, masked_end)
        hashes[sample] = mix(state ^ (state >> _S35))
    return hashes


def hash_samples(samples: Samples) -> NDArray[np.uint64]:
    """64-bit hash of each sample, u8 [N]; allocates only the result."""
    return _hash_flat(samples.arrays)
