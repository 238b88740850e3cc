"""Settings of sample generation from text."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.bert.sizes import MASKED_POSITIONS, MASKED_SHARE, SEQUENCE_LENGTH
from podium.core.errors import UsageError

SPECIAL_TOKENS = 3  # tokens of a sample that are not text: [CLS], [SEP], [SEP]


@dataclass(frozen=True)
class GenerationSettings:
    """How samples are made of text; the defaults are those of MLPerf's BERT. Lengths are in tokens."""

    max_sequence_length: int = SEQUENCE_LENGTH
    max_predictions: int = MASKED_POSITIONS
    masked_lm_probability: float = MASKED_SHARE
    duplicates: int = 10
    short_sequence_probability: float = 0.1
    seed: int = 12345

    def __post_init__(self) -> None:
        allowed: dict[str, tuple[float, float]] = {
            "max_sequence_length": (SPECIAL_TOKENS + 2, 65_535),
            "max_predictions": (1, 65_535),
            "masked_lm_probability": (0, 1),
            "duplicates": (1, 65_535),
            "short_sequence_probability": (0, 1),
            "seed": (0, 2**63 - 1),
        }
        for name, (low, high) in allowed.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise UsageError(f"generation setting {name} is {value}; allowed is {low} to {high}")

    @property
    def max_text_tokens(self) -> int:
        """Tokens of a sample without [CLS] and the two [SEP]."""
        return self.max_sequence_length - SPECIAL_TOKENS


def masked_counts(probability: float, most: int, longest: int) -> NDArray[np.int64]:
    """Tokens to mask in a sample of each length from 0 to `longest`; halves are rounded to even, as Python does."""
    return np.array([min(most, max(1, round(probability * length))) for length in range(longest + 1)], np.int64)
