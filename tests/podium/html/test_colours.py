"""Contrast and distinctness of the colours of pages and charts."""

import re
from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray

from podium.html.colours import BASE, SERIES, style_sheet

FOR_ALL_EYES = 8  # the first series, whose colours all readers can distinguish

# Linear RGB as seen with normal vision or without one kind of cones: Machado, Oliveira and Fernandes, 2009.
EYES = {
    "normal": np.eye(3),
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
}
# OKLab: Ottosson, 2020.
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


def linear(colour: str) -> NDArray[np.float64]:
    parts = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def contrast(first: str, second: str) -> float:
    """Contrast ratio as defined by WCAG 2."""
    low, high = sorted(float(linear(colour) @ [0.2126, 0.7152, 0.0722]) for colour in (first, second))
    return (high + 0.05) / (low + 0.05)


def to_oklab(colour: str, eyes: str) -> NDArray[np.float64]:
    light = np.clip(np.array(EYES[eyes]) @ linear(colour), 0, 1)
    return np.array(TO_LAB) @ np.cbrt(np.array(TO_CONES) @ light)


@pytest.mark.parametrize("ground", ["ground", "panel", "marked"])
@pytest.mark.parametrize("ink", ["ink", "quiet", "accent"])
def test_text_has_enough_contrast(ink: str, ground: str) -> None:
    for first, second in zip(BASE[ink], BASE[ground], strict=True):
        assert contrast(first, second) >= 4.5


def test_points_have_enough_contrast() -> None:
    for series in SERIES:
        for colour, ground in zip(series, BASE["ground"], strict=True):
            assert contrast(colour, ground) >= 3


@pytest.mark.parametrize("eyes", list(EYES))
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_series_colours_are_distinct(theme: str, eyes: str) -> None:
    colours = [getattr(series, theme) for series in (SERIES if eyes == "normal" else SERIES[:FOR_ALL_EYES])]
    distances = [np.linalg.norm(to_oklab(a, eyes) - to_oklab(b, eyes)) for a, b in combinations(colours, 2)]
    assert min(distances) > 0.1


def test_light_colours_are_unique() -> None:
    light = [colour.light for colour in SERIES]
    assert len(set(light)) == len(light)


def test_dark_colours_are_for_screens_only() -> None:
    light, dark = style_sheet().strip().split("\n")
    assert light.startswith(":root{") and "--ink:#1a2027;" in light
    assert dark.startswith("@media screen and (prefers-color-scheme: dark){:root{") and "--ink:#e6eaee;" in dark
    assert re.findall(r"--[\w-]+", light) == re.findall(r"--[\w-]+", dark)
