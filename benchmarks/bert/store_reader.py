"""Bulk reads of a store: prefetch many samples into the page cache, then copy them into flat arrays.

Both work on a whole list of samples, wherever in the shards they lie, and neither holds the interpreter lock during
disk reads: one thread may read while another one trains.
"""

import os
from collections.abc import Iterator
from typing import Any

import numba
import numpy as np
from numba import carray  # type: ignore[attr-defined]
from numba.extending import intrinsic
from numpy.typing import NDArray

from benchmarks.bert.samples import SAMPLE_DTYPES, FlatArrays, Samples, offsets_of, value_fault
from benchmarks.bert.store import SampleStore
from podium.core.errors import WorkError
from podium.core.jit import compiled

# Bytes between two samples that are rather read along than left out: a request of their own costs about as much.
GAP = 64 * 2**10
# Bytes of one request: Linux cuts a longer one off at the disk's read-ahead, which is this much by default.
PIECE = 128 * 2**10
BLOCK = 64  # every so many samples the place in the flat arrays is kept; what lies between is counted
BY_TOKEN, BY_SAMPLE, BY_MASK = 0, 1, 2
# What is read of a shard, and what there is an element of for. Offsets follow from the lengths, which are known.
ARRAYS = {
    "token_ids": BY_TOKEN,
    "first_segment_lengths": BY_SAMPLE,
    "masked_positions": BY_MASK,
    "masked_token_ids": BY_MASK,
    "next_sentence_labels": BY_SAMPLE,
}


