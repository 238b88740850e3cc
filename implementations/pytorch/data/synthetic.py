"""Synthetic batches with the shapes of the run, for the warm-up before the clock starts, when no data may be read."""

from collections.abc import Mapping

import numpy as np

from benchmarks.bert.samples import Sample
from implementations.pytorch.data.batch import collate
from implementations.pytorch.data.reader import Step
from podium.planning.batch_plan import TrainingOrder


def synthetic_sample(length: int, masked: int, vocabulary: int, rng: np.random.Generator) -> Sample:
    """Return a sample of `length` random tokens, `masked` of them masked; `vocabulary` is the vocabulary size."""
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
    """Return one rank's part of a step with its exact shapes but random tokens.

    The shapes follow from the length index, so no sample is read. `vocabulary` is the vocabulary size.
    """
    rng = np.random.default_rng(number)
    global_batch = order.global_batch(number)
    batches = []
    for part, layout in order.layouts(global_batch, rank, masked_slots):
        counts = zip(global_batch.lengths[part].tolist(), global_batch.masked_counts[part].tolist(), strict=True)
        samples = [synthetic_sample(length, masked, vocabulary, rng) for length, masked in counts]
        batches.append(collate(samples, *layout))
    return Step(tuple(batches), global_batch)
