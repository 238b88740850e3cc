"""Charts as SVG in a page and standalone, and the contrast and distinctness of colours."""

import re
import warnings
from collections.abc import Callable
from itertools import combinations
from xml.etree import ElementTree

import numpy as np
import pytest
from numpy.typing import NDArray

from podium.core.text import for_html
from podium.html.chart import (
    BASE,
    LINES,
    MARKERS,
    SERIES,
    Canvas,
    Chart,
    css_variables,
    page_svg,
    series_style,
    standalone_svg,
    style_sheet,
)
from podium.html.page import Section, render_page
from tests.podium.html.conftest import HOSTILE


def drawing(texts: tuple[str, ...] = ("first", "second", "third"), label: str = "series") -> Callable[[Canvas], None]:
    def draw(canvas: Canvas) -> None:
        (line,) = canvas.axes.plot([1, 2, 3], [1, 3, 2], **series_style(1))
        canvas.add_tooltips(line, texts)
        canvas.axes.fill_between([1, 3], [1, 1], [2, 2], color=SERIES[0].light, alpha=0.2)
        for row, bar in enumerate(canvas.axes.barh([1, 2], [1, 2])):
            canvas.add_tooltips(bar, [f"bar {row}"])
        canvas.axes.set_xlabel(label)
        canvas.axes.set_xticks([1, 2, 3], [label, "b", "c"])
        canvas.legend([line], [label])

    return draw


def chart(**changes: str) -> Chart:
    return Chart("Title", "Caption", drawing(**changes))  # type: ignore[arg-type]


def points(svg: str) -> list[tuple[str, str]]:
    root = ElementTree.fromstring(svg)
    titled = [element for element in root.iter() if "data-group" in element.attrib]
    return [(element.attrib["data-group"], "".join(element.itertext())) for element in titled]


def test_points_and_bars_have_tooltips() -> None:
    for narrow in (False, True):
        found = points(page_svg(chart(), "a", narrow))
        assert sorted(found) == [("0", "first"), ("0", "second"), ("0", "third"), ("1", "bar 0"), ("2", "bar 1")]


def test_the_narrow_chart_of_a_page_has_its_tooltips_once() -> None:
    """The script takes them from the wide chart, point by point."""
    html = render_page("Page", "", [Section("Section", [chart()])])
    wide, narrow = (points(svg) for svg in re.findall(r"<svg.*?</svg>", html, re.S))
    assert [group for group, _ in wide] == [group for group, _ in narrow] and len(wide) == 5
    assert all(text for _, text in wide) and not any(text for _, text in narrow)


def test_tooltips_are_in_the_order_of_the_points() -> None:
    root = ElementTree.fromstring(page_svg(chart(), "a", False))
    titled = [element for element in root.iter("use") if element.get("data-group") == "0"]
    across = [float(element.attrib["x"]) for element in titled]
    assert [element[0].text for element in titled] == ["first", "second", "third"]
    assert across == sorted(across) and len(set(across)) == 3


@pytest.mark.parametrize("texts", [("one", "two"), ("one", "two", "three", "four")])
def test_wrong_number_of_tooltips_is_an_error(texts: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="3 points are drawn"):
        page_svg(Chart("Title", "Caption", drawing(texts)), "a", False)


def test_non_finite_point_is_an_error() -> None:
    def draw(canvas: Canvas) -> None:
        (line,) = canvas.axes.plot([1, 2], [1, float("nan")], "o")
        canvas.add_tooltips(line, ["a", "b"])

    with pytest.raises(ValueError, match="not finite"):
        page_svg(Chart("Title", "Caption", draw), "a", False)


def test_colours_fonts_and_size_come_from_the_page() -> None:
    svg = page_svg(chart(), "a", False)
    assert not re.findall(r"#[0-9a-fA-F]{6}\b|font-family|<style|<metadata|xmlns|xlink", svg)
    assert {"var(--ink)", "var(--rule)", "var(--series-0)", "var(--series-1)"} <= set(re.findall(r"var\([^)]*\)", svg))
    root = ElementTree.fromstring(svg)
    assert "width" not in root.attrib and "height" not in root.attrib and "viewBox" in root.attrib
    assert root.get("aria-label") == "Title"


def test_ids_have_the_chart_s_prefix_and_are_referenced() -> None:
    first, second = page_svg(chart(), "q7", False), page_svg(chart(), "z9", False)
    ids = set(re.findall(r' id="([^"]*)"', first))
    referred = set(re.findall(r'href="#([^"]*)"', first)) | set(re.findall(r"url\(#([^)]*)\)", first))
    assert ids == referred and all(one.startswith("q7") for one in ids)
    assert first.replace("q7", "z9") == second


def test_output_is_deterministic() -> None:
    assert page_svg(chart(), "a", True) == page_svg(chart(), "a", True)
    assert standalone_svg(chart()) == standalone_svg(chart())
    assert page_svg(chart(), "a", True) != page_svg(chart(label="other"), "a", True)


def test_narrow_chart_for_phones() -> None:
    boxes = [ElementTree.fromstring(page_svg(chart(), "a", narrow)).attrib["viewBox"].split() for narrow in (0, 1)]
    wide, narrow = (float(box[2]) for box in boxes)
    assert narrow < 300 < wide


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_is_escaped(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = Chart(name, name, drawing((name, "b", "c"), for_html(name, 60)))
        svg, alone = page_svg(found, "a", True), standalone_svg(found)
    root = ElementTree.fromstring(svg)
    assert {element.tag for element in root.iter()} <= {
        "svg",
        "g",
        "path",
        "use",
        "defs",
        "text",
        "title",
        "clipPath",
        "rect",
    }
    assert ElementTree.fromstring(alone) is not None
    start = name.strip()[:8].split("\n")[0]
    if start.isascii() and start.isprintable():
        assert any(start in (text or "") for text in root.itertext())
        assert len([element for element in root.iter("text") if start in (element.text or "")]) >= 3 or not start


def test_standalone_chart_is_on_white_without_css_variables() -> None:
    svg = standalone_svg(chart())
    root = ElementTree.fromstring(svg)
    assert "var(" not in svg and SERIES[1].light in svg and BASE["ink"].light in svg
    ground = next(element for element in root.iter() if element.tag.endswith("path"))
    assert "fill: #ffffff" in ground.attrib["style"]
    assert any((element.text or "") == "Title" for element in root.iter())


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
    colours = [getattr(series, theme) for series in SERIES]
    distances = [np.linalg.norm(to_oklab(a, eyes) - to_oklab(b, eyes)) for a, b in combinations(colours, 2)]
    assert min(distances) > 0.1


def test_styles_of_88_series_differ() -> None:
    styles = {tuple(series_style(number).items()) for number in range(len(SERIES) * len(MARKERS))}
    assert len(styles) == len(SERIES) * len(MARKERS)
    assert [series_style(number)["linestyle"] for number in (0, 7, 8, 16, 500)] == ["-", "-", "--", ":", LINES[-1]]


def test_light_colours_are_unique() -> None:
    light = [colour.light for colour in css_variables().values()]
    assert len(set(light)) == len(light)


def test_dark_colours_are_for_screens_only() -> None:
    light, dark = style_sheet().strip().split("\n")
    assert light.startswith(":root{") and "--ink:#1a2027;" in light
    assert dark.startswith("@media screen and (prefers-color-scheme: dark){:root{") and "--ink:#e6eaee;" in dark
    assert re.findall(r"--[\w-]+", light) == re.findall(r"--[\w-]+", dark)
