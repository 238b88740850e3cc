"""Settings of the generation of samples from text."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.bert.sizes import MASKED_POSITIONS, MASKED_SHARE, SEQUENCE_LENGTH
from podium.core.errors import UsageError

SPECIAL_TOKENS_PER_SAMPLE = 3  # special tokens of a sample: [CLS], [SEP], [SEP]
MIN_SEQUENCE_LENGTH = SPECIAL_TOKENS_PER_SAMPLE + 2  # tokens; each of the two segments has at least one token of text
PUBLISHED_MAX_PREDICTIONS = {128: 20, SEQUENCE_LENGTH: MASKED_POSITIONS}


@dataclass(frozen=True)
class GenerationSettings:
    """Settings of sample generation; the defaults are those of MLPerf's BERT. Lengths are in tokens.

    Raises UsageError for a value out of range.
    """

    max_sequence_length: int = SEQUENCE_LENGTH
    max_predictions: int = MASKED_POSITIONS
    masked_lm_probability: float = MASKED_SHARE
    duplicates: int = 10
    short_sequence_probability: float = 0.1
    seed: int = 12345

    def __post_init__(self) -> None:
        allowed: dict[str, tuple[float, float]] = {
            "max_sequence_length": (MIN_SEQUENCE_LENGTH, 65_535),
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

    @classmethod
    def from_lengths(cls, max_sequence_length: int | None, max_predictions: int | None) -> "GenerationSettings":
        """Return MLPerf's settings with these lengths; None means MLPerf's length, and its default maximum of masked
        tokens. Raises UsageError for lengths with which no sample can be generated.
        """
        length = SEQUENCE_LENGTH if max_sequence_length is None else max_sequence_length
        settings = cls(length, default_max_predictions(length) if max_predictions is None else max_predictions)
        if settings.max_predictions > settings.max_text_tokens:
            raise UsageError(
                f"generation setting max_predictions is {settings.max_predictions}; allowed is 1 to "
                f"{settings.max_text_tokens}, the tokens of a sample of {length} without [CLS] and the two [SEP]"
            )
        return settings

    @property
    def max_text_tokens(self) -> int:
        """Maximum tokens of text in a sample: all but [CLS] and the two [SEP]."""
        return self.max_sequence_length - SPECIAL_TOKENS_PER_SAMPLE


def default_max_predictions(max_sequence_length: int) -> int:
    """Default of max_predictions for a maximum sequence length: the published number, else 15 % of the length.

    Published are 20 for 128 (BERT's create_pretraining_data.py) and 76 for 512 (MLPerf). For other lengths it is
    round(0.15 · length), the masked tokens of the longest sample, so that no sample is masked less than its share.
    """
    return PUBLISHED_MAX_PREDICTIONS.get(max_sequence_length, max(1, round(MASKED_SHARE * max_sequence_length)))


def masked_counts(probability: float, max_count: int, max_length: int) -> NDArray[np.int64]:
    """Tokens to mask [longest + 1] in a sample of each length from 0 to `longest`, at least 1 and at most `most`.

    Halves are rounded to even, as in the reference, which uses Python's `round`.
    """
    return np.array([min(max_count, max(1, round(probability * length))) for length in range(max_length + 1)], np.int64)
