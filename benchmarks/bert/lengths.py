"""Histograms of sample lengths: the published one of Wikipedia, histograms from files, and lengths at quantiles."""

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.bert.sizes import MASKED_POSITIONS, MASKED_SHARE, SEQUENCE_LENGTH
from podium.core.errors import UsageError
from podium.core.files import read_bounded
from podium.core.json_files import parse_json
from podium.core.paths import package_file

# [512] numbers of samples of length 1 to 512: 16,279,552 in all, mean length 255.83. Published with Krell et al.,
# Efficient sequence packing without cross-contamination, arXiv 2107.02027.
WIKIPEDIA: tuple[int, ...] = tuple(
    json.loads(package_file("benchmarks.bert.published", "wikipedia_lengths.json").read_text(encoding="ascii"))
)

MAX_HISTOGRAM_BYTES = 1 << 20  # bytes of a file


def read_histogram(path: Path, option: str = "--lengths") -> NDArray[np.float64]:
    """Read a histogram [length + 1] of lengths 0, 1, … from a JSON list that begins with length 1.

    Raises UsageError, which names `option`, for a file that is missing or is not such a list.
    """
    allowed = f"allowed is a JSON list of up to {SEQUENCE_LENGTH} counts, of samples of 1, 2, … tokens, the first two 0"
    try:
        counts = np.array(
            [0, *map(_parse_number, parse_json(read_bounded(path, MAX_HISTOGRAM_BYTES)))], dtype=np.float64
        )
    except OSError as error:
        raise UsageError(f"{option}: {path} cannot be read ({error.strerror}); {allowed}") from None
    except (ValueError, TypeError, OverflowError):
        raise UsageError(f"{option}: {path} is not a histogram; {allowed}") from None
    if len(counts) > SEQUENCE_LENGTH + 1 or counts[:3].any() or not 0 < counts.sum() < np.inf or (counts < 0).any():
        raise UsageError(f"{option}: {path} is not a histogram; {allowed}")
    return counts


def _parse_number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    return float(value)


def wikipedia_histogram() -> NDArray[np.int64]:
    """Numbers of Wikipedia's samples of length 0 to 512 [513]."""
    return np.array([0, *WIKIPEDIA], dtype=np.int64)


def quantiles(histogram: np.ndarray, count: int) -> NDArray[np.int64]:
    """Lengths [count] at evenly spaced quantiles of a histogram of lengths 0, 1, …, ascending."""
    shares = (np.arange(count) + 0.5) / count
    return np.searchsorted(histogram.cumsum() / histogram.sum(), shares).astype(np.int64)


def reference_masked_counts(lengths: np.ndarray) -> NDArray[np.int64]:
    """Masked tokens [n] of samples of these lengths [n]: 15%, from 1 to 76, as in MLPerf's reference."""
    return np.clip(np.round(MASKED_SHARE * lengths.astype(np.float64)), 1, MASKED_POSITIONS).astype(np.int64)
