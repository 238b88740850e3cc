"""Charts by matplotlib as SVG, inline in HTML pages and as separate files; equal numbers give equal bytes.

- In a page, a chart has the page's colours and fonts, ids that are unique in it, and tooltips on its points.
- Colour-blind readers can distinguish the colours of pages and charts, light and dark. A chart is drawn in the light
  ones; in a page each becomes a CSS variable, which has another value in dark mode.
"""

import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from io import BytesIO, StringIO
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import numpy as np
from cycler import cycler
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from numpy.typing import NDArray

from benchmarks.bert.lengths import wikipedia_histogram
from podium.core.files import write_atomically
from podium.core.text import for_html, for_xml, label


class Colour(NamedTuple):
    """A colour as #rrggbb, in light and in dark mode."""

    light: str
    dark: str


# Colours by role. Ink, quiet and accent are text colours on ground, panel and marked; each pair has a contrast of 4.5.
BASE: Mapping[str, Colour] = MappingProxyType(
    {
        "ground": Colour("#ffffff", "#14181d"),
        "panel": Colour("#f3f5f7", "#1d232a"),
        "ink": Colour("#1a2027", "#e6eaee"),
        "quiet": Colour("#55606b", "#a3afba"),
        "rule": Colour("#d5dae0", "#38424c"),
        "accent": Colour("#0b57a4", "#7db8f7"),
        "marked": Colour("#fdf3d0", "#3a3213"),
    }
)

# Found by search: among colours with a contrast of at least 3.2 to the ground, those that maximise the least distance
# of two in OKLab, as seen with normal, protan and deutan vision (Machado et al. 2009).
SERIES: tuple[Colour, ...] = (
    Colour("#4068dd", "#65a1f1"),
    Colour("#b97f1d", "#ee936f"),
    Colour("#3c9e93", "#92fed0"),
    Colour("#5d0254", "#996694"),
    Colour("#127493", "#72cfdb"),
    Colour("#6e2019", "#cc4734"),
    Colour("#7c5f05", "#e6f121"),
    Colour("#611d9a", "#6a62eb"),
)
# 11 is coprime to the 8 colours: colour and marker together distinguish 88 series.
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h")
# Of the first series of each colour, of the second, and of all others.
LINES = ("-", "--", ":")


