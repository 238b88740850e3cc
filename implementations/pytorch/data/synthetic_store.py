"""A store of samples that do not exist, for rehearsals: its length index is real, its samples are made when asked for.

Nothing is read from a disk but the index, so what reading takes is not rehearsed.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.bert.length_index import Column, Counts, JoinedColumn, StoredLengths
from benchmarks.bert.samples import Samples
from benchmarks.bert.store import JoinedStores, SampleStore
from benchmarks.bert.store_reader import BulkReader
from podium.planning.balancing.interface import offsets_of


class SyntheticStore(SampleStore):
    """The samples that a length index describes, of a vocabulary of so many words."""

    shards = ()  # type: ignore[assignment]

    def __init__(self, path: Path, index: StoredLengths, words: int) -> None:
        """`path` is the index's file, for error messages."""
        self.paths, self.folder, self.vocabulary_size, self.index = [path], None, words, index

    @property
    def max_sequence_length(self) -> int:  # type: ignore[override]
        return self.index.max_sequence_length

    @cached_property
    def lengths(self) -> Column:  # type: ignore[override]
        entries = self.index.entries
        return Column(entries, self.index.masked_bits, int(np.iinfo(entries.dtype).max))

    @property
    def masked_counts(self) -> Column:  # type: ignore[override]
        return self.index.masked_counts

    def __len__(self) -> int:
        return len(self.index)


class JoinedSyntheticStores(JoinedStores, SyntheticStore):
    """The samples of several synthetic stores, one store after another."""

    def __init__(self, stores: Sequence[SyntheticStore]) -> None:
        self.paths, self.folder, self.vocabulary_size = [stores[0].paths[0]], None, stores[0].vocabulary_size
        self._bounds = offsets_of([len(store) for store in stores]).tolist()
        self.parts = [*stores]

    @property
    def max_sequence_length(self) -> int:  # type: ignore[override]
        return max(store.max_sequence_length for store in self.parts)

    @cached_property
    def lengths(self) -> Counts:  # type: ignore[override]
        return JoinedColumn([store.lengths for store in self.parts], self._bounds)

    @property
    def masked_counts(self) -> Counts:  # type: ignore[override]
        return JoinedColumn([store.masked_counts for store in self.parts], self._bounds)

    def __len__(self) -> int:
        return int(self._bounds[-1])


class SyntheticReader(AbstractContextManager["SyntheticReader"]):
    """Makes the samples of a synthetic store, where `BulkReader` reads those of another."""

    def __init__(self, store: SyntheticStore) -> None:
        self._store = store

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """There is no file to close."""

    def will_need(self, indices: NDArray[np.int64]) -> int:
        """Nothing is asked for."""
        return 0

    def gather(self, indices: NDArray[np.int64]) -> Samples:
        """The samples with these indices [n]: of the index's tokens and masked tokens, of random words."""
        lengths, masked = (np.asarray(counts[indices], np.int64) for counts in self._counts)
        return synthetic_samples(lengths, masked, self._store.vocabulary_size or 1)

    @property
    def _counts(self) -> tuple[Counts, Counts]:
        return self._store.lengths, self._store.masked_counts


def synthetic_samples(lengths: NDArray[np.int64], masked_counts: NDArray[np.int64], words: int) -> Samples:
    """Samples of so many tokens [n], of which so many are masked [n], evenly spaced behind the first."""
    rng = np.random.default_rng(len(lengths))
    sample_offsets, masked_offsets = offsets_of(lengths), offsets_of(masked_counts)
    masked = int(masked_offsets[-1])
    number = np.arange(masked) - np.repeat(masked_offsets[:-1], masked_counts)
    free = np.repeat(np.maximum(lengths - 1, 1), masked_counts)
    positions = np.minimum(
        1 + number * free // np.repeat(masked_counts, masked_counts), np.repeat(lengths - 1, masked_counts)
    )

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


def sample_reader(store: SampleStore) -> BulkReader | SyntheticReader:
    """What reads the samples of a store, or makes them."""
    return SyntheticReader(store) if isinstance(store, SyntheticStore) else BulkReader(store)
