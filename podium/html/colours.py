"""Colours of pages and their charts, light and dark, which colour-blind readers can distinguish."""

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import NamedTuple


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

# Found by search among colours with a contrast of at least 3.2 to the ground. The first eight maximise the least
# distance of two in OKLab as seen with normal, protan and deutan vision (Machado et al. 2009); the others the least
# distance to these and to one another with normal vision: colour-blind readers need the marker of a series as well.
SERIES: tuple[Colour, ...] = (
    Colour("#4068dd", "#65a1f1"),
    Colour("#b97f1d", "#ee936f"),
    Colour("#3c9e93", "#92fed0"),
    Colour("#5d0254", "#996694"),
    Colour("#127493", "#72cfdb"),
    Colour("#6e2019", "#cc4734"),
    Colour("#7c5f05", "#e6f121"),
    Colour("#611d9a", "#6a62eb"),
    Colour("#d80849", "#ff3c97"),
    Colour("#ff08d8", "#ff08ff"),
    Colour("#083c08", "#08d808"),
    Colour("#a408ff", "#b115cb"),
    Colour("#b17dbe", "#e597ff"),
    Colour("#080870", "#087d70"),
    Colour("#0808d8", "#ffd8f2"),
    Colour("#080808", "#8a9708"),
)


@cache
def named_colours() -> Mapping[str, Colour]:
    """Colours by name, which is also that of a CSS variable."""
    return {**BASE, **{f"series-{number}": colour for number, colour in enumerate(SERIES)}}


def style_sheet() -> str:
    """Return CSS that defines the variables: light, and dark for prefers-color-scheme; print is always light."""
    light = "".join(f"--{name}:{colour.light};" for name, colour in named_colours().items())
    dark = "".join(f"--{name}:{colour.dark};" for name, colour in named_colours().items())
    return f":root{{{light}}}\n@media screen and (prefers-color-scheme: dark){{:root{{{dark}}}}}\n"
