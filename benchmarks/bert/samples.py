"""Samples: one [CLS] A [SEP] B [SEP] with masks applied, alone or among many in flat arrays.

`gather` selects and reorders samples of flat arrays.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from podium.core.jit import compiled

LARGEST_VOCABULARY = 2**16  # of token ids in two bytes

U1 = NDArray[np.uint8]
U2 = NDArray[np.uint16]
I8 = NDArray[np.int64]
FlatArrays = tuple[U2, I8, U2, U2, U2, I8, U1]  # those of `Samples`


@dataclass(frozen=True, eq=False)
class Samples:
    """N samples in flat arrays: sample i is token_ids[sample_offsets[i]:sample_offsets[i + 1]]; masked alike."""

    token_ids: NDArray[np.uint16]  # [tokens] as the model sees them: [CLS] A [SEP] B [SEP] with masks applied
    sample_offsets: NDArray[np.int64]  # [N + 1]
    first_segment_lengths: NDArray[np.uint16]  # [N] tokens of [CLS] A [SEP]
    masked_positions: NDArray[np.uint16]  # [masked tokens] positions inside their sample, ascending
    masked_token_ids: NDArray[np.uint16]  # [masked tokens] the tokens that stood there before masking
    masked_offsets: NDArray[np.int64]  # [N + 1]
    next_sentence_labels: NDArray[np.uint8]  # [N] 1 where B was drawn from a random document, 0 where it follows A

    def __len__(self) -> int:
        return len(self.next_sentence_labels)

    @property
    def arrays(self) -> FlatArrays:
        """The arrays in their order, for compiled functions."""
        return cast(FlatArrays, tuple(vars(self).values()))


# The arrays of `Samples` as they are stored, in their order.
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
    """One [CLS] A [SEP] B [SEP]; the arrays are read-only views."""

    token_ids: NDArray[np.uint16]  # [length], masks applied
    first_segment_length: int  # tokens of [CLS] A [SEP]
    masked_positions: NDArray[np.uint16]  # [masked], ascending
    masked_token_ids: NDArray[np.uint16]  # [masked], the tokens before masking
    next_sentence_label: int  # 1 where B is not what follows A


def offsets_of(counts: Sequence[int] | NDArray[Any]) -> NDArray[np.int64]:
    """Where each of N slices with these counts begins in a flat array, and where the last one ends [N + 1]."""
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def gather(samples: Samples, order: NDArray[np.int64]) -> Samples:
    """The samples with these indices [n], in this order."""
    return Samples(
        *_flat_slices(samples.token_ids, samples.sample_offsets, order),
        samples.first_segment_lengths[order],
        _flat_slices(samples.masked_positions, samples.masked_offsets, order)[0],
        *_flat_slices(samples.masked_token_ids, samples.masked_offsets, order),
        samples.next_sentence_labels[order],
    )


def section(samples: Samples, first: int, end: int) -> Samples:
    """The samples first … end - 1, as views."""
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


def value_fault(samples: Samples, words: int | None) -> tuple[int, str] | None:
    """The first sample with a value that no sample can have, and what it is; None where there is none.

    `words` is the size of the vocabulary, where it is known: kernels read rows of tables at these numbers, and do not
    compare them with the size of the tables.
    """
    sample = int(_first_fault(samples.arrays, words or LARGEST_VOCABULARY))
    if sample < 0:
        return None
    length = int(samples.sample_offsets[sample + 1] - samples.sample_offsets[sample])
    masked = slice(*samples.masked_offsets[sample : sample + 2])
    for name, values, most in (
        ("token_ids", samples.token_ids[slice(*samples.sample_offsets[sample : sample + 2])], words),
        ("masked_token_ids", samples.masked_token_ids[masked], words),
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
    """The largest of these values, 0 of none; a loop without a branch, for vector instructions."""
    found = np.uint16(0)
    for place in range(len(values)):
        found = max(found, values[place])
    return int(found)


@compiled
def _first_fault(arrays: FlatArrays, words: int) -> int:
    """The first sample with a value that cannot be, or -1."""
    token_ids, sample_offsets, first_lengths, masked_positions, masked_token_ids, masked_offsets, labels = arrays
    for sample in range(len(labels)):
        start, end = sample_offsets[sample], sample_offsets[sample + 1]
        masked_start, masked_end = masked_offsets[sample], masked_offsets[sample + 1]
        word = max(largest(token_ids[start:end]), largest(masked_token_ids[masked_start:masked_end]))
        position = largest(masked_positions[masked_start:masked_end])
        first = first_lengths[sample]
        if word >= words or position >= end - start or first < 1 or first > end - start or labels[sample] > 1:
            return sample
    return -1


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
