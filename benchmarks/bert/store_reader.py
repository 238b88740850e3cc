"""Bulk reads of a store: prefetch many samples into the page cache, then copy them into flat arrays.

Both work on a whole list of samples, wherever in the shards they lie, and neither holds the interpreter lock during
disk reads: one thread may read while another one trains. The record of a sample is one run of bytes, and the length
index says where it lies.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.bert.length_index import FILE, StoredLengths, unfit
from benchmarks.bert.records import TRAILER, record_lengths, unpack_at
from benchmarks.bert.samples import Samples, value_fault
from benchmarks.bert.shard import RECORDS, STORED_DTYPE
from benchmarks.bert.store import SampleStore
from podium.core.errors import WorkError
from podium.core.jit import compiled

# Bytes between two samples that are rather read along than left out: a request of their own costs about as much.
GAP = 64 * 2**10
# Bytes of one request: Linux cuts a longer one off at the disk's read-ahead, which is this much by default.
PIECE = 128 * 2**10
BLOCK = 512  # every so many samples the place of the record is kept; what lies between is counted


@dataclass(frozen=True)
class _Places:
    """Where the records of some samples lie."""

    shards: NDArray[np.int64]  # [n] number of the shard
    starts: NDArray[np.int64]  # [n] first byte of the record among the shard's records
    lengths: NDArray[np.uint16]  # [n] tokens
    masked_counts: NDArray[np.uint16]  # [n] masked tokens

    @property
    def sizes(self) -> NDArray[np.int64]:
        """[n] bytes of each record."""
        sizes: NDArray[np.int64] = STORED_DTYPE.itemsize * record_lengths(self.lengths, self.masked_counts)
        return sizes


class BulkReader:
    """Reads lists of samples of a store. Use as a context manager, or `close` it: it keeps files of shards open.

    Holds 8 bytes for every BLOCK samples.
    """

    def __init__(self, store: SampleStore) -> None:
        self._store = store
        self._starts = np.array(store.shard_starts)
        self._bounds = [0]  # of the samples of each of the stores
        self._blocks: list[NDArray[np.int64]] = []  # numbers in the records of a store before sample 0, BLOCK, …
        firsts, counts = [], []  # of each shard: numbers in the records of its store before, and in its own
        for part in store.stores:
            self._bounds.append(self._bounds[-1] + len(part))
            self._blocks.append(_sums(part.index.entries, *_decoding(part.index), BLOCK))
            before = 0
            for entry in part.manifest.shards:
                firsts.append(before)
                counts.append(entry.tokens + 2 * entry.masked_tokens + TRAILER * entry.samples)
                before += counts[-1]
        self._firsts, self._counts = np.array(firsts), np.array(counts)
        self._addresses = np.zeros(len(store.paths), dtype=np.intp)  # of each shard's records, once they are mapped
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

        Raises IndexError for an index outside of 0..N−1, and WorkError for a shard that is not here or cannot be mapped
        and for a value that no sample can have.
        """
        places = self._find(indices)
        for shard in np.unique(places.shards[self._addresses[places.shards] == 0]).tolist():
            self._addresses[shard] = self._store.shard(shard).records.ctypes.data
        addresses = self._addresses[places.shards] + places.starts
        samples = unpack_at(addresses, places.lengths, places.masked_counts)
        if fault := value_fault(samples, self._store.vocabulary_size):
            shard = int(places.shards[fault[0]])
            raise self._unusable(shard, int(indices[fault[0]] - self._starts[shard]), fault[1])
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
        places = self._find(indices)
        sizes = places.sizes
        for shard in np.unique(places.shards).tolist():
            file, here = self._file(shard), places.shards == shard
            starts = places.starts[here] + self._store.shard(shard).places[RECORDS].start
            for start, length in byte_ranges(starts, starts + sizes[here]):
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

    def _find(self, indices: NDArray[np.int64]) -> _Places:
        if len(indices) and (indices.min() < 0 or indices.max() >= len(self._store)):
            raise IndexError(f"samples {indices.min()} to {indices.max()} of a store of {len(self._store)}")
        shards = np.searchsorted(self._starts, indices, side="right") - 1
        first = np.empty(len(indices), dtype=np.int64)
        for number, part in enumerate(self._store.stores):
            here = (indices >= self._bounds[number]) & (indices < self._bounds[number + 1])
            own = indices[here] - self._bounds[number]
            first[here] = _before(own, part.index.entries, *_decoding(part.index), self._blocks[number], BLOCK)
        first -= self._firsts[shards]
        lengths, masked_counts = self._store.lengths[indices], self._store.masked_counts[indices]
        beyond = (first < 0) | (first + record_lengths(lengths, masked_counts) > self._counts[shards])
        if beyond.any():  # else memory would be read that is not the shard's
            path = self._store.paths[int(shards[beyond.argmax()])]
            raise unfit(path.parent / FILE, f"a sample lies outside of the records of {path}")
        return _Places(shards, first * STORED_DTYPE.itemsize, lengths, masked_counts)


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


def _decoding(index: StoredLengths) -> tuple[int, int]:
    """How many bits of an entry are the masked tokens, and which."""
    return index.masked_bits, 2**index.masked_bits - 1


@compiled
def _sums(entries: NDArray[Any], bits: int, mask: int, block: int) -> NDArray[np.int64]:
    """Numbers in all records before those of sample 0, block, 2 · block …"""
    sums = np.zeros((len(entries) + block - 1) // block, np.int64)
    total = 0
    for number in range(len(sums)):
        sums[number] = total
        tokens = masked = 0
        last = min((number + 1) * block, len(entries))
        for k in range(number * block, last):
            tokens += entries[k] >> bits
            masked += entries[k] & mask
        total += tokens + 2 * masked + (3 + TRAILER) * (last - number * block)  # entries count tokens from 1
    return sums


@compiled
def _before(
    indices: NDArray[np.int64], entries: NDArray[Any], bits: int, mask: int, blocks: NDArray[np.int64], block: int
) -> NDArray[np.int64]:
    """Numbers in all records before that of each of these samples [n]."""
    before = np.empty(len(indices), np.int64)
    for i in range(len(indices)):
        number = indices[i] // block
        tokens = masked = 0
        for k in range(number * block, indices[i]):
            tokens += entries[k] >> bits
            masked += entries[k] & mask
        before[i] = blocks[number] + tokens + 2 * masked + (3 + TRAILER) * (indices[i] - number * block)
    return before
