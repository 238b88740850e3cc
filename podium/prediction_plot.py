"""Predicted time over numbers of GPUs, with its interval and the published points, as SVG."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from podium.pictures import picture

CURVE, FITTED, OTHERS = "predicted", "published-fitted", "published"
"""Ids in the SVG."""


def plot_scale(predicted: Mapping[str, Any], name: str, path: Path) -> None:
    """Draw `scale` and `published` of a prediction; the same numbers give the same bytes.

    Raises WorkError if the file cannot be written.
    """
    rows = predicted["scale"]
    with picture(path, 8, 5) as axes:
        gpus = [row["gpus"] for row in rows]
        low, high = ([row[key] for row in rows] for key in ("low", "high"))
        axes.fill_between(gpus, low, high, color="#1f77b4", alpha=0.2)
        axes.plot(gpus, [row["seconds"] for row in rows], "o-", color="#1f77b4", label=f"{name}, predicted", gid=CURVE)
        for fitted, identity, label, face in (
            (True, FITTED, "A100, published, fitted on", "#d62728"),
            (False, OTHERS, "A100, published, not fitted on", "none"),
        ):
            points = [point for point in predicted["published"] if point["fitted"] == fitted]
            places = [point["gpus"] for point in points], [point["seconds"] for point in points]
            axes.scatter(*places, s=18, facecolors=face, edgecolors="#d62728", label=label, gid=identity)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(lambda value, _: f"{value:,.0f}")
            axis.set_minor_formatter("")
        axes.set_xlabel("GPUs")
        axes.set_ylabel("seconds to train")
        axes.set_title("Time to train BERT by number of GPUs")
        axes.legend()
