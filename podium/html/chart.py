"""Plots by matplotlib as SVG files; equal numbers give equal bytes. Charts of pages are in podium.html.plotly."""

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from benchmarks.bert.lengths import wikipedia_histogram
from podium.core.files import write_atomically

# A fixed salt makes ids, which are hashes, reproducible. Text stays text. `$` in names must not start mathtext.
STYLE: dict[Any, Any] = {"svg.hashsalt": "podium", "svg.fonttype": "none", "text.parse_math": False, "font.size": 10.0}


@contextmanager
def svg_axes(path: Path, width: float, height: float) -> Iterator[Axes]:
    """Yield axes of this size in inches, and write them as an SVG file at the end. WorkError if that fails."""
    with rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure.add_subplot()
        image = BytesIO()
        figure.savefig(image, format="svg", metadata={"Date": None})
    write_atomically(path, image.getvalue())


BIN_WIDTH = 8  # lengths per bin of a histogram
STORE_ID, WIKIPEDIA_ID = "store", "wikipedia"  # ids of the curves in the SVG


def plot_lengths(lengths: NDArray[np.int64], name: str, path: Path) -> None:
    """Plot the histogram of lengths, [longest + 1], and that of Wikipedia. WorkError if the file cannot be written."""
    with svg_axes(path, 8, 4.5) as axes:
        total = f"{lengths.sum():,} samples"
        for identity, label, histogram, style in (
            (STORE_ID, f"store {name} ({total})", lengths, {"color": "#1f77b4", "fill": True, "alpha": 0.5}),
            (WIKIPEDIA_ID, "Wikipedia (arXiv 2107.02027)", wikipedia_histogram(), {"color": "#d62728"}),
        ):
            shares, edges = _shares(histogram)
            axes.stairs(shares, edges, label=label, gid=identity, **style)
        axes.set_xlabel("tokens of a sample")
        axes.set_ylabel(f"% of samples, in steps of {BIN_WIDTH} tokens")
        axes.set_title("Lengths of samples")
        axes.set_yscale("log")
        axes.legend()


def _shares(histogram: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Percent of samples in bins of lengths 1–8, 9–16, …, and the edges of the bins."""
    edges = np.arange(0.5, len(histogram) + BIN_WIDTH - 0.5, BIN_WIDTH)
    samples, _ = np.histogram(np.arange(len(histogram)), edges, weights=histogram)
    return 100 * samples / float(histogram.sum()), edges
