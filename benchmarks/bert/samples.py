"""Pre-training samples, [CLS] A [SEP] B [SEP] with masks applied: a single one, or many in flat arrays.

`gather` selects and reorders samples of flat arrays.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from podium.core.jit import compiled

MAX_VOCABULARY_SIZE = 2**16  # token ids are u2

U1 = NDArray[np.uint8]
U2 = NDArray[np.uint16]
I8 = NDArray[np.int64]
FlatArrays = tuple[U2, I8, U2, U2, U2, I8, U1]  # the fields of `Samples`, in their order


@dataclass(frozen=True, eq=False)
class Samples:
    """N samples in flat arrays without padding.

    Sample i has token_ids[sample_offsets[i]:sample_offsets[i + 1]], and the masked arrays likewise by masked_offsets.
    """

    token_ids: NDArray[np.uint16]  # [tokens] the model's input: [CLS] A [SEP] B [SEP] with masks applied
    sample_offsets: NDArray[np.int64]  # [N + 1]
    first_segment_lengths: NDArray[np.uint16]  # [N] tokens of [CLS] A [SEP]
    masked_positions: NDArray[np.uint16]  # [masked tokens] positions inside their sample, ascending
    masked_token_ids: NDArray[np.uint16]  # [masked tokens] the original tokens at these positions
    masked_offsets: NDArray[np.int64]  # [N + 1]
    next_sentence_labels: NDArray[np.uint8]  # [N] 1 where B was drawn from a random document, 0 where it follows A

    def __len__(self) -> int:
        return len(self.next_sentence_labels)

    @property
    def arrays(self) -> FlatArrays:
        """The fields as a tuple, which compiled functions accept."""
        return cast(FlatArrays, tuple(vars(self).values()))


# The fields of `Samples` in their order, with the types of files and content hashes.
SAMPLE_DTYPES: Mapping[str, np.dtype[Any]] = {
    "token_ids": np.dtype("<u2"),
    "sample_offsets": np.dtype("<i8"),
    "first_segment_lengths": np.dtype("<u2"),
    "masked_positions": np.dtype("<u2"),
    "masked_token_ids": np.dtype("<u2"),
    "masked_offsets": np.dtype("<i8"),
    "next_sentence_labels": np.dtype("u1"),
}


class Sample(NamedTuple):
    """One sample, [CLS] A [SEP] B [SEP]; its arrays are read-only views."""

    token_ids: NDArray[np.uint16]  # [length], masks applied
    first_segment_length: int  # tokens of [CLS] A [SEP]
    masked_positions: NDArray[np.uint16]  # [masked], ascending
    masked_token_ids: NDArray[np.uint16]  # [masked], the original tokens
    next_sentence_label: int  # 1 where B was drawn from a random document


def offsets_of(counts: Sequence[int] | NDArray[Any]) -> NDArray[np.int64]:
    """Offsets [N + 1] of N consecutive slices with these counts [N] in a flat array; the last is the total."""
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def gather(samples: Samples, order: NDArray[np.int64]) -> Samples:
    """Copy the samples with these indices [n], in this order."""
    return Samples(
        *_flat_slices(samples.token_ids, samples.sample_offsets, order),
        samples.first_segment_lengths[order],
        _flat_slices(samples.masked_positions, samples.masked_offsets, order)[0],
        *_flat_slices(samples.masked_token_ids, samples.masked_offsets, order),
        samples.next_sentence_labels[order],
    )


def slice_samples(samples: Samples, first: int, end: int) -> Samples:
    """The samples first … end − 1, as views."""
    tokens, masked = samples.sample_offsets[first : end + 1], samples.masked_offsets[first : end + 1]
    return Samples(
        token_ids=samples.token_ids[tokens[0] : tokens[-1]],
        sample_offsets=tokens - tokens[0],
        first_segment_lengths=samples.first_segment_lengths[first:end],
        masked_positions=samples.masked_positions[masked[0] : masked[-1]],
        masked_token_ids=samples.masked_token_ids[masked[0] : masked[-1]],
        masked_offsets=masked - masked[0],
        next_sentence_labels=samples.next_sentence_labels[first:end],
    )


def find_invalid_value(samples: Samples, vocabulary_size: int | None) -> tuple[int, str] | None:
    """Find the first sample with an impossible value: its index and a description, or None.

    Token ids are checked against `vocabulary_size` where it is given: kernels index embedding tables without bounds
    checks, so a larger id would read other memory.
    """
    sample = int(_find_first_invalid(samples.arrays, vocabulary_size or MAX_VOCABULARY_SIZE))
    if sample < 0:
        return None
    length = int(samples.sample_offsets[sample + 1] - samples.sample_offsets[sample])
    masked = slice(*samples.masked_offsets[sample : sample + 2])
    for name, values, most in (
        ("token_ids", samples.token_ids[slice(*samples.sample_offsets[sample : sample + 2])], vocabulary_size),
        ("masked_token_ids", samples.masked_token_ids[masked], vocabulary_size),
        ("masked_positions", samples.masked_positions[masked], length),
        ("first_segment_lengths", samples.first_segment_lengths[sample : sample + 1], length + 1),
        ("next_sentence_labels", samples.next_sentence_labels[sample : sample + 1], 2),
    ):
        found = int(values.max(initial=0))
        if most is not None and found >= most:
            return sample, f"{name} has {found}, allowed are 0 to {most - 1}"
    return sample, "first_segment_lengths has 0, allowed is 1 or more"


@compiled
def largest(values: NDArray[np.uint16]) -> int:
    """The largest of these values, or 0 for none."""
    found = np.uint16(0)
    for i in range(len(values)):  # max has no branch, so that LLVM vectorizes the loop
        found = max(found, values[i])
    return int(found)


@compiled
def _find_first_invalid(arrays: FlatArrays, vocabulary_size: int) -> int:
    """Index of the first sample with an impossible value, or -1."""
    token_ids, sample_offsets, first_lengths, masked_positions, masked_token_ids, masked_offsets, labels = arrays
    for sample in range(len(labels)):
        start, end = sample_offsets[sample], sample_offsets[sample + 1]
        masked_start, masked_end = masked_offsets[sample], masked_offsets[sample + 1]
        token_id = max(largest(token_ids[start:end]), largest(masked_token_ids[masked_start:masked_end]))
        position = largest(masked_positions[masked_start:masked_end])
        first = first_lengths[sample]
        if (
            token_id >= vocabulary_size
            or position >= end - start
            or first < 1
            or first > end - start
            or labels[sample] > 1
        ):
            return sample
    return -1


@compiled
def _flat_slices(
    values: NDArray[np.uint16], offsets: NDArray[np.int64], order: NDArray[np.int64]
) -> tuple[NDArray[np.uint16], NDArray[np.int64]]:
    """Concatenate values[offsets[k]:offsets[k + 1]] for each k of `order`; with the offsets of the result."""
    new_offsets = np.zeros(len(order) + 1, np.int64)
    for i in range(len(order)):
        new_offsets[i + 1] = new_offsets[i] + offsets[order[i] + 1] - offsets[order[i]]
    new_values = np.empty(new_offsets[-1], np.uint16)
    for i in range(len(order)):
        new_values[new_offsets[i] : new_offsets[i + 1]] = values[offsets[order[i]] : offsets[order[i] + 1]]
    return new_values, new_offsets
