"""Samples to time steps on: synthetic ones of given lengths, dealt out as a run deals its own out."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from benchmarks.bert.lengths import quantiles, usual_masked_counts
from benchmarks.bert.sizes import SEQUENCE_LENGTH

SEED = 0


@dataclass(frozen=True)
class Lengths:
    """What the length index of a store tells, where there is no store."""

    lengths: np.ndarray
    max_sequence_length: int = SEQUENCE_LENGTH

    @cached_property
    def masked_counts(self) -> np.ndarray:
        return usual_masked_counts(self.lengths)

    def __len__(self) -> int:
        return len(self.lengths)


def mixed_lengths(histogram: np.ndarray, count: int) -> np.ndarray:
    """`count` lengths at evenly spaced quantiles of a histogram (samples of length 0, 1, …), shuffled.

    So few samples have the mixture of many, and all sides and machines are timed on the same.
    """
    return np.random.default_rng(SEED).permutation(quantiles(histogram, count))
