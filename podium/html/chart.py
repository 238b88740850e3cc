"""Charts by matplotlib as SVG, for HTML pages and as separate files; the same numbers give the same bytes.

- In a page, a chart takes the page's colours, fonts and ids, and its points have tooltips.
- The colours of pages and charts, light and dark, can be distinguished by colour-blind readers. A chart is drawn in
  the light ones; in a page each becomes a CSS variable, which has another value in dark mode.
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
    light: str
    dark: str


# By what they are for. Ink, quiet and accent are read on ground, panel and marked.
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

# Searched for: among colours of a contrast of 3.2 and more to the ground those whose nearest two lie farthest apart in
# OKLab, as normal, protan and deutan eyes see them (Machado et al. 2009).
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
# So many that colour and marker together tell 88 series apart.
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h")
# Of the first series of each colour, of the second, and of others.
LINES = ("-", "--", ":")


def series_style(number: int) -> dict[str, Any]:
    """matplotlib's keywords by which a series is told from all others."""
    return {
        "color": SERIES[number % len(SERIES)].light,
        "marker": MARKERS[number % len(MARKERS)],
        "linestyle": LINES[min(number // len(SERIES), len(LINES) - 1)],
    }


@cache
def variables() -> Mapping[str, Colour]:
    """Each colour by its CSS variable's name."""
    return {**BASE, **{f"series-{number}": colour for number, colour in enumerate(SERIES)}}


def style_sheet() -> str:
    """The variables as CSS: light, and dark on screens of those who prefer it; paper is always light."""
    light = "".join(f"--{name}:{colour.light};" for name, colour in variables().items())
    dark = "".join(f"--{name}:{colour.dark};" for name, colour in variables().items())
    return f":root{{{light}}}\n@media screen and (prefers-color-scheme: dark){{:root{{{dark}}}}}\n"


LINK = "{http://www.w3.org/1999/xlink}href"
_LONG_NUMBER = re.compile(r"-?\d+\.\d{3,}")
_COLOUR = re.compile(r"#[0-9a-f]{6}\b")
_FONT_FAMILY = re.compile(r"font-family:[^;]*;?\s*")
_FONT = re.compile(r"font: (?:[a-z0-9]+ )*?([\d.]+px) [^;]*")
_REFERENCE = re.compile(r"url\(#([^)]*)\)")


def inlined(svg: str, prefix: str, group: str, told: Sequence[Sequence[str]], label: str) -> str:
    """An SVG document as an element of an HTML page.

    Ids become `prefix` and a number, and those that nothing refers to go. The points of the element with the id
    `group` + n get what `told[n]` says as their <title>, and the attribute data-group. ValueError where the numbers of
    points do not agree.
    """
    root = ElementTree.fromstring(svg)  # noqa: S314 — matplotlib has just written it
    for parent in list(root.iter()):
        for child in list(parent):
            if _local(child.tag) in ("metadata", "style"):
                parent.remove(child)
    for number, texts in enumerate(told):
        _tell(root, f"{group}{number}", number, texts)
    for element in root.iter():
        _plain(element)
    _rename(root, prefix)
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.set("role", "group")
    root.set("aria-label", label)
    return ElementTree.tostring(root, encoding="unicode")


def _tell(root: Element, identity: str, number: int, texts: Sequence[str]) -> None:
    holder = next((element for element in root.iter() if element.get("id") == identity), None)
    found = [] if holder is None else [one for one in holder.iter() if _local(one.tag) == "use"]
    if holder is not None and not found:
        found = [one for one in holder if _local(one.tag) == "path"]
    if len(found) != len(texts):
        raise ValueError(f"{len(texts)} points tell something and {len(found)} are drawn: one is not finite or outside")
    for point, text in zip(found, texts, strict=True):
        point.set("data-group", str(number))
        ElementTree.SubElement(point, "title").text = text


def _plain(element: Element) -> None:
    """Without namespaces, long decimals and fonts; colours as variables; one style for points that look the same."""
    element.tag = _local(element.tag)
    if element.tag != "title":
        element.text = element.text if element.tag in ("text", "tspan") else None
    element.tail = None
    if LINK in element.attrib:
        element.set("href", element.attrib.pop(LINK))
    for name in ("d", "x", "y", "transform", "points"):
        if name in element.attrib:
            element.set(name, _LONG_NUMBER.sub(_shortened, element.attrib[name]).replace(" \n", "").replace("\n", ""))
    if "style" in element.attrib:
        element.set("style", _page_style(element.attrib["style"]))
    elif len(element) > 1 and all(_local(child.tag) == "use" for child in element):
        styles = {child.get("style", "") for child in element}
        if len(styles) == 1:
            element.set("style", _page_style(styles.pop()))
            for child in element:
                child.attrib.pop("style", None)


def _page_style(style: str) -> str:
    style = _FONT.sub(r"font-size: \1", _FONT_FAMILY.sub("", style))
    names = {colour.light: f"var(--{name})" for name, colour in variables().items()}
    return _COLOUR.sub(lambda found: names.get(found.group(), found.group()), style)


def _shortened(number: re.Match[str]) -> str:
    return f"{float(number.group()):.2f}".rstrip("0").rstrip(".")


def _rename(root: Element, prefix: str) -> None:
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


def _local(tag: str) -> str:
    return tag.rpartition("}")[2]


STYLE: dict[Any, Any] = {"svg.hashsalt": "podium", "svg.fonttype": "none", "text.parse_math": False, "font.size": 10.0}


@contextmanager
def picture(path: Path, width: float, height: float) -> Iterator[Axes]:
    """Axes to draw on, in inches; the file is written at the end. Raises WorkError if it cannot be."""
    with rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure.add_subplot()
        image = BytesIO()
        figure.savefig(image, format="svg", metadata={"Date": None})
    write_atomically(path, image.getvalue())


# Inches: a page shows the wide chart, or the narrow one on a phone, so that letters are never scaled down.
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
    """What a chart is drawn on.

    Text from outside that is put on the axes, such as a tick's label, is made by `podium.core.text.label`: matplotlib
    raises an error for some characters, and has no room for long texts. `tell` and `legend` see to that themselves.
    """

    figure: Figure
    axes: Axes
    narrow: bool  # on a phone: shorter labels, fewer ticks, a legend of one column
    # What the points of each group tell; the group of number n has the id GROUP + n.
    told: list[tuple[str, ...]] = field(default_factory=list)

    def tell(self, artist: Artist, texts: Sequence[str]) -> None:
        """What each point of a line with markers, or a patch such as a bar, says to who points at it.

        A text is of one or more lines, the first being what the point is called. Points must be finite, and inside of
        the axes.
        """
        artist.set_gid(f"{GROUP}{len(self.told)}")
        self.told.append(tuple(for_html(text) for text in texts))

    def rows(self, labels: Sequence[str]) -> None:
        """Make the y axis a row for each bar, the first on top, with these labels."""
        self.axes.set_yticks(range(len(labels)), labels)
        self.axes.set_ylim(len(labels) - 0.4, -0.6)
        self.axes.grid(False, axis="y")

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
    title: str
    caption: str  # what is drawn, and how to read it; said to those who do not see the chart too
    draw: Callable[[Canvas], None]  # is called for each size. What it draws must follow from its numbers alone
    height: float = 4.6  # in inches, of the wide one
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
        if transparent:
            figure.set_facecolor("none")
            canvas.axes.set_facecolor("none")
        image = StringIO()
        svg = FigureCanvasSVG(figure)  # Figure.savefig would draw twice
        svg.print_svg(image, metadata={"Date": None})  # type: ignore[no-untyped-call]
    return for_xml(image.getvalue()), canvas


BIN = 8  # lengths a step of the curves
OWN, WIKIPEDIA = "store", "wikipedia"  # the curves' ids in the SVG


def plot_lengths(lengths: NDArray[np.int64], name: str, path: Path) -> None:
    """Draw samples by length, [longest + 1], as shares beside Wikipedia's. WorkError if the file cannot be written."""
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
    edges = np.arange(0.5, len(histogram) + BIN - 0.5, BIN)
    samples, _ = np.histogram(np.arange(len(histogram)), edges, weights=histogram)
    return 100 * samples / float(histogram.sum()), edges