def series_style(number: int) -> dict[str, Any]:
    """Return matplotlib's keywords for the colour, marker and line of series `number`."""
    return {
        "color": SERIES[number % len(SERIES)].light,
        "marker": MARKERS[number % len(MARKERS)],
        "linestyle": LINES[min(number // len(SERIES), len(LINES) - 1)],
    }


@cache
def css_variables() -> Mapping[str, Colour]:
    """Colours by the names of their CSS variables."""
    return {**BASE, **{f"series-{number}": colour for number, colour in enumerate(SERIES)}}


def style_sheet() -> str:
    """Return CSS that defines the variables: light, and dark for prefers-color-scheme; print is always light."""
    light = "".join(f"--{name}:{colour.light};" for name, colour in css_variables().items())
    dark = "".join(f"--{name}:{colour.dark};" for name, colour in css_variables().items())
    return f":root{{{light}}}\n@media screen and (prefers-color-scheme: dark){{:root{{{dark}}}}}\n"


XLINK_HREF = "{http://www.w3.org/1999/xlink}href"
_LONG_NUMBER = re.compile(r"-?\d+\.\d{3,}")
_COLOUR = re.compile(r"#[0-9a-f]{6}\b")
_FONT_FAMILY = re.compile(r"font-family:[^;]*;?\s*")
_FONT = re.compile(r"font: (?:[a-z0-9]+ )*?([\d.]+px) [^;]*")
_REFERENCE = re.compile(r"url\(#([^)]*)\)")


def inline_svg(
    svg: str, prefix: str, group: str, tooltips: Sequence[Sequence[str]], label: str, titles: bool = True
) -> str:
    """Convert an SVG document to an element of an HTML page.

    Ids become `prefix` and a number; unreferenced ones are removed. The points of the element with the id `group` + n
    get the texts `tooltips[n]` as their <title>, and the attribute data-group. Without `titles` they get only that.
    Raises ValueError if the numbers of points and texts differ.
    """
    root = ElementTree.fromstring(svg)  # noqa: S314 — matplotlib has just written it
    for parent in list(root.iter()):
        for child in list(parent):
            if _local_name(child.tag) in ("metadata", "style"):
                parent.remove(child)
    for number, texts in enumerate(tooltips):
        _add_titles(root, f"{group}{number}", number, texts, titles)
    for element in root.iter():
        _simplify(element)
    _rename_ids(root, prefix)
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.set("role", "group")
    root.set("aria-label", label)
    return ElementTree.tostring(root, encoding="unicode")


def _add_titles(root: Element, identity: str, number: int, texts: Sequence[str], titles: bool) -> None:
    # matplotlib writes each marker of a line as <use>, and a patch such as a bar as one <path>.
    holder = next((element for element in root.iter() if element.get("id") == identity), None)
    found = [] if holder is None else [one for one in holder.iter() if _local_name(one.tag) == "use"]
    if holder is not None and not found:
        found = [one for one in holder if _local_name(one.tag) == "path"]
    if len(found) != len(texts):
        raise ValueError(
            f"{len(texts)} tooltips were given and {len(found)} points are drawn: one is not finite or outside the axes"
        )
    for point, text in zip(found, texts, strict=True):
        point.set("data-group", str(number))
        if titles:
            ElementTree.SubElement(point, "title").text = text


def _simplify(element: Element) -> None:
    """Remove namespaces, fonts and long decimals; make colours variables; hoist styles of points."""
    element.tag = _local_name(element.tag)
    if element.tag != "title":
        element.text = element.text if element.tag in ("text", "tspan") else None
    element.tail = None
    if XLINK_HREF in element.attrib:
        element.set("href", element.attrib.pop(XLINK_HREF))
    for name in ("d", "x", "y", "transform", "points"):
        if name in element.attrib:
            rounded = _LONG_NUMBER.sub(_round_number, element.attrib[name])
            element.set(name, rounded.replace(" \n", "").replace("\n", ""))
    if "style" in element.attrib:
        element.set("style", _to_page_style(element.attrib["style"]))
    elif len(element) > 1 and all(_local_name(child.tag) == "use" for child in element):
        styles = {child.get("style", "") for child in element}
        if len(styles) == 1:
            element.set("style", _to_page_style(styles.pop()))
            for child in element:
                child.attrib.pop("style", None)


def _to_page_style(style: str) -> str:
    style = _FONT.sub(r"font-size: \1", _FONT_FAMILY.sub("", style))
    # All light colours differ, so that each names one variable.
    names = {colour.light: f"var(--{name})" for name, colour in css_variables().items()}
    return _COLOUR.sub(lambda found: names.get(found.group(), found.group()), style)


def _round_number(number: re.Match[str]) -> str:
    return f"{float(number.group()):.2f}".rstrip("0").rstrip(".")


def _rename_ids(root: Element, prefix: str) -> None:
    # Ids of several charts must not collide in one page; unreferenced ones are dead weight.
    referred = {value[1:] for element in root.iter() if (value := element.get("href", "")).startswith("#")}
    for element in root.iter():
        referred.update(name for value in element.attrib.values() for name in _REFERENCE.findall(value))
    identities: dict[str, str] = {}
    for element in root.iter():
        identity = element.attrib.pop("id", None)
        if identity in referred:
            identities[identity] = f"{prefix}{len(identities)}"
            element.set("id", identities[identity])
    for element in root.iter():
        for name, value in element.attrib.items():
            if name == "href":
                element.set(name, f"#{identities[value[1:]]}")
            elif "url(#" in value:
                element.set(name, _REFERENCE.sub(lambda found: f"url(#{identities[found.group(1)]})", value))


def _local_name(tag: str) -> str:
    return tag.rpartition("}")[2]


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


# Widths in inches. A page has both charts and shows the narrow one on a phone, so that text is not scaled down.
WIDE, NARROW = 8.6, 3.7

_INK, _QUIET, _RULE = (BASE[name].light for name in ("ink", "quiet", "rule"))
CHART_STYLE: dict[Any, Any] = {
    **STYLE,
    "font.size": 9.0,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _QUIET,
    "axes.facecolor": "none",
    "axes.prop_cycle": cycler(color=[colour.light for colour in SERIES]),
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
    """The figure and axes of a chart that is being drawn, with the tooltips of its points.

    Untrusted text on the axes, such as a tick label, must come from `podium.core.text.label`: matplotlib raises an
    error for some characters, and has no room for long texts. The methods of this class do that themselves.
    """

    figure: Figure
    axes: Axes
    narrow: bool  # for a phone: shorter labels, fewer ticks, fewer legend columns
    # Texts of each group of points; group n has the id GROUP_ID + n.
    tooltips: list[tuple[str, ...]] = field(default_factory=list)

    def add_tooltips(self, artist: Artist, texts: Sequence[str]) -> None:
        """Add a tooltip to each point of a line with markers, or one to a patch such as a bar.

        A text has one or more lines; the first one names the point. Points must be finite and within the axes.
        """
        artist.set_gid(f"{GROUP_ID}{len(self.tooltips)}")
        self.tooltips.append(tuple(for_html(text) for text in texts))

    def label_rows(self, labels: Sequence[str]) -> None:
        """Give the y axis a row for each bar, with these labels, the first on top."""
        self.axes.set_yticks(range(len(labels)), labels)
        self.axes.set_ylim(len(labels) - 0.4, -0.6)
        self.axes.grid(False, axis="y")

    def legend(self, handles: Sequence[Artist], labels: Sequence[str], columns: int = 4, narrow: int = 2) -> None:
        """Add a legend below the axes, in `columns` columns, or `narrow` on a phone."""
        # Letters for a label: about 104 fit into a row of the wide chart, 44 into one of the narrow chart.
        columns, longest = (narrow, 44 // narrow) if self.narrow else (columns, 104 // columns)
        self.figure.legend(
            list(handles),
            [label(one, longest) for one in labels],
            loc="outside lower center",
            ncols=max(min(len(labels), columns), 1),
            handletextpad=0.4,
            columnspacing=1.2,
        )


GROUP_ID = "tooltips-"


@dataclass(frozen=True)
class Chart:
    """A chart of a page; `draw` is called for each of its sizes."""

    title: str
    caption: str  # what is drawn, and how to read it; also the description for screen readers
    draw: Callable[[Canvas], None]  # must be deterministic
    height: float = 4.6  # of the wide chart, in inches
    narrow_height: float = 4.4  # in inches


def page_svg(chart: Chart, prefix: str, narrow: bool, titles: bool = True) -> str:
    """Render a chart as an <svg> element for HTML; its ids begin with `prefix`. `titles`: its points have tooltips."""
    drawn, canvas = _draw_chart(chart, narrow, transparent=True)
    return inline_svg(drawn, prefix, GROUP_ID, canvas.tooltips, for_html(chart.title), titles)


def standalone_svg(chart: Chart) -> str:
    """Render the wide chart as an SVG document, on white, with its title."""
    return _draw_chart(chart, narrow=False, transparent=False)[0]


def _draw_chart(chart: Chart, narrow: bool, transparent: bool) -> tuple[str, Canvas]:
    with rc_context(CHART_STYLE), warnings.catch_warnings():
        # Text stays text in the SVG: only the reader's fonts need the glyphs.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        size = (NARROW, chart.narrow_height) if narrow else (WIDE, chart.height)
        figure = Figure(figsize=size, layout="constrained")
        canvas = Canvas(figure, figure.add_subplot(), narrow)
        chart.draw(canvas)
        if not transparent:
            canvas.axes.set_title(label(chart.title, 100))
        if transparent:
            figure.set_facecolor("none")
            canvas.axes.set_facecolor("none")
        image = StringIO()
        svg = FigureCanvasSVG(figure)  # not Figure.savefig, which draws twice
        svg.print_svg(image, metadata={"Date": None})  # type: ignore[no-untyped-call]
    return for_xml(image.getvalue()), canvas


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
