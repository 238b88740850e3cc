"""Data of charts in a page, and the bundled Plotly."""

import hashlib
import json
import re

import pytest

from podium.core.paths import package_file
from podium.html.colours import SERIES
from podium.html.plotly import (
    DASHES,
    MARKERS,
    Chart,
    Facet,
    Filters,
    band,
    chart_text,
    colour,
    page_data,
    series_style,
)
from tests.podium.html.conftest import HOSTILE


def chart(**changes: object) -> Chart:
    trace = {"type": "scatter", "x": [1, 2.123456789], "y": [float("nan"), 3e30], "series": "a"}
    fields = {"traces": [trace], "x": {"title": "x"}, "y": {}, **changes}
    return Chart("Title", "Caption", "Summary", **fields)  # type: ignore[arg-type]


def test_numbers_are_rounded_and_non_finite_ones_are_gaps() -> None:
    (trace,) = json.loads(page_data({"s1p1": chart()}, None))["charts"]["s1p1"]["traces"]
    assert trace["x"] == [1, 2.12346] and trace["y"] == [None, 3e30]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_neither_ends_the_element_nor_is_markup_of_plotly(name: str) -> None:
    filters = Filters([Facet("Name", [name, None], key="name")], [name, ""], [chart_text(name), ""], "Search")
    text = page_data({"s1p1": chart(labels=[name], kind="bars")}, filters)
    assert not set("<>&") & set(text)
    data = json.loads(text)
    for shown in (data["charts"]["s1p1"]["labels"][0].replace("<br>", ""), data["filters"]["tooltips"][0]):
        assert "<" not in shown and ">" not in shown and "\n" not in shown
        assert not re.search(r"&(?!(amp|lt|gt);)", shown)
    assert data["filters"]["facets"][0]["of"] == [0, -1]


def test_lines_are_joined_by_breaks() -> None:
    assert chart_text("a <b>", "R&D") == "a &lt;b&gt;<br>R&amp;D"


def test_values_of_a_facet_are_sorted_numbers_or_texts() -> None:
    filters = Filters(
        [Facet("Number", [1024, 8, None, 8], 8, "number"), Facet("Name", ["b", "A", "b", "a"], key="name")],
        ["", "", "", ""],
        [],
        "Search",
    )
    number, name = json.loads(page_data({}, filters))["filters"]["facets"]
    assert number["values"] == ["8", "1,024"] and number["of"] == [1, 0, -1, 0] and number["initial"] == 0
    assert name["values"] in (["A", "a", "b"], ["a", "A", "b"]) and name["initial"] is None


def test_styles_of_many_series_differ() -> None:
    count = len(SERIES) * len(MARKERS)
    styles = {json.dumps(series_style(number)) for number in range(count)}
    assert len(styles) == count
    assert len({series_style(number)["marker"]["color"] for number in range(len(SERIES))}) == len(SERIES)
    assert [series_style(number)["line"]["dash"] for number in (0, 15, 16, 32, 500)] == [
        "solid",
        "solid",
        "dash",
        "dot",
        DASHES[-1],
    ]


def test_colours_are_names_of_the_palette() -> None:
    assert colour("series-3", 0.5) == "@series-3/0.5"
    with pytest.raises(KeyError):
        colour("mauve")


def test_band_lies_between_two_curves() -> None:
    drawn = band([1, 2], [3, 4], [5, 6], "quiet")
    assert drawn["x"] == [1, 2, 2, 1] and drawn["y"] == [5, 6, 4, 3]


def test_the_bundled_plotly_is_the_one_that_its_record_names() -> None:
    script = package_file("podium.html", "vendor/plotly-basic.min.js").read_bytes()
    record = package_file("podium.html", "vendor/README.md").read_text(encoding="utf-8")
    assert hashlib.sha256(script).hexdigest() in record
    version = re.search(rb"plotly\.js \(basic - minified\) v([\d.]+)", script)
    assert version is not None and f"version {version[1].decode()} " in record
    assert b"</script" not in script.lower() and not re.search(rb"\bnew Function\b|[^\w.]eval\(", script)
    assert "MIT License" in package_file("podium.html", "vendor/LICENSE").read_text(encoding="utf-8")
