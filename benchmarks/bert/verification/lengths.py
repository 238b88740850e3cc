"""The lengths of samples, against those of Wikipedia's.

The limits leave room for another dump of Wikipedia, whose mean length may be a token or two away (MLPerf's own is 254.5
and the published one 255.83), and none for another text. Chance is far below them: samples of one document have
related lengths, so documents are what is drawn. 37 and 41 of them lay 0.29 and 0.41 from Wikipedia, so at 1/√documents
some 0.001 is left of 6 million.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from benchmarks.bert.lengths import wikipedia_histogram
from benchmarks.bert.sizes import SEQUENCE_LENGTH
from benchmarks.bert.verification.evidence import Evidence
from benchmarks.finding import Finding, check_result

BIN = 32
"""Lengths that are counted together when two histograms are compared."""
FARTHEST = 0.05
"""Total variation distance."""
FARTHEST_MEAN = 5.0
"""Tokens between the mean lengths."""


def mean_length(histogram: NDArray[np.int64]) -> float:
    """Mean length in tokens; `histogram` has the samples of length 0, 1, 2, …"""
    return float(histogram @ np.arange(len(histogram))) / float(histogram.sum())


def distance(one: NDArray[np.int64], other: NDArray[np.int64]) -> float:
    """Total variation distance of two histograms in bins of lengths 1–32, 33–64, …: 0 for the same shares, 1 for none.

    Both have the samples of length 0, 1, 2, … up to the same length, and length 0 does not occur.
    """
    shares = []
    for histogram in (one, other):
        padded = np.zeros(-(-(len(histogram) - 1) // BIN) * BIN)
        padded[: len(histogram) - 1] = histogram[1:]
        shares.append(padded.reshape(-1, BIN).sum(axis=1) / histogram.sum())
    return float(np.abs(shares[0] - shares[1]).sum() / 2)


def check_lengths(evidence: Evidence) -> Iterator[Finding]:
    """Whether the training samples are as long as Wikipedia's."""
    if not evidence.training.shards:
        return
    wikipedia, own = wikipedia_histogram(), evidence.training.lengths
    if len(own) != len(wikipedia):
        found = f"samples of up to {len(own) - 1} tokens, which Wikipedia's published lengths do not speak of"
        yield Finding("lengths", evidence.fault, found, f"samples of up to {SEQUENCE_LENGTH} tokens", "")
        return
    far, mean, wanted = distance(own, wikipedia), mean_length(own), mean_length(wikipedia)
    near = far <= FARTHEST and abs(mean - wanted) <= FARTHEST_MEAN
    yield check_result(
        "lengths",
        near,
        f"mean {mean:.2f} tokens, distance from Wikipedia's {far:.4f}",
        f"mean {wanted:.2f} ± {FARTHEST_MEAN:g}, distance at most {FARTHEST}",
        "expect this of another text or of a small part of it; of all of Wikipedia something is missing",
        evidence.fault,
    )
