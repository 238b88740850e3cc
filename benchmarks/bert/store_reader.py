"""Bulk reads of a store: prefetch many samples into the page cache, then copy them into flat arrays.

Both work on a list of samples from any shards, and neither holds the interpreter lock during disk reads, so that one
thread can read while another one trains. The record of a sample is one run of bytes, whose offset follows from the
length index.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.bert.length_index import FILE, StoredLengths, length_index_error
from benchmarks.bert.records import TRAILER, record_lengths, unpack_at
from benchmarks.bert.samples import Samples, find_invalid_value
from benchmarks.bert.shard import RECORDS, STORED_DTYPE
from benchmarks.bert.store import SampleStore
from podium.core.errors import WorkError
from podium.core.jit import compiled

# Largest gap between two samples in one request: reading these bytes costs about as much as another request.
MAX_GAP_BYTES = 64 * 2**10
# Largest request: Linux truncates a longer POSIX_FADV_WILLNEED to the disk's read-ahead, 128 KiB by default.
MAX_REQUEST_BYTES = 128 * 2**10
BLOCK_SAMPLES = 512  # the offset of one record in 512 is kept; the others are summed up from the length index


@dataclass(frozen=True)
class _RecordLocations:
    """Locations of the records of n samples."""

    shards: NDArray[np.int64]  # [n] number of the shard
    starts: NDArray[np.int64]  # [n] byte offset within the shard's records
    lengths: NDArray[np.uint16]  # [n] tokens
    masked_counts: NDArray[np.uint16]  # [n] masked tokens

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Bytes of each record [n]."""
        sizes: NDArray[np.int64] = STORED_DTYPE.itemsize * record_lengths(self.lengths, self.masked_counts)
        return sizes


class BulkReader:
    """Reader of lists of samples of a store. It keeps files open: use it as a context manager, or call `close`.

    Memory: 8 bytes for each BLOCK_SAMPLES samples.
    """

    def __init__(self, store: SampleStore) -> None:
        self._store = store
        self._starts = np.array(store.shard_starts)
        self._bounds = [0]  # index of each store's first sample, and the number of all
        self._blocks: list[NDArray[np.int64]] = []  # for each store: numbers (u2) before samples 0, BLOCK_SAMPLES, …
        firsts, counts = [], []  # for each shard: numbers (u2) before it in its store, and in it
        for part in store.stores:
            self._bounds.append(self._bounds[-1] + len(part))
            self._blocks.append(_block_offsets(part.index.entries, *_entry_layout(part.index), BLOCK_SAMPLES))
            before = 0
            for entry in part.manifest.shards:
                firsts.append(before)
                counts.append(entry.tokens + 2 * entry.masked_tokens + TRAILER * entry.samples)
                before += counts[-1]
        self._firsts, self._counts = np.array(firsts), np.array(counts)
        self._addresses = np.zeros(len(store.paths), dtype=np.intp)  # of each mapped shard's records; 0: not mapped yet
        self._files: dict[int, int] = {}
        self.gather(np.empty(0, dtype=np.int64))  # compile now, so that no later call is slow

    def __enter__(self) -> "BulkReader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files; later calls open them again."""
        while self._files:
            os.close(self._files.popitem()[1])

    def gather(self, indices: NDArray[np.int64]) -> Samples:
        """Copy the samples with these indices [n], in this order, into new arrays.

        Raises IndexError for an index outside of 0 to N − 1, and WorkError for a shard that is missing or cannot be
        mapped, and for an impossible value.
        """
        places = self._locate(indices)
        for shard in np.unique(places.shards[self._addresses[places.shards] == 0]).tolist():
            self._addresses[shard] = self._store.shard(shard).records.ctypes.data
        addresses = self._addresses[places.shards] + places.starts
        samples = unpack_at(addresses, places.lengths, places.masked_counts)
        if fault := find_invalid_value(samples, self._store.vocabulary_size):
            shard = int(places.shards[fault[0]])
            raise self._shard_error(shard, int(indices[fault[0]] - self._starts[shard]), fault[1])
        return samples

    def _shard_error(self, shard: int, sample: int, what: str) -> WorkError:
        path = self._store.paths[shard]
        return WorkError(
            f"{path}: sample {sample}: {what}; the shard has changed since it was verified, or was written wrongly: "
            f"see `podium data verify {path.parent}`"
        )

    def prefetch(self, indices: NDArray[np.int64]) -> int:
        """Prefetch these samples [n] into the page cache without waiting. Returns the requested bytes.

        Requests ascend by file offset, and neighbouring samples share one. This is only advice to the kernel: a later
        `gather` returns the same either way, and the kernel may reclaim the memory. Raises as `gather`.
        """
        requested = 0
        places = self._locate(indices)
        sizes = places.sizes
        for shard in np.unique(places.shards).tolist():
            file, here = self._descriptor(shard), places.shards == shard
            starts = places.starts[here] + self._store.shard(shard).dataset_ranges[RECORDS].start
            for start, length in coalesce_ranges(starts, starts + sizes[here]):
                os.posix_fadvise(file, start, length, os.POSIX_FADV_WILLNEED)
                requested += length
        return requested

    def _descriptor(self, shard: int) -> int:
        """File descriptor of a shard, opened at the first call."""
        if shard not in self._files:
            path = self._store.paths[shard]
            try:
                self._files[shard] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                raise WorkError(
                    f"{path}: the shard cannot be opened ({error.strerror}); see that it is there"
                ) from error
        return self._files[shard]

    def _locate(self, indices: NDArray[np.int64]) -> _RecordLocations:
        if len(indices) and (indices.min() < 0 or indices.max() >= len(self._store)):
            raise IndexError(f"samples {indices.min()} to {indices.max()} of a store of {len(self._store)}")
        shards = np.searchsorted(self._starts, indices, side="right") - 1
        first = np.empty(len(indices), dtype=np.int64)
        for number, part in enumerate(self._store.stores):
            here = (indices >= self._bounds[number]) & (indices < self._bounds[number + 1])
            own = indices[here] - self._bounds[number]
            first[here] = _record_offsets(
                own, part.index.entries, *_entry_layout(part.index), self._blocks[number], BLOCK_SAMPLES
            )
        first -= self._firsts[shards]
        lengths, masked_counts = self._store.lengths[indices], self._store.masked_counts[indices]
        beyond = (first < 0) | (first + record_lengths(lengths, masked_counts) > self._counts[shards])
        if beyond.any():  # a wrong index must not lead `unpack_at` to memory outside of the mapping
            path = self._store.paths[int(shards[beyond.argmax()])]
            raise length_index_error(path.parent / FILE, f"a sample lies outside of the records of {path}")
        return _RecordLocations(shards, first * STORED_DTYPE.itemsize, lengths, masked_counts)


