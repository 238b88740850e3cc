"""Batches that look like the run's in every shape but hold no data: to warm up before the clock starts."""

from collections.abc import Mapping

import numpy as np

from benchmarks.bert.samples import Sample
from implementations.pytorch.data.batch import collate
from implementations.pytorch.data.loader import Step, TrainingOrder


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


def synthetic_step(
    order: TrainingOrder, number: int, rank: int, vocabulary: int, masked_slots: Mapping[int, int] | None = None
) -> Step:
    """A rank's part of a step in all its shapes, which the length index tells: no sample is read."""
    rng = np.random.default_rng(number)
    whole, store = order.global_batch(number), order.store
    mine = whole.indices[rank]
    micro_batches = tuple(
        collate(
            [
                synthetic_sample(int(store.lengths[i]), int(store.masked_counts[i]), vocabulary, rng)
                for i in micro_batch.tolist()
            ],
            order.slot_width,
            order.shape_step,
            masked_slots[int(slots)] if masked_slots is not None else None,
            order.attention_widths,
        )
        for micro_batch, slots in zip(mine, order.slots(mine), strict=True)
    )
    return Step(micro_batches, whole)
