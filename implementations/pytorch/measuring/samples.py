"""Steps to time: synthetic samples of given lengths, dealt out as a run deals its own out."""

from dataclasses import dataclass

import numpy as np

from implementations.pytorch.data.batch import SHAPE_STEPS
from implementations.pytorch.data.loader import TrainingOrder
from podium.config import RunConfig

MASKED_SHARE, MOST_MASKED = 0.15, 76
"""As MLPerf's reference masks."""
SEED = 0


@dataclass(frozen=True)
class Lengths:
    """What the length index of a store tells, where there is no store."""

    lengths: np.ndarray
    masked_counts: np.ndarray
    max_sequence_length: int = 512

    def __len__(self) -> int:
        return len(self.lengths)


def quantiles(histogram: np.ndarray, count: int) -> np.ndarray:
    """`count` lengths at evenly spaced quantiles of a histogram (samples of length 0, 1, …), shuffled.

    So few samples have the mixture of many, and all sides and machines are timed on the same.
    """
    places = (np.arange(count) + 0.5) / count
    lengths = np.searchsorted(histogram.cumsum() / histogram.sum(), places)
    return np.random.default_rng(SEED).permutation(lengths)


def masked_counts(lengths: np.ndarray) -> np.ndarray:
    return np.clip(np.round(MASKED_SHARE * lengths), 1, MOST_MASKED).astype(np.int64)


def order_of(config: RunConfig, lengths: np.ndarray, device: str) -> TrainingOrder:
    """The order of a run with samples of these lengths, each of them once."""
    return TrainingOrder(
        Lengths(lengths, masked_counts(lengths)),
        seed=SEED,
        strategy=config.balancing,
        global_batch_size=config.global_batch_size,
        ranks=config.launch.ranks,
        accumulation_steps=config.gradient_accumulation_steps,
        shape_step=config.shape_step or SHAPE_STEPS[device],
        attention_widths=config.attention_widths,
    )
