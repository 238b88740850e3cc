"""Helpers for tests of pages: hostile names, an HTML parser, and stand-ins for charts."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from html import escape
from html.parser import HTMLParser

import pytest
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from podium.html.chart import GROUP_ID, Canvas, Chart
from podium.html.page import _chart_svg, _environment

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</script><script>alert(1)</script>",
    "</style><svg onload=alert(1)>",
    "</title></svg><script>alert(1)</script>",
    "]]><![CDATA[<b>",
    "<!--",
    "{{ 7 * 7 }}{% raw %}",
    "' onmouseover='alert(1)",
    "javascript:alert(1)",
    "&lt;script&gt;",
    "$\\frac{1}{0}$ %s {0}",
    "_hidden",
    "\u202egnp.exe\u2066\u200f",
    "\x00\x07\x1b[31m\x9b\ud800\ufffe",
    "a\nb\rc\u2028d",
    "x" * 5000,
    "   ",
)
VOID = frozenset(("meta", "link", "img", "input", "br", "hr"))


class Parsed(HTMLParser):
    """The elements, attributes and texts of a page. Raises AssertionError if elements are not nested properly."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []  # innermost element and text
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert not self._open, f"{self._open} are not closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"</{tag}> closes nothing"
        assert self._open[-1] == tag, f"</{tag}> inside of {self._open}"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        if self._open:
            self.texts.append((self._open[-1], data))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def texts_in(self, tag: str) -> list[str]:
        return [text for name, text in self.texts if name == tag]


def assert_only_page_content(parsed: Parsed) -> None:
    """Check that the page has no content that runs, loads or sends data, except its one script and style."""
    assert len(parsed.all("script")) == 1 and len(parsed.all("style")) == 1
    allowed = {"href": ("#", "data:,")}
    for tag, attributes in parsed.elements:
        assert tag not in ("img", "iframe", "object", "embed", "form", "base", "a:href", "foreignobject", "image"), tag
        for name, value in attributes.items():
            assert not name.startswith("on"), f"{tag} {name}"
            assert name not in ("src", "action", "srcdoc", "formaction", "xlink:href"), f"{tag} {name}"
            if name in allowed:
                assert (value or "").startswith(allowed[name]), f"{tag} {name}={value}"
            if name == "style":
                assert "url(" not in (value or "").replace("url(#", "")


def sketch(chart: Chart, prefix: str, narrow: bool) -> str:
    """Stand-in for `page_svg`: the tooltips and legend of a chart without its graphics.

    The chart is drawn on real axes, and each point is checked to be within them, as `page_svg` does. It omits
    matplotlib's layout and SVG output, which take nearly all of a page's time.
    """
    figure = Figure()
    canvas = Canvas(figure, figure.add_subplot(), narrow)
    chart.draw(canvas)
    canvas.axes.get_ylim()  # autoscales
    artists = {artist.get_gid(): artist for artist in canvas.axes.get_children()}
    for number, texts in enumerate(canvas.tooltips):
        artist = artists[f"{GROUP_ID}{number}"]
        if isinstance(artist, Line2D):
            points = artist.get_transform().transform(artist.get_xydata())
            (left, low), (right, high) = canvas.axes.bbox.padded(1).get_points()
            inside = (points >= (left, low)).all() and (points <= (right, high)).all()
            assert len(points) == len(texts) and inside, f"{chart.title}: {artist.get_label()}"
        else:
            assert len(texts) == 1, chart.title
    labels = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    texts = [] if narrow else [text for texts in canvas.tooltips for text in texts]  # as in a page
    inner = "".join(f"<title>{escape(text)}</title>" for text in texts)
    inner += "".join(f"<text>{escape(text)}</text>" for text in labels)
    return f'<svg aria-label="{escape(chart.title)}">{inner}</svg>'


@contextmanager
def sketch_charts(drawn: Collection[str] = ()) -> Iterator[None]:
    """Replace the charts of pages by sketches, except for charts with these titles."""

    def svg(chart: Chart, prefix: str, narrow: bool) -> str:
        return (_chart_svg if chart.title in drawn else sketch)(chart, prefix, narrow)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(_environment().globals, "chart_svg", svg)
        yield
