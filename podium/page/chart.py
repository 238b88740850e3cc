"""Charts by matplotlib as SVG: in a page, where they follow its colours and can be asked, or as files of their own.

The same numbers give the same bytes.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from io import StringIO
from typing import Any, ClassVar

from cycler import cycler
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.text import for_html, for_xml, label
from podium.page import colours
from podium.page.svg import inlined
from podium.pictures import STYLE

WIDE, NARROW = 8.6, 3.7
"""Inches: a page shows the wide chart, or the narrow one on a phone, so that letters are never scaled down."""

_INK, _QUIET, _RULE = (colours.BASE[name].light for name in ("ink", "quiet", "rule"))
CHART_STYLE: dict[Any, Any] = {
    **STYLE,
    "font.size": 9.0,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _QUIET,
    "axes.facecolor": "none",
    "axes.prop_cycle": cycler(color=[colour.light for colour in colours.SERIES]),
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": _RULE,
    "grid.linewidth": 0.6,
    "xtick.color": _QUIET,
    "ytick.color": _QUIET,
    "xtick.labelcolor": _INK,
    "ytick.labelcolor": _INK,
    "legend.frameon": False,
    "lines.linewidth": 1.4,
    "lines.markersize": 5.0,
}


@dataclass
class Canvas:
    """What a chart is drawn on.

    Text from outside that is put on the axes, such as a tick's label, is made by `podium.page.text.brief`: matplotlib
    raises an error for some characters, and has no room for long texts. `tell` and `legend` see to that themselves.
    """

    figure: Figure
    axes: Axes
    narrow: bool
    """On a phone: shorter labels, fewer ticks, a legend of one column."""
    told: list[tuple[str, ...]] = field(default_factory=list)
    """What the points of each group tell; the group of number n has the id GROUP + n."""

    def tell(self, artist: Artist, texts: Sequence[str]) -> None:
        """What each point of a line with markers, or a patch such as a bar, says to who points at it.

        A text is of one or more lines, the first being what the point is called. Points must be finite, and inside of
        the axes.
        """
        artist.set_gid(f"{GROUP}{len(self.told)}")
        self.told.append(tuple(for_html(text) for text in texts))

    def legend(self, handles: Sequence[Artist], labels: Sequence[str], columns: int = 4, narrow: int = 2) -> None:
        """Below the axes, in `columns` columns, or in `narrow` on a phone."""
        columns, longest = (narrow, 44 // narrow) if self.narrow else (columns, 104 // columns)
        self.figure.legend(
            list(handles),
            [label(one, longest) for one in labels],
            loc="outside lower center",
            ncols=max(min(len(labels), columns), 1),
            handletextpad=0.4,
            columnspacing=1.2,
        )


GROUP = "told-"


@dataclass(frozen=True)
class Chart:
    kind: ClassVar[str] = "chart"
    title: str
    caption: str
    """What is drawn, and how to read it; said to those who do not see the chart too."""
    draw: Callable[[Canvas], None]
    """Is called for each size. What it draws must follow from its numbers alone."""
    height: float = 4.6
    """In inches, of the wide one."""
    narrow_height: float = 4.4


def page_svg(chart: Chart, prefix: str, narrow: bool) -> str:
    """The chart as an <svg> to stand in HTML; its ids begin with `prefix`."""
    drawn, canvas = _drawn(chart, narrow, transparent=True)
    return inlined(drawn, prefix, GROUP, canvas.told, for_html(chart.title))


def standalone_svg(chart: Chart) -> str:
    """The wide chart as an SVG file, on white, with its title."""
    return _drawn(chart, narrow=False, transparent=False)[0]


def _drawn(chart: Chart, narrow: bool, transparent: bool) -> tuple[str, Canvas]:
    with rc_context(CHART_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # the reader's font has it, or shows that
        size = (NARROW, chart.narrow_height) if narrow else (WIDE, chart.height)
        figure = Figure(figsize=size, layout="constrained")
        canvas = Canvas(figure, figure.add_subplot(), narrow)
        chart.draw(canvas)
        if not transparent:
            canvas.axes.set_title(label(chart.title, 100))
        image = StringIO()
        figure.savefig(image, format="svg", metadata={"Date": None}, transparent=transparent)
    return for_xml(image.getvalue()), canvas
