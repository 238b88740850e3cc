"""Look-up of the k-th sample of a length stratum, in the length index itself.

A stratum is a range of lengths, and so a range of values of the index's entries. Counts of its samples by block lead to
the block with its k-th sample, whose entries are then scanned (rank and select, as in succinct data structures). For
the 157 million samples of Wikipedia these counts take 7 MB, where the indices of all samples would take 627 MB.
"""

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.bert.length_index import Column, Counts
from podium.core.jit import compiled

HALF_BLOCK = np.uint64(64)  # entries in one bit mask
BLOCK = 2 * int(HALF_BLOCK)
BLOCKS_PER_GROUP = 16  # a block's count takes a byte, a group's running total four
_U64 = np.uint64
SEARCH_BATCH = 64  # samples searched together: loads from memory then overlap


class _Stratum(NamedTuple):
    """Counts of a stratum, as arguments of compiled functions."""

    low: np.generic  # values of its samples: low … low + span
    span: np.generic
    in_blocks: NDArray[np.uint8]  # its samples in each block of values
    before: NDArray[Any]  # [groups + 1] its samples before each group of blocks
    step: int
    groups: NDArray[np.uint32]  # groups of its samples number 0, step, 2 · step, …


class Strata:
    """Index of the samples of 1 to `bounds[-1]` tokens by stratum.

    Stratum s has the samples of more than `bounds[s − 1]` and at most `bounds[s]` tokens.

    Raises ValueError for samples of other lengths.
    """

    def __init__(self, lengths: Counts, bounds: np.ndarray) -> None:
        """`lengths` [N] of all samples: an array, or a column of a length index, which is scanned without a copy."""
        self._values, firsts = _ascending_values(lengths, bounds)
        self._strata = [_build_stratum(self._values, first, end) for first, end in pairwise(firsts)]
        # [strata] samples of each
        self.sizes = np.array([int(each.before[-1]) if each else 0 for each in self._strata], dtype=np.int64)
        if self.sizes.sum() < len(self._values):
            raise ValueError(f"a stratified sampler needs samples of 1 to {bounds[-1]} tokens")

    @property
    def nbytes(self) -> int:
        """Memory in bytes besides the length index."""
        return sum(sum(array.nbytes for array in (each.in_blocks, each.before, each.groups)) for each in self._used)

    def indices(self, stratum: int, numbers: np.ndarray) -> NDArray[np.int64]:
        """Dataset indices [n] of a stratum's samples with these numbers [n], counted from 0 in index order."""
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


def _ascending_values(lengths: Counts, bounds: np.ndarray) -> tuple[NDArray[Any], list[int]]:
    """Return read-only values [N] that ascend with the lengths, and the first value of each stratum and of the end."""
    firsts = [1, *(int(bound) + 1 for bound in bounds)]
    if isinstance(lengths, Column):
        values, firsts = lengths.entries, [(first - 1) << lengths.shift for first in firsts]
    else:
        values = np.asarray(lengths)
        if values.min(initial=0) < 0 or values.max(initial=0) >= 2**32:
            raise ValueError(f"a stratified sampler needs samples of 1 to {bounds[-1]} tokens")
        values = values.astype(np.uint16 if values.max(initial=0) < 2**16 else np.uint32, copy=False)
    values = np.ascontiguousarray(values).view()
    values.flags.writeable = False  # like a mapped index: one type for numba to compile
    return values, firsts


