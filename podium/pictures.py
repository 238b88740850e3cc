"""Pictures as SVG: one style, and the same numbers give the same bytes."""

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.files import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STYLE: dict[Any, Any] = {"svg.hashsalt": "podium", "svg.fonttype": "none", "text.parse_math": False, "font.size": 10.0}


@contextmanager
def picture(path: Path, width: float, height: float) -> "Iterator[Axes]":
    """Axes to draw on, in inches; the file is written at the end. Raises WorkError if it cannot be."""
    from matplotlib import rc_context  # here, since it takes half a second and most commands draw nothing
    from matplotlib.figure import Figure

    with rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure.add_subplot()
        image = BytesIO()
        figure.savefig(image, format="svg", metadata={"Date": None})
    write_whole(path, image.getvalue())
