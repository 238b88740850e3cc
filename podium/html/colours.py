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
# Light colours have a chroma of at least 0.06, and their lightness has weight 0.75: dark points look alike.
SERIES: tuple[Colour, ...] = (
    Colour("#2b45e8", "#65a1f1"),
    Colour("#d3780f", "#ee936f"),
    Colour("#4f9b96", "#92fed0"),
    Colour("#af0a0b", "#996694"),
    Colour("#4a8dfa", "#72cfdb"),
    Colour("#5b0537", "#cc4734"),
    Colour("#535789", "#e6f121"),
    Colour("#2a0086", "#6a62eb"),
    Colour("#f521fe", "#ff3c97"),
    Colour("#06a707", "#ff08ff"),
    Colour("#ff0683", "#08d808"),
    Colour("#8810fc", "#b115cb"),
    Colour("#745717", "#e597ff"),
    Colour("#083a02", "#087d70"),
    Colour("#b979ac", "#ffd8f2"),
    Colour("#9f0090", "#8a9708"),
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