def _build_stratum(values: NDArray[Any], first: int, end: int) -> _Stratum | None:
    """Count the samples with values `first` to `end` − 1; None if there is no such value."""
    kind = values.dtype.type
    if first == end or first > np.iinfo(values.dtype).max:
        return None
    low, span = kind(first), kind(min(end - 1, np.iinfo(values.dtype).max) - first)
    in_blocks = np.zeros(
        -(-len(values) // (BLOCK * BLOCKS_PER_GROUP)) * BLOCKS_PER_GROUP, dtype=np.uint8
    )  # whole groups
    _count_blocks(values, low, span, in_blocks)
    before = np.zeros(len(in_blocks) // BLOCKS_PER_GROUP + 1, dtype=np.uint32 if len(values) < 2**32 else np.int64)
    np.cumsum(in_blocks.reshape(-1, BLOCKS_PER_GROUP).sum(axis=1, dtype=before.dtype), out=before[1:])
    size = int(before[-1])
    step = max(1, size // (len(before) - 1))  # about one start for each group of the stratum
    groups = np.searchsorted(before, np.arange(0, size, step), side="right") - 1
    return _Stratum(low, span, in_blocks, before, step, groups.astype(np.uint32))


@compiled
def _range_mask(values: np.ndarray, start: np.uint64, low: np.generic, span: np.generic) -> np.uint64:
    """Bit mask of the 64 values from `start` on: whether each is in `low` … `low` + `span`, the first in bit 0."""
    # One unsigned comparison for both ends: values below `low` wrap around. Unsigned indices, so that the loop is
    # vectorised: for signed ones numba adds the check for negative indices.
    bits, rest = _U64(0), np.uint64(len(values)) - start
    if rest >= HALF_BLOCK:
        for k in range(HALF_BLOCK):
            bits |= np.uint64(values.dtype.type(values[start + k] - low) <= span) << k
    else:
        for k in range(rest):
            bits |= np.uint64(values.dtype.type(values[start + k] - low) <= span) << k
    return bits


@compiled
def _popcount(bits: np.uint64) -> np.int64:
    """Number of set bits (Warren, Hacker's Delight, section 5-1)."""
    bits -= (bits >> _U64(1)) & _U64(0x5555555555555555)
    bits = (bits & _U64(0x3333333333333333)) + ((bits >> _U64(2)) & _U64(0x3333333333333333))
    bits = (bits + (bits >> _U64(4))) & _U64(0x0F0F0F0F0F0F0F0F)
    return np.int64((bits * _U64(0x0101010101010101)) >> _U64(56))


@compiled
def _count_blocks(values: np.ndarray, low: np.generic, span: np.generic, in_blocks: np.ndarray) -> None:
    """Add to each block the number of its values in `low` … `low` + `span`."""
    for half in range((np.uint64(len(values)) + HALF_BLOCK - _U64(1)) // HALF_BLOCK):
        in_blocks[half // _U64(2)] += np.uint8(_popcount(_range_mask(values, half * HALF_BLOCK, low, span)))


@compiled
def _search(values: np.ndarray, stratum: _Stratum, numbers: np.ndarray, found: np.ndarray) -> np.int64:
    """Fill `found` [n] with the dataset indices of a stratum's samples with these numbers [n].

    The return value has no meaning: it keeps the compiler from removing the loads that prefetch.
    """
    count, low, span = np.uint64(len(values)), stratum.low, stratum.span
    left_of, loaded = np.empty(SEARCH_BATCH, np.int64), np.int64(0)
    for first in range(0, len(numbers), SEARCH_BATCH):
        batch = min(SEARCH_BATCH, len(numbers) - first)
        for n in range(batch):  # the group, or one before it
            found[first + n] = stratum.groups[np.uint64(numbers[first + n] // stratum.step)]
        for n in range(batch):
            number, group = np.int64(numbers[first + n]), np.uint64(found[first + n])
            while np.int64(stratum.before[group + _U64(1)]) <= number:
                group += _U64(1)
            left_of[n] = number - np.int64(stratum.before[group])  # its number within the group
            found[first + n] = group * _U64(BLOCKS_PER_GROUP)
            loaded += stratum.in_blocks[group * _U64(BLOCKS_PER_GROUP)]
        for n in range(batch):  # the block
            left, block = left_of[n], np.uint64(found[first + n])
            while np.int64(stratum.in_blocks[block]) <= left:
                left -= np.int64(stratum.in_blocks[block])
                block += _U64(1)
            found[first + n], left_of[n] = block * _U64(BLOCK), left
        for n in range(batch):
            for k in range(np.uint64(0), np.uint64(BLOCK), np.uint64(32)):  # one value of each cache line, to prefetch
                loaded += np.int64(values[min(np.uint64(found[first + n]) + k, count - np.uint64(1))])
        for n in range(batch):  # the value
            at, left = np.uint64(found[first + n]), left_of[n]
            bits = _range_mask(values, at, low, span)
            inside = _popcount(bits)
            if inside <= left:
                left -= inside
                at += HALF_BLOCK
                bits = _range_mask(values, at, low, span)
            for _ in range(left):
                bits &= bits - _U64(1)  # clear the lowest set bit
            found[first + n] = np.int64(at) + _popcount(
                (bits & (_U64(0) - bits)) - _U64(1)
            )  # index of the lowest set bit
    return loaded
