"""What a sample is: one [CLS] A [SEP] B [SEP] with masks applied, alone or among many in flat arrays."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

FlatArrays = tuple[
    NDArray[np.uint16],
    NDArray[np.int64],
    NDArray[np.uint16],
    NDArray[np.uint16],
    NDArray[np.uint16],
    NDArray[np.int64],
    NDArray[np.uint8],
]


@dataclass(frozen=True, eq=False)
class Samples:
    """N samples in flat arrays: sample i is token_ids[sample_offsets[i]:sample_offsets[i + 1]]; masked alike."""

    token_ids: NDArray[np.uint16]
    """[tokens] as the model sees them: [CLS] A [SEP] B [SEP] with masks applied."""
    sample_offsets: NDArray[np.int64]
    """[N + 1]"""
    first_segment_lengths: NDArray[np.uint16]
    """[N] tokens of [CLS] A [SEP]."""
    masked_positions: NDArray[np.uint16]
    """[masked tokens] positions inside their sample, ascending."""
    masked_token_ids: NDArray[np.uint16]
    """[masked tokens] the tokens that stood there before masking."""
    masked_offsets: NDArray[np.int64]
    """[N + 1]"""
    next_sentence_labels: NDArray[np.uint8]
    """[N] 1 where B was drawn from a random document, 0 where it follows A."""

    def __len__(self) -> int:
        return len(self.next_sentence_labels)

    @property
    def arrays(self) -> FlatArrays:
        """The arrays in their order, for compiled functions."""
        return (
            self.token_ids,
            self.sample_offsets,
            self.first_segment_lengths,
            self.masked_positions,
            self.masked_token_ids,
            self.masked_offsets,
            self.next_sentence_labels,
        )


SAMPLE_DTYPES: Mapping[str, np.dtype[Any]] = {
    "token_ids": np.dtype("<u2"),
    "sample_offsets": np.dtype("<i8"),
    "first_segment_lengths": np.dtype("<u2"),
    "masked_positions": np.dtype("<u2"),
    "masked_token_ids": np.dtype("<u2"),
    "masked_offsets": np.dtype("<i8"),
    "next_sentence_labels": np.dtype("u1"),
}
"""The arrays of `Samples` as they are stored, in their order."""


class Sample(NamedTuple):
    """One [CLS] A [SEP] B [SEP]; the arrays are read-only views."""

    token_ids: NDArray[np.uint16]
    """[length], masks applied."""
    first_segment_length: int
    """Tokens of [CLS] A [SEP]."""
    masked_positions: NDArray[np.uint16]
    """[masked], ascending."""
    masked_token_ids: NDArray[np.uint16]
    """[masked], the tokens before masking."""
    next_sentence_label: int
    """1 where B is not what follows A."""
