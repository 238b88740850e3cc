"""Batches that look like the run's in every shape but hold no data: to warm up before the clock starts."""

import numpy as np

from benchmarks.bert.samples import Sample
from benchmarks.bert.store import SampleStore
from implementations.pytorch.data.batch import SHAPE_STEP, RaggedBatch, collate


def synthetic_sample(length: int, masked: int, vocabulary: int, rng: np.random.Generator) -> Sample:
    """A sample of this length whose words are drawn at random."""
    positions = np.sort(rng.choice(np.arange(1, length), size=masked, replace=False))
    return Sample(
        token_ids=rng.integers(0, vocabulary, length, dtype=np.uint16),
        first_segment_length=max(1, length // 2),
        masked_positions=positions.astype(np.uint16),
        masked_token_ids=rng.integers(0, vocabulary, masked, dtype=np.uint16),
        next_sentence_label=int(rng.integers(0, 2)),
    )


def synthetic_batch(
    store: SampleStore, indices: np.ndarray, vocabulary: int, slot_width: int | None, seed: int
) -> RaggedBatch:
    """A batch of the lengths and masked counts of these samples, which the length index tells without reading them."""
    rng = np.random.default_rng(seed)
    return collate(
        [
            synthetic_sample(int(store.lengths[i]), int(store.masked_counts[i]), vocabulary, rng)
            for i in indices.reshape(-1)
        ],
        slot_width,
        SHAPE_STEP,
    )
