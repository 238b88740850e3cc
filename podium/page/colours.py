"""The colours of pages and charts, on light and on dark, told apart by those who do not see all of them.

A chart is drawn in the light ones; in a page each becomes a CSS variable, which has another value on dark.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple, TypedDict


class Colour(NamedTuple):
    light: str
    dark: str


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
"""By what they are for. Ink, quiet and accent are read on ground, panel and marked."""

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
"""Searched for: among colours of a contrast of 3.2 and more to the ground those whose nearest two lie farthest apart in
OKLab, as normal, protan and deutan eyes see them (Machado et al. 2009)."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h")
"""So many that colour and marker together tell 88 series apart."""
LINES: tuple[Literal["-", "--", ":"], ...] = ("-", "--", ":")
"""Of the first series of each colour, of the second, and of others."""


class Style(TypedDict):
    """matplotlib's keywords."""

    color: str
    marker: str
    linestyle: Literal["-", "--", ":"]


def series_style(number: int) -> Style:
    """By which a series is told from all others."""
    return {
        "color": SERIES[number % len(SERIES)].light,
        "marker": MARKERS[number % len(MARKERS)],
        "linestyle": LINES[min(number // len(SERIES), len(LINES) - 1)],
    }


def variables() -> Mapping[str, Colour]:
    """Each colour by its CSS variable's name."""
    return {**BASE, **{f"series-{number}": colour for number, colour in enumerate(SERIES)}}


def style_sheet() -> str:
    """The variables as CSS: light, and dark on screens of those who prefer it; paper is always light."""
    light = "".join(f"--{name}:{colour.light};" for name, colour in variables().items())
    dark = "".join(f"--{name}:{colour.dark};" for name, colour in variables().items())
    return f":root{{{light}}}\n@media screen and (prefers-color-scheme: dark){{:root{{{dark}}}}}\n"
