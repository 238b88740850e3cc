"""Samples that do not exist: found in the length index as those of a store are, and made up instead of read."""

import numpy as np
from numpy.typing import NDArray

from benchmarks.bert.samples import Samples, offsets_of
from benchmarks.bert.shard import STORED_DTYPE
from benchmarks.bert.store_reader import BulkReader, byte_ranges

WORDS = 512  # of the vocabulary that tokens are of


class SyntheticReader(BulkReader):
    """Finds the records of samples as `BulkReader` does, without a shard to read them from."""

    def gather(self, indices: NDArray[np.int64]) -> Samples:
        """Samples of as many tokens and masked tokens as those with these indices [n], of random words."""
        places = self._find(indices)
        return synthetic_samples(places.lengths.astype(np.int64), places.masked_counts.astype(np.int64))

    def will_need(self, indices: NDArray[np.int64]) -> int:
        """Bytes that would be asked for, as if all records lay in one shard."""
        places = self._find(indices)
        starts = places.starts + self._firsts[places.shards] * STORED_DTYPE.itemsize
        return sum(length for _, length in byte_ranges(starts, starts + places.sizes))


def synthetic_samples(lengths: NDArray[np.int64], masked_counts: NDArray[np.int64], words: int = WORDS) -> Samples:
    """Samples of so many tokens [n], of which so many are masked [n], evenly spaced behind the first."""
    rng = np.random.default_rng(len(lengths))
    sample_offsets, masked_offsets = offsets_of(lengths), offsets_of(masked_counts)
    masked = int(masked_offsets[-1])
    number = np.arange(masked) - np.repeat(masked_offsets[:-1], masked_counts)
    last = np.repeat(lengths - 1, masked_counts)
    positions = np.minimum(1 + number * last // np.repeat(masked_counts, masked_counts), last)

    def draw(count: int) -> NDArray[np.uint16]:
        return rng.integers(0, words, count, dtype=np.uint16)

    return Samples(
        token_ids=draw(int(sample_offsets[-1])),
        sample_offsets=sample_offsets,
        first_segment_lengths=np.maximum(1, lengths // 2).astype(np.uint16),
        masked_positions=positions.astype(np.uint16),
        masked_token_ids=draw(masked),
        masked_offsets=masked_offsets,
        next_sentence_labels=rng.integers(0, 2, len(lengths), dtype=np.uint8),
    )
