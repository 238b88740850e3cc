"""The colours of pages and charts, on light and on dark, told apart by those who do not see all of them.

A chart is drawn in the light ones; in a page each becomes a CSS variable, which has another value on dark.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


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
    Colour("#1f5fbf", "#6ea8ff"),
    Colour("#c2570c", "#ff9a4d"),
    Colour("#00795e", "#2fc79f"),
    Colour("#b5338a", "#ff85cf"),
    Colour("#0e7fa3", "#5fd4f5"),
    Colour("#c5232f", "#ff7b7b"),
    Colour("#8a7400", "#d9c03a"),
    Colour("#5b4fc4", "#a99cff"),
)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h")
"""So many that colour and marker together tell 88 series apart."""


def series_style(number: int) -> dict[str, str]:
    """Colour and marker of a series, as matplotlib's keywords."""
    return {"color": SERIES[number % len(SERIES)].light, "marker": MARKERS[number % len(MARKERS)]}


def variables() -> Mapping[str, Colour]:
    """Each colour by its CSS variable's name."""
    return {**BASE, **{f"series-{number}": colour for number, colour in enumerate(SERIES)}}


def style_sheet() -> str:
    """The variables as CSS: light, and dark on screens of those who prefer it; paper is always light."""
    light = "".join(f"--{name}:{colour.light};" for name, colour in variables().items())
    dark = "".join(f"--{name}:{colour.dark};" for name, colour in variables().items())
    return f":root{{{light}}}\n@media screen and (prefers-color-scheme: dark){{:root{{{dark}}}}}\n"
