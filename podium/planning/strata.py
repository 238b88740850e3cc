"""The samples of each length stratum of a dataset, found in the length index itself.

A stratum is a range of lengths, and so a range of the index's entries. Counts of its samples lead to the block that its
k-th sample is in, whose entries are then scanned: for the 157 million samples of Wikipedia these counts are 7 MB, where
the indices of all samples would be 627 MB.
"""

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.bert.length_index import Column, Counts
from podium.core.jit import compiled

HALF = np.uint64(64)  # entries that are counted together; a block has two halves
BLOCK = 2 * int(HALF)
BLOCKS = 16  # of a group
_U64 = np.uint64
TOGETHER = 64  # samples whose entries are loaded before the first of them is searched: loads then overlap


class _Stratum(NamedTuple):
    """What compiled code knows of a stratum."""

    low: np.generic  # its samples have the values low … low + span
    span: np.generic
    in_blocks: NDArray[np.uint8]  # samples of it in each block of values
    before: NDArray[Any]  # [groups + 1] samples of it before each group of blocks
    step: int
    groups: NDArray[np.uint32]  # the groups that its samples number 0, step, 2 · step, … are in


class Strata:
    """Samples of 1 to `bounds[-1]` tokens by stratum: stratum s has those of at most `bounds[s]` tokens, and more than
    those of the one before.

    Raises ValueError for samples of other lengths.
    """

    def __init__(self, lengths: Counts, bounds: np.ndarray) -> None:
        """`lengths` [N] of all samples: an array, or a column of a length index, which is then scanned as it is."""
        self._values, firsts = _values_of(lengths, bounds)
        self._strata = [_stratum(self._values, first, end) for first, end in pairwise(firsts)]
        # [strata] samples of each
        self.sizes = np.array([int(each.before[-1]) if each else 0 for each in self._strata], dtype=np.int64)
        if self.sizes.sum() < len(self._values):
            raise ValueError(f"a stratified sampler needs samples of 1 to {bounds[-1]} tokens")

    @property
    def nbytes(self) -> int:
        """Bytes held besides the length index."""
        return sum(sum(array.nbytes for array in (each.in_blocks, each.before, each.groups)) for each in self._used)

    def indices(self, stratum: int, numbers: np.ndarray) -> NDArray[np.int64]:
        """Dataset indices [n] of a stratum's samples with these numbers [n], which count from 0 in index order."""
        found = np.empty(len(numbers), dtype=np.int64)
        if (each := self._strata[stratum]) is not None:
            _search(self._values, each, numbers, found)
        return found

    def members(self, stratum: int) -> NDArray[np.int64]:
        """Dataset indices of all samples of a stratum, in ascending order."""
        return self.indices(stratum, np.arange(self.sizes[stratum]))

    @property
    def _used(self) -> list[_Stratum]:
        return [each for each in self._strata if each is not None]


def _values_of(lengths: Counts, bounds: np.ndarray) -> tuple[NDArray[Any], list[int]]:
    """Values [N] that ascend with the lengths, read-only, and the least of each stratum's and of those above."""
    firsts = [1, *(int(bound) + 1 for bound in bounds)]
    if isinstance(lengths, Column):
        values, firsts = lengths.entries, [(first - 1) << lengths.shift for first in firsts]
    else:
        values = np.asarray(lengths)
        if values.min(initial=0) < 0 or values.max(initial=0) >= 2**32:
            raise ValueError(f"a stratified sampler needs samples of 1 to {bounds[-1]} tokens")
        values = values.astype(np.uint16 if values.max(initial=0) < 2**16 else np.uint32, copy=False)
    values = np.ascontiguousarray(values).view()
    values.flags.writeable = False  # as a mapped index is: one type to compile for
    return values, firsts


