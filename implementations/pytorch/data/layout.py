"""Where every token of a batch goes: compiled loops that do not hold the interpreter's lock.

A thread lays batches out while another one trains; what it did under the lock, the other one would wait for.
"""

import numpy as np
from numpy.typing import NDArray

from benchmarks.compiled import compiled


@compiled
def lay_out(
    token_ids: NDArray[np.uint16],
    sample_offsets: NDArray[np.int64],
    first_segment_lengths: NDArray[np.uint16],
    masked_positions: NDArray[np.uint16],
    masked_token_ids: NDArray[np.uint16],
    masked_offsets: NDArray[np.int64],
    next_sentence_labels: NDArray[np.uint8],
    order: NDArray[np.int64],
    starts: NDArray[np.int64],
    tokens_3T: NDArray[np.int64],
    masks_2M: NDArray[np.int64],
    next_sentence: NDArray[np.int64],
) -> None:
    """Copy the flat arrays of `Samples` in an `order` [S] into rows that begin at `starts` [S + 1].

    `tokens_3T` gets token ids, segments and positions and must be zero; `masks_2M` gets the places of masked tokens
    among the T and their labels, in its first columns.
    """
    masked = 0
    for row in range(len(order)):
        sample = order[row]
        start, source = starts[row], sample_offsets[sample]
        for k in range(sample_offsets[sample + 1] - source):
            tokens_3T[0, start + k] = token_ids[source + k]
            tokens_3T[1, start + k] = 1 if k >= first_segment_lengths[sample] else 0
        for k in range(starts[row + 1] - start):
            tokens_3T[2, start + k] = k
        for k in range(masked_offsets[sample], masked_offsets[sample + 1]):
            masks_2M[0, masked] = start + masked_positions[k]
            masks_2M[1, masked] = masked_token_ids[k]
            masked += 1
        next_sentence[row] = next_sentence_labels[sample]


@compiled
def fill_rectangle(
    row_starts: NDArray[np.int64], width: int, pad_index: NDArray[np.int64], unpad_index: NDArray[np.int64]
) -> None:
    """The two indices of an `AttentionGroup` whose rows are the tokens from `row_starts` [rows + 1]."""
    for row in range(len(row_starts) - 1):
        start, count = row_starts[row], row_starts[row + 1] - row_starts[row]
        before = start - row_starts[0]
        for k in range(width):
            pad_index[row * width + k] = start + k if k < count else start
        for k in range(count):
            unpad_index[before + k] = row * width + k
