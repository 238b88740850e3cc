"""Samples in another order, or only some of them."""

import numpy as np
from numpy.typing import NDArray

from benchmarks.bert.samples import Samples
from benchmarks.compiled import compiled


def gather(samples: Samples, order: NDArray[np.int64]) -> Samples:
    """The samples with these indices [n], in this order."""
    return Samples(
        *_flat_slices(samples.token_ids, samples.sample_offsets, order),
        samples.first_segment_lengths[order],
        _flat_slices(samples.masked_positions, samples.masked_offsets, order)[0],
        *_flat_slices(samples.masked_token_ids, samples.masked_offsets, order),
        samples.next_sentence_labels[order],
    )


@compiled
def _flat_slices(
    values: NDArray[np.uint16], offsets: NDArray[np.int64], order: NDArray[np.int64]
) -> tuple[NDArray[np.uint16], NDArray[np.int64]]:
    """values[offsets[k]:offsets[k + 1]] for each k of `order`, one after another, and their offsets."""
    new_offsets = np.zeros(len(order) + 1, np.int64)
    for i in range(len(order)):
        new_offsets[i + 1] = new_offsets[i] + offsets[order[i] + 1] - offsets[order[i]]
    new_values = np.empty(new_offsets[-1], np.uint16)
    for i in range(len(order)):
        new_values[new_offsets[i] : new_offsets[i + 1]] = values[offsets[order[i]] : offsets[order[i] + 1]]
    return new_values, new_offsets
