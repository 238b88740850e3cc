"""A 64-bit hash of each sample, to find those that occur more than once.

All of a sample goes in: token ids, first segment length, masked positions, masked token ids and label, with the
lengths of the arrays first. Four 16-bit values at a time are joined into a word w, and the state h becomes
rotate(h ^ mix(w)) * ODD; each of these steps is a bijection of h, so no state is lost, and a final mix lets every bit
reach every other. `mix` is the finaliser of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number
generators, OOPSLA 2014). Of n different samples about n²/2⁶⁵ pairs have the same hash: 0.0007 of 1.6e8.
"""

import numpy as np
from numpy.typing import NDArray

from benchmarks.bert.samples import FlatArrays, Samples
from benchmarks.compiled import compiled

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
