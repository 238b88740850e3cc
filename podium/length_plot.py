"""A picture of a store's sample lengths beside Wikipedia's, as SVG."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.bert.lengths import wikipedia_histogram
from podium.pictures import picture

BIN = 8
"""Lengths a step of the curves."""
OWN, WIKIPEDIA = "store", "wikipedia"
"""The curves' ids in the SVG."""


def plot_lengths(lengths: NDArray[np.int64], name: str, path: Path) -> None:
    """Draw samples by length, [longest + 1], as shares beside Wikipedia's; the same numbers give the same bytes.

    Raises WorkError if the file cannot be written.
    """
    with picture(path, 8, 4.5) as axes:
        total = f"{lengths.sum():,} samples"
        for identity, label, histogram, style in (
            (OWN, f"store {name} ({total})", lengths, {"color": "#1f77b4", "fill": True, "alpha": 0.5}),
            (WIKIPEDIA, "Wikipedia (arXiv 2107.02027)", wikipedia_histogram(), {"color": "#d62728"}),
        ):
            shares, edges = _shares(histogram)
            axes.stairs(shares, edges, label=label, gid=identity, **style)
        axes.set_xlabel("tokens of a sample")
        axes.set_ylabel(f"% of samples, in steps of {BIN} tokens")
        axes.set_title("Lengths of samples")
        axes.set_yscale("log")
        axes.legend()


def _shares(histogram: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Percent of the samples of lengths 1–8, 9–16, …, and the edges between them."""
    steps = -(-(len(histogram) - 1) // BIN)
    padded = np.zeros(steps * BIN)
    padded[: len(histogram) - 1] = histogram[1:]
    percent: NDArray[np.float64] = 100 * padded.reshape(steps, BIN).sum(axis=1) / float(histogram.sum())
    edges: NDArray[np.float64] = np.arange(steps + 1, dtype=np.float64) * BIN + 0.5
    return percent, edges