class BulkReader:
    """Reads lists of samples of a store. Use as a context manager, or `close` it: it keeps files of shards open.

    Holds 0.25 bytes a sample.
    """

    def __init__(self, store: SampleStore) -> None:
        self._store = store
        self._starts = offsets_of([len(shard) for shard in store.shards])
        self._token_blocks, self._masked_blocks = _blocks(store.lengths), _blocks(store.masked_counts)
        # Elements in all shards before each shard.
        self._first_tokens = offsets_of([shard.attributes["tokens"] for shard in store.shards])
        self._first_masks = offsets_of([shard.attributes["masked_tokens"] for shard in store.shards])
        self._addresses = np.zeros((len(store.shards), len(ARRAYS)), dtype=np.intp)
        self._files: dict[int, int] = {}
        self.gather(np.empty(0, dtype=np.int64))  # nothing is left to be compiled later

    def __enter__(self) -> "BulkReader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files; a reader that is used again opens them again."""
        while self._files:
            os.close(self._files.popitem()[1])

    def gather(self, indices: NDArray[np.int64]) -> Samples:
        """The samples with these indices [n], in this order, in arrays of their own.

        Raises IndexError for an index outside of 0..N−1, and WorkError for a shard that cannot be mapped and for a
        value that no sample can have.
        """
        shard_of, first = self._find(indices)
        for shard in np.unique(shard_of[self._addresses[shard_of, 0] == 0]).tolist():
            arrays = self._store.shards[shard].arrays()
            self._addresses[shard] = [arrays[name].ctypes.data for name in ARRAYS]
        offsets = offsets_of(self._store.lengths[indices])
        masked_offsets = offsets_of(self._store.masked_counts[indices])
        samples = Samples(
            token_ids=np.empty(offsets[-1], np.uint16),
            sample_offsets=offsets,
            first_segment_lengths=np.empty(len(indices), np.uint16),
            masked_positions=np.empty(masked_offsets[-1], np.uint16),
            masked_token_ids=np.empty(masked_offsets[-1], np.uint16),
            masked_offsets=masked_offsets,
            next_sentence_labels=np.empty(len(indices), np.uint8),
        )
        _copy(self._addresses, shard_of, first, samples.arrays)
        if fault := value_fault(samples, self._store.vocabulary_size):
            raise self._unusable(shard_of[fault[0]], first[fault[0], BY_SAMPLE], fault[1])
        return samples

    def _unusable(self, shard: int, sample: int, what: str) -> WorkError:
        path = self._store.paths[shard]
        return WorkError(
            f"{path}: sample {sample}: {what}; the shard is not the one that was checked, or it was made wrongly: see "
            f"`podium data verify {path.parent}`"
        )

    def will_need(self, indices: NDArray[np.int64]) -> int:
        """Ask the system to read these samples [n] into its page cache without waiting for them; bytes asked for.

        They are asked for in the order of the disk, neighbours together. It is advice: what a later `gather` gives does
        not depend on it, and the memory is that of the system's page cache, given back where it is short. Raises as
        `gather` does.
        """
        asked = 0
        shard_of, first = self._find(indices)
        for shard in np.unique(shard_of).tolist():
            file = self._file(shard)
            here = shard_of == shard
            counts = self._store.lengths[indices[here]], self._store.masked_counts[indices[here]]
            starts, ends = self._byte_bounds(shard, first[here], *counts)
            for start, length in byte_ranges(starts, ends):
                os.posix_fadvise(file, start, length, os.POSIX_FADV_WILLNEED)
                asked += length
        return asked

    def _file(self, shard: int) -> int:
        """Descriptor of a shard's file, opened at the first call."""
        if shard not in self._files:
            path = self._store.paths[shard]
            try:
                self._files[shard] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                raise WorkError(
                    f"{path}: the shard cannot be opened ({error.strerror}); see that it is there"
                ) from error
        return self._files[shard]

    def _find(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The shard of each sample [n], and where in its arrays the sample begins [n, 3]: by token, sample and mask."""
        if len(indices) and (indices.min() < 0 or indices.max() >= len(self._store)):
            raise IndexError(f"samples {indices.min()} to {indices.max()} of a store of {len(self._store)}")
        shard_of = np.searchsorted(self._starts, indices, side="right") - 1
        first = np.empty((len(indices), 3), dtype=np.int64)
        _count(indices, self._store.lengths, self._token_blocks, first[:, BY_TOKEN])
        _count(indices, self._store.masked_counts, self._masked_blocks, first[:, BY_MASK])
        first[:, BY_TOKEN] -= self._first_tokens[shard_of]
        first[:, BY_SAMPLE] = indices - self._starts[shard_of]
        first[:, BY_MASK] -= self._first_masks[shard_of]
        return shard_of, first

    def _byte_bounds(
        self, shard: int, first: NDArray[np.int64], lengths: NDArray[np.uint16], masked_counts: NDArray[np.uint16]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """First byte and the one after the last, of every array's part of every sample [arrays · n] in the file."""
        counts = {BY_TOKEN: lengths, BY_SAMPLE: np.ones_like(lengths), BY_MASK: masked_counts}
        starts, ends = [], []
        for name, unit in ARRAYS.items():
            size, place = SAMPLE_DTYPES[name].itemsize, self._store.shards[shard].places[name].start
            starts.append(place + first[:, unit] * size)
            ends.append(starts[-1] + counts[unit].astype(np.int64) * size)
        return np.concatenate(starts), np.concatenate(ends)


def byte_ranges(
    starts: NDArray[np.int64], ends: NDArray[np.int64], gap: int = GAP, piece: int = PIECE
) -> Iterator[tuple[int, int]]:
    """First byte and length of the pieces, ascending and without overlap, that hold all of start to end [n ≥ 1].

    What has at most `gap` bytes between is joined, and cut into pieces of at most `piece` bytes.
    """
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    firsts = np.flatnonzero(np.append(True, starts[1:] > ends[:-1] + gap))
    lasts = np.append(firsts[1:], len(starts)) - 1
    for start, end in zip(starts[firsts].tolist(), ends[lasts].tolist(), strict=True):
        for begin in range(start, end, piece):
            yield begin, min(piece, end - begin)


def _blocks(counts: NDArray[np.uint16]) -> NDArray[np.int64]:
    """Elements before sample 0, BLOCK, 2 · BLOCK … of samples with these counts [N]."""
    sums = np.add.reduceat(counts, np.arange(0, len(counts), BLOCK), dtype=np.int64)
    return np.cumsum(sums) - sums


@compiled
def _count(
    indices: NDArray[np.int64], counts: NDArray[np.uint16], blocks: NDArray[np.int64], before: NDArray[np.int64]
) -> None:
    """before[i]: elements of all samples before sample indices[i]."""
    for i in range(len(indices)):
        block = indices[i] // BLOCK
        total = blocks[block]
        for k in range(block * BLOCK, indices[i]):
            total += counts[k]
        before[i] = total


@compiled
def _copy(
    addresses: NDArray[np.intp],
    shard_of: NDArray[np.int64],
    first: NDArray[np.int64],
    arrays: FlatArrays,
) -> None:
    """Copy samples out of the mapped shards. `addresses` [shards, ARRAYS] of their arrays, `first` as `_find` gives."""
    token_ids, sample_offsets, first_lengths, masked_positions, masked_token_ids, masked_offsets, labels = arrays
    for i in range(len(shard_of)):
        at = addresses[shard_of[i]]
        token, sample, mask = first[i, BY_TOKEN], first[i, BY_SAMPLE], first[i, BY_MASK]
        begin, end = sample_offsets[i], sample_offsets[i + 1]
        token_ids[begin:end] = carray(_u2(at[0] + 2 * token), end - begin)
        first_lengths[i] = carray(_u2(at[1] + 2 * sample), 1)[0]
        begin, end = masked_offsets[i], masked_offsets[i + 1]
        masked_positions[begin:end] = carray(_u2(at[2] + 2 * mask), end - begin)
        masked_token_ids[begin:end] = carray(_u2(at[3] + 2 * mask), end - begin)
        labels[i] = carray(_u1(at[4] + sample), 1)[0]


def _pointer(kind: Any) -> Any:
    """A compiled function that takes an address for that of elements of this type."""

    @intrinsic
    def pointer(typing: Any, address: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return numba.types.CPointer(kind)(numba.types.intp), code  # type: ignore[no-untyped-call]

    return pointer


_u1, _u2 = _pointer(numba.types.uint8), _pointer(numba.types.uint16)
