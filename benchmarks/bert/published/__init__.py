"""Results that were published in MLPerf Training, as figures: what others' systems took, and how many samples."""

from benchmarks.bert.published.reading import (
    PublishedRun,
    PublishedScore,
    SamplesToTarget,
    read_runs,
    read_samples,
    read_scores,
    read_tiny_samples,
)

__all__ = [
    "PublishedRun",
    "PublishedScore",
    "SamplesToTarget",
    "read_runs",
    "read_samples",
    "read_scores",
    "read_tiny_samples",
]
