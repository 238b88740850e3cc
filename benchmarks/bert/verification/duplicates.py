"""Samples that occur more than once, within a shard and across shards, found by hash and confirmed by content.

The hashes are processed in partitions by their highest bits, so that memory beyond the hashes themselves does not
grow with the store: about 400 MB, and 8 bytes for each pair of shards.

The 64-bit hash covers all of a sample: token ids, first segment length, masked positions, masked token ids and
label, with the lengths of the arrays first. Four 16-bit values at a time are joined into a word w, and the state h
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

PARTITION = 2**23  # hashes, about, that are sorted at once
CONFIRMED = 4_096  # pairs of equal hashes whose samples are read and compared
# Steps for counting what pairs of shards share; where there are more, a random part of the hashes is counted.
PAIR_WORK = 2**30
OPEN_SHARDS = 32


@dataclass(frozen=True, eq=False)
class Duplicates:
    """What was found among all samples of some shards."""

    samples: int
    repeated: int  # samples that equal an earlier one
    # [shards, shards] samples that two shards share (of one that occurs a times here and b times there, min(a, b)),
    # above the diagonal; estimated from a random part where that is too much work.
    shared: NDArray[np.float64]
    compared: int  # pairs of samples with equal hashes that were read and compared
    unequal: int  # those of them that differ: collisions of the hash

    def shares(self, sizes: Sequence[int]) -> NDArray[np.float64]:
        """What two shards share, of the smaller one's samples, [shards, shards]; 0 but above the diagonal."""
        smaller = np.minimum.outer(np.array(sizes), np.array(sizes))
        shares: NDArray[np.float64] = np.minimum(1.0, self.shared / smaller)
        return shares


def find_duplicates(paths: Sequence[Path], hashes: Sequence[NDArray[np.uint64]]) -> Duplicates:
    """Find what occurs more than once in shards with these hashes, u8 [samples] each.

    Counts are lowered by the share of collisions among the pairs that were compared. Raises WorkError for a shard
    that can no longer be read.
    """
    total = sum(len(part) for part in hashes)
    if not total:
        return Duplicates(0, 0, np.zeros((0, 0)), 0, 0)
    bits = max(0, (total - 1).bit_length() - (PARTITION - 1).bit_length())
    shared = np.zeros((len(hashes), len(hashes)))
    places: list[NDArray[np.int64]] = []
    repeated = 0
    step = 0
    for partition in range(2**bits):
        values, shards, indices = _members(hashes, partition, bits)
        order = np.argsort(values, kind="stable")
        values, shards, indices = values[order], shards[order], indices[order]
        if not step:  # one hash of so many is counted, a power of 2
            work = _pair_work(values, shards) * 2**bits
            step = 1 << max(0, (-(-work // PAIR_WORK) - 1).bit_length())
        _count_shared(values, shards, np.uint64(step - 1), float(step), shared)
        again = np.flatnonzero(values[1:] == values[:-1])
        repeated += len(again)
        again = again[: max(1, CONFIRMED >> bits)]
        places.append(np.stack([shards[again], indices[again], shards[again + 1], indices[again + 1]], axis=1))
    compared = np.concatenate(places)
    unequal = _count_unequal(paths, compared)
    real = 1 - unequal / len(compared) if len(compared) else 1.0
    return Duplicates(total, round(repeated * real), shared * real, len(compared), unequal)


def _members(
    hashes: Sequence[NDArray[np.uint64]], partition: int, bits: int
) -> tuple[NDArray[np.uint64], NDArray[np.int32], NDArray[np.int64]]:
    """The hashes whose highest bits are `partition`, with their shards and their indices there."""
    shift, wanted = np.uint64(64 - bits), np.uint64(partition)
    chosen = [np.flatnonzero(part >> shift == wanted) if bits else np.arange(len(part)) for part in hashes]
    values = np.concatenate([part[indices] for part, indices in zip(hashes, chosen, strict=True)])
    shards = np.repeat(np.arange(len(hashes), dtype=np.int32), [len(indices) for indices in chosen])
    return values, shards, np.concatenate(chosen)


@compiled
def _pair_work(values: NDArray[np.uint64], shards: NDArray[np.int32]) -> int:
    """Steps of _count_shared over all of these."""
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
    """Add to shared[a, b], a < b, what shards a and b share of the values whose `low_bits` are 0.

    The values are sorted, and the shards of equal values too.
    """
    start = 0
    runs = np.empty((shared.shape[0], 2), dtype=np.int64)  # of one value: a shard, and how often it occurs there
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


def _count_unequal(paths: Sequence[Path], pairs: NDArray[np.int64]) -> int:
    """How many of the pairs [n, 4] (shard, index, shard, index) are two samples that differ."""
    opened = lru_cache(OPEN_SHARDS)(Shard)

    def read(shard: int, index: int) -> tuple[Any, ...]:
        return opened(paths[shard]).read(index)

    unequal = 0
    for shard, index, other_shard, other_index in sorted(map(tuple, pairs.tolist()), key=lambda p: (p[0], p[2])):
        parts = zip(read(shard, index), read(other_shard, other_index), strict=True)
        unequal += not all(np.array_equal(one, other) for one, other in parts)
    return unequal


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
    """The state after values[start:end]; the last word is filled up with zeros."""
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
    """The hash of each sample, u8 [N]: 8 bytes a sample are all that it allocates."""
    return _hash_flat(samples.arrays)
