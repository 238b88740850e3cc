"""Colours can be read on light and dark, and told apart."""

import re
from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray

from podium.page.colours import BASE, LINES, MARKERS, SERIES, series_style, style_sheet, variables

EYES = {
    "normal": np.eye(3),
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
}
"""Linear RGB as seen by eyes that lack nothing, or one kind of cones: Machado, Oliveira and Fernandes, 2009."""
TO_CONES = [
    [0.4122214708, 0.5363325363, 0.0514459929],
    [0.2119034982, 0.6806995451, 0.1073969566],
    [0.0883024619, 0.2817188376, 0.6299787005],
]
TO_LAB = [
    [0.2104542553, 0.793617785, -0.0040720468],
    [1.9779984951, -2.428592205, 0.4505937099],
    [0.0259040371, 0.7827717662, -0.808675766],
]
"""OKLab: Ottosson, 2020."""


def linear(colour: str) -> NDArray[np.float64]:
    parts = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def contrast(first: str, second: str) -> float:
    """As WCAG 2 defines it."""
    low, high = sorted(float(linear(colour) @ [0.2126, 0.7152, 0.0722]) for colour in (first, second))
    return (high + 0.05) / (low + 0.05)


def seen(colour: str, eyes: str) -> NDArray[np.float64]:
    light = np.clip(np.array(EYES[eyes]) @ linear(colour), 0, 1)
    return np.array(TO_LAB) @ np.cbrt(np.array(TO_CONES) @ light)


@pytest.mark.parametrize("ground", ["ground", "panel", "marked"])
@pytest.mark.parametrize("ink", ["ink", "quiet", "accent"])
def test_text_can_be_read(ink: str, ground: str) -> None:
    for first, second in zip(BASE[ink], BASE[ground], strict=True):
        assert contrast(first, second) >= 4.5


def test_points_can_be_seen() -> None:
    for series in SERIES:
        for colour, ground in zip(series, BASE["ground"], strict=True):
            assert contrast(colour, ground) >= 3


@pytest.mark.parametrize("eyes", list(EYES))
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_series_are_told_apart(theme: str, eyes: str) -> None:
    colours = [getattr(series, theme) for series in SERIES]
    distances = [np.linalg.norm(seen(a, eyes) - seen(b, eyes)) for a, b in combinations(colours, 2)]
    assert min(distances) > 0.1


def test_no_two_of_many_series_look_the_same() -> None:
    styles = {tuple(series_style(number).items()) for number in range(len(SERIES) * len(MARKERS))}
    assert len(styles) == len(SERIES) * len(MARKERS)
    assert [series_style(number)["linestyle"] for number in (0, 7, 8, 16, 500)] == ["-", "-", "--", ":", LINES[-1]]


def test_no_colour_stands_for_two_variables() -> None:
    light = [colour.light for colour in variables().values()]
    assert len(set(light)) == len(light)


def test_dark_is_for_screens_alone() -> None:
    light, dark = style_sheet().strip().split("\n")
    assert light.startswith(":root{") and "--ink:#1a2027;" in light
    assert dark.startswith("@media screen and (prefers-color-scheme: dark){:root{") and "--ink:#e6eaee;" in dark
    assert re.findall(r"--[\w-]+", light) == re.findall(r"--[\w-]+", dark)