def _stratum(values: NDArray[Any], first: int, end: int) -> _Stratum | None:
    """The stratum of the values `first` to `end` − 1; None where no length is between them."""
    kind = values.dtype.type
    if first == end or first > np.iinfo(values.dtype).max:
        return None
    low, span = kind(first), kind(min(end - 1, np.iinfo(values.dtype).max) - first)
    in_blocks = np.zeros(-(-len(values) // (BLOCK * BLOCKS)) * BLOCKS, dtype=np.uint8)  # whole groups
    _count_blocks(values, low, span, in_blocks)
    before = np.zeros(len(in_blocks) // BLOCKS + 1, dtype=np.uint32 if len(values) < 2**32 else np.int64)
    np.cumsum(in_blocks.reshape(-1, BLOCKS).sum(axis=1, dtype=before.dtype), out=before[1:])
    size = int(before[-1])
    step = max(1, size // (len(before) - 1))  # so that most of a stratum's groups have a number of their own
    groups = np.searchsorted(before, np.arange(0, size, step), side="right") - 1
    return _Stratum(low, span, in_blocks, before, step, groups.astype(np.uint32))


@compiled
def _inside(values: np.ndarray, start: np.uint64, low: np.generic, span: np.generic) -> np.uint64:
    """Which of at most HALF values from `start` on are `low` to `low` + `span`: a bit of each, the first the lowest.

    Unsigned indices, so that it is vectorised: numba counts signed ones from the end where they are negative.
    """
    bits, rest = _U64(0), np.uint64(len(values)) - start
    if rest >= HALF:
        for k in range(HALF):
            bits |= np.uint64(values.dtype.type(values[start + k] - low) <= span) << k
    else:
        for k in range(rest):
            bits |= np.uint64(values.dtype.type(values[start + k] - low) <= span) << k
    return bits


@compiled
def _ones(bits: np.uint64) -> np.int64:
    """How many bits are set (Hacker's Delight, 5-1)."""
    bits -= (bits >> _U64(1)) & _U64(0x5555555555555555)
    bits = (bits & _U64(0x3333333333333333)) + ((bits >> _U64(2)) & _U64(0x3333333333333333))
    bits = (bits + (bits >> _U64(4))) & _U64(0x0F0F0F0F0F0F0F0F)
    return np.int64((bits * _U64(0x0101010101010101)) >> _U64(56))


@compiled
def _count_blocks(values: np.ndarray, low: np.generic, span: np.generic, in_blocks: np.ndarray) -> None:
    """Add how many values of each block are `low` to `low` + `span`."""
    for half in range((np.uint64(len(values)) + HALF - _U64(1)) // HALF):
        in_blocks[half // _U64(2)] += np.uint8(_ones(_inside(values, half * HALF, low, span)))


@compiled
def _search(values: np.ndarray, stratum: _Stratum, numbers: np.ndarray, found: np.ndarray) -> np.int64:
    """Where the samples of a stratum with these numbers lie. What is returned has no meaning: it keeps the loads."""
    count, low, span = np.uint64(len(values)), stratum.low, stratum.span
    left_of, loaded = np.empty(TOGETHER, np.int64), np.int64(0)
    for first in range(0, len(numbers), TOGETHER):
        together = min(TOGETHER, len(numbers) - first)
        for n in range(together):  # the group, or one before it
            found[first + n] = stratum.groups[np.uint64(numbers[first + n] // stratum.step)]
        for n in range(together):
            number, group = np.int64(numbers[first + n]), np.uint64(found[first + n])
            while np.int64(stratum.before[group + _U64(1)]) <= number:
                group += _U64(1)
            left_of[n] = number - np.int64(stratum.before[group])  # samples before the one searched, from here on
            found[first + n] = group * _U64(BLOCKS)
            loaded += stratum.in_blocks[group * _U64(BLOCKS)]
        for n in range(together):  # the block
            left, block = left_of[n], np.uint64(found[first + n])
            while np.int64(stratum.in_blocks[block]) <= left:
                left -= np.int64(stratum.in_blocks[block])
                block += _U64(1)
            found[first + n], left_of[n] = block * _U64(BLOCK), left
        for n in range(together):
            for k in range(np.uint64(0), np.uint64(BLOCK), np.uint64(32)):  # a value of each 64 bytes or so
                loaded += np.int64(values[min(np.uint64(found[first + n]) + k, count - np.uint64(1))])
        for n in range(together):  # the value
            at, left = np.uint64(found[first + n]), left_of[n]
            bits = _inside(values, at, low, span)
            inside = _ones(bits)
            if inside <= left:
                left -= inside
                at += HALF
                bits = _inside(values, at, low, span)
            for _ in range(left):
                bits &= bits - _U64(1)  # clears the lowest
            found[first + n] = np.int64(at) + _ones((bits & (_U64(0) - bits)) - _U64(1))  # of the ones below the lowest
    return loaded
