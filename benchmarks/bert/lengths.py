"""Histograms of sample lengths, and samples that represent one where only their lengths matter.

The published histogram of the pre-training samples of Wikipedia is included.
"""

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.bert.sizes import MASKED_POSITIONS, MASKED_SHARE, SEQUENCE_LENGTH
from podium.core.errors import UsageError
from podium.core.files import read_bounded
from podium.core.json_files import parse_json
from podium.core.paths import package_file

# [512] samples of length 1 to 512, 16,279,552 in all, of mean length 255.83. Published with Krell et al., Efficient
# sequence packing without cross-contamination, arXiv 2107.02027.
WIKIPEDIA: tuple[int, ...] = tuple(
    json.loads(package_file("benchmarks.bert.published", "wikipedia_lengths.json").read_text(encoding="ascii"))
)

LARGEST_HISTOGRAM = 1 << 20  # bytes of a file


def read_histogram(path: Path, option: str = "--lengths") -> NDArray[np.float64]:
    """Samples of length 0, 1, … from a JSON list that begins with length 1.

    Raises UsageError, which names the option, for a file that is missing or holds anything else.
    """
    allowed = f"allowed is a JSON list of up to {SEQUENCE_LENGTH} counts, of samples of 1, 2, … tokens, the first two 0"
    try:
        counts = np.array([0, *map(_number, parse_json(read_bounded(path, LARGEST_HISTOGRAM)))], dtype=np.float64)
    except OSError as error:
        raise UsageError(f"{option}: {path} cannot be read ({error.strerror}); {allowed}") from None
    except (ValueError, TypeError, OverflowError):
        raise UsageError(f"{option}: {path} holds something else; {allowed}") from None
    if len(counts) > SEQUENCE_LENGTH + 1 or counts[:3].any() or not 0 < counts.sum() < np.inf or (counts < 0).any():
        raise UsageError(f"{option}: {path} holds something else; {allowed}")
    return counts


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    return float(value)


def wikipedia_histogram() -> NDArray[np.int64]:
    """[513] Wikipedia's samples of length 0 to 512."""
    return np.array([0, *WIKIPEDIA], dtype=np.int64)


def quantiles(histogram: np.ndarray, count: int) -> NDArray[np.int64]:
    """`count` lengths at evenly spaced quantiles of a histogram of lengths 0, 1, …, shortest first."""
    places = (np.arange(count) + 0.5) / count
    return np.searchsorted(histogram.cumsum() / histogram.sum(), places).astype(np.int64)


def usual_masked_counts(lengths: np.ndarray) -> NDArray[np.int64]:
    """How many tokens of samples of these lengths are masked, as MLPerf's reference masks them."""
    return np.clip(np.round(MASKED_SHARE * lengths.astype(np.float64)), 1, MASKED_POSITIONS).astype(np.int64)
