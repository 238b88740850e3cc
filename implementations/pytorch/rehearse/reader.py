"""Reader of synthetic samples: lengths come from the length index of a store, tokens are random."""

import numpy as np
from numpy.typing import NDArray

from benchmarks.bert.samples import Samples, offsets_of
from benchmarks.bert.shard import STORED_DTYPE
from benchmarks.bert.store_reader import BulkReader, coalesce_ranges

VOCABULARY_SIZE = 512  # of the synthetic tokens


class SyntheticReader(BulkReader):
    """A `BulkReader` that finds the records of samples and generates them, without reading shards."""

    def gather(self, indices: NDArray[np.int64]) -> Samples:
        """Return random samples with the token counts of the samples with these indices [n]."""
        places = self._locate(indices)
        return synthetic_samples(places.lengths.astype(np.int64), places.masked_counts.astype(np.int64))

    def prefetch(self, indices: NDArray[np.int64]) -> int:
        """Return the bytes that a reader would request, as if all records were in one shard."""
        places = self._locate(indices)
        starts = places.starts + self._firsts[places.shards] * STORED_DTYPE.itemsize
        return sum(length for _, length in coalesce_ranges(starts, starts + places.sizes))


def synthetic_samples(
    lengths: NDArray[np.int64], masked_counts: NDArray[np.int64], vocabulary_size: int = VOCABULARY_SIZE
) -> Samples:
    """Return random samples of `lengths` tokens [n], `masked_counts` [n] of them masked at even distances."""
    rng = np.random.default_rng(len(lengths))
    sample_offsets, masked_offsets = offsets_of(lengths), offsets_of(masked_counts)
    masked = int(masked_offsets[-1])
    number = np.arange(masked) - np.repeat(masked_offsets[:-1], masked_counts)
    last = np.repeat(lengths - 1, masked_counts)
    positions = np.minimum(1 + number * last // np.repeat(masked_counts, masked_counts), last)

    def draw(count: int) -> NDArray[np.uint16]:
        return rng.integers(0, vocabulary_size, count, dtype=np.uint16)

    return Samples(
        token_ids=draw(int(sample_offsets[-1])),
        sample_offsets=sample_offsets,
        first_segment_lengths=np.maximum(1, lengths // 2).astype(np.uint16),
        masked_positions=positions.astype(np.uint16),
        masked_token_ids=draw(masked),
        masked_offsets=masked_offsets,
        next_sentence_labels=rng.integers(0, 2, len(lengths), dtype=np.uint8),
    )