def coalesce_ranges(
    starts: NDArray[np.int64], ends: NDArray[np.int64], gap: int = MAX_GAP_BYTES, piece: int = MAX_REQUEST_BYTES
) -> Iterator[tuple[int, int]]:
    """Merge byte ranges, `starts` to `ends` [n ≥ 1], into disjoint ascending requests: (first byte, length).

    Ranges at most `gap` bytes apart are joined, and the result is cut into requests of at most `piece` bytes.
    """
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    firsts = np.flatnonzero(np.append(True, starts[1:] > ends[:-1] + gap))
    lasts = np.append(firsts[1:], len(starts)) - 1
    for start, end in zip(starts[firsts].tolist(), ends[lasts].tolist(), strict=True):
        for begin in range(start, end, piece):
            yield begin, min(piece, end - begin)


def _entry_layout(index: StoredLengths) -> tuple[int, int]:
    """Number and mask of the low bits of an entry, which hold the masked tokens."""
    return index.masked_bits, 2**index.masked_bits - 1


@compiled
def _block_offsets(entries: NDArray[Any], bits: int, mask: int, block: int) -> NDArray[np.int64]:
    """Numbers (u2) in all records before samples 0, block, 2 · block, …"""
    sums = np.zeros((len(entries) + block - 1) // block, np.int64)
    total = 0
    for number in range(len(sums)):
        sums[number] = total
        tokens = masked = 0
        last = min((number + 1) * block, len(entries))
        for k in range(number * block, last):
            tokens += entries[k] >> bits
            masked += entries[k] & mask
        # + 3: an entry has tokens − 1 and masked tokens − 1, and the masked tokens count twice
        total += tokens + 2 * masked + (3 + TRAILER) * (last - number * block)
    return sums


@compiled
def _record_offsets(
    indices: NDArray[np.int64], entries: NDArray[Any], bits: int, mask: int, blocks: NDArray[np.int64], block: int
) -> NDArray[np.int64]:
    """Numbers (u2) in all records before each of these samples [n]."""
    before = np.empty(len(indices), np.int64)
    for i in range(len(indices)):
        number = indices[i] // block
        tokens = masked = 0
        for k in range(number * block, indices[i]):
            tokens += entries[k] >> bits
            masked += entries[k] & mask
        before[i] = blocks[number] + tokens + 2 * masked + (3 + TRAILER) * (indices[i] - number * block)
    return before
