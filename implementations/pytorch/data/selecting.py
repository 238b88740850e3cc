"""Some samples out of flat arrays of many, copied without the interpreter's lock."""

import numpy as np
from numpy.typing import NDArray

from benchmarks.bert.samples import Samples
from benchmarks.compiled import compiled


def select(samples: Samples, places: NDArray[np.int64]) -> Samples:
    """The samples at these places [n], in this order, in arrays of their own."""
    sample_offsets = offsets_of(np.diff(samples.sample_offsets)[places])
    masked_offsets = offsets_of(np.diff(samples.masked_offsets)[places])
    chosen = Samples(
        token_ids=np.empty(sample_offsets[-1], np.uint16),
        sample_offsets=sample_offsets,
        first_segment_lengths=samples.first_segment_lengths[places],
        masked_positions=np.empty(masked_offsets[-1], np.uint16),
        masked_token_ids=np.empty(masked_offsets[-1], np.uint16),
        masked_offsets=masked_offsets,
        next_sentence_labels=samples.next_sentence_labels[places],
    )
    _copy_runs(samples.token_ids, samples.sample_offsets, places, chosen.token_ids)
    _copy_runs(samples.masked_positions, samples.masked_offsets, places, chosen.masked_positions)
    _copy_runs(samples.masked_token_ids, samples.masked_offsets, places, chosen.masked_token_ids)
    return chosen


def offsets_of(counts: NDArray[np.int64] | NDArray[np.uint16]) -> NDArray[np.int64]:
    """Where runs of these lengths [n] begin when they lie end to end, and where the last ends [n + 1]."""
    offsets = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


@compiled
def _copy_runs(
    source: NDArray[np.uint16], offsets: NDArray[np.int64], places: NDArray[np.int64], out: NDArray[np.uint16]
) -> None:
    at = 0
    for place in places:
        for k in range(offsets[place], offsets[place + 1]):
            out[at] = source[k]
            at += 1
