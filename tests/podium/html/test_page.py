"""Content of a page, and escaping of untrusted text."""

import hashlib
import re
from base64 import b64encode
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from podium.core.errors import UsageError, WorkError
from podium.html.page import Facts, Points, Section, Text, render_page, write_page
from podium.html.plotly import Chart, Facet, Filters
from podium.html.table import DETAIL, ESSENTIAL, Table, number, text
from tests.podium.html.conftest import HOSTILE, Parsed, assert_only_page_content, charts_of, data_of


def chart(name: str = "SYS") -> Chart:
    trace = {"type": "scatter", "x": [1, 2], "y": [3, 4], "series": name, "records": [0, 1]}
    return Chart(f"Chart {name}", f"Caption {name}", f"Summary {name}", [trace], {}, {})


def table(name: str = "SYS") -> Table:
    columns = (text(f"System {name}", name), text("Round"), number("Score (min)", 2))
    rows = [(name, "v2.0", 2.5), ("other", name, None)]
    return Table(f"Table {name}", columns, rows, f"Caption {name}", [1], [0, 1])


def make(name: str = "SYS") -> str:
    charts = [chart(name), chart(name)]
    parts = (table(name), *charts, Text([name]), Facts([(name, name)]), Points([name, "b"]))
    filters = Filters([Facet("Round", ["v2.0", name], key="round")], [name, "other"], [name, name], "Search")
    return render_page(f"Page {name}", name, [Section(name, parts), Section("Second", [table(name)])], [name], filters)


@pytest.fixture(scope="module")
def html() -> str:
    """The page of most tests."""
    return make()


def test_page_is_complete_and_properly_nested(html: str) -> None:
    parsed = Parsed(html)
    assert parsed.texts_in("title")[0] == "Page SYS"
    assert parsed.texts_in("h2") == ["SYS", "Second"]
    assert len(parsed.all("table")) == 2 and len(parsed.all("figure")) == len(data_of(html)["charts"]) == 2
    assert html.startswith("<!DOCTYPE html>\n")


def test_ids_are_unique_and_references_resolve(html: str) -> None:
    parsed = Parsed(html)
    ids = Counter(attributes["id"] for _, attributes in parsed.elements if "id" in attributes)
    assert set(ids.values()) == {1}
    for _, attributes in parsed.elements:
        for name in ("aria-labelledby", "aria-describedby"):
            if name in attributes:
                assert attributes[name] in ids
        link = attributes.get("href") or ""
        assert not link.startswith("#") or link[1:] in ids


def test_content_security_policy_allows_only_its_style_and_script(html: str) -> None:
    policy = next(one["content"] for one in Parsed(html).all("meta") if "http-equiv" in one)
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'" and rules["img-src"] == "data:" and rules["form-action"] == "'none'"
    for name, tag in (("script-src", "<script>"), ("style-src-elem", '<style id="plotly.js-style-global">')):
        contents = re.findall(rf"{tag}(.*?)</{tag[1:].split()[0].rstrip('>')}>", html, re.DOTALL)
        digests = [b64encode(hashlib.sha256(content.encode()).digest()).decode() for content in contents]
        assert rules[name] == " ".join(f"'sha256-{digest}'" for digest in digests) and digests
    assert "unsafe-eval" not in policy and "unsafe-inline" not in rules["script-src"]


def test_page_loads_nothing(html: str) -> None:
    assert_only_page_content(Parsed(html))
    scripts = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    for part in (html.replace(scripts[0], "").replace("http://www.w3.org/2000/svg", ""), html.split("<script")[0]):
        assert not re.findall(r"https?:|//\w+\.|@import", re.sub(r"(?m)^\s*// .*$", "", part))


def test_hostile_text_is_escaped() -> None:
    def sections(names: Sequence[str]) -> list[Section]:
        return [
            Section(name, [table(name), Text([name]), Facts([(name, name)]), Points([name, "b"])]) for name in names
        ]

    def named(names: Sequence[str]) -> str:
        charts = [chart(name) for name in names[:4]]
        return render_page(f"Page {names[0]}", names[1], [*sections(names), Section("Charts", charts)], names)

    html = named(HOSTILE)
    harmless, hostile = Parsed(named([f"name {number}" for number in range(len(HOSTILE))])), Parsed(html)
    assert_only_page_content(hostile)
    assert [tag for tag, _ in hostile.elements] == [tag for tag, _ in harmless.elements]
    # Cells of long names have their start as a title.
    found, expected = ([set(attributes) - {"title"} for _, attributes in one.elements] for one in (hostile, harmless))
    assert found == expected
    assert not re.findall(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", html)
    assert len(html) < 1_600_000, "long names are cut"


def test_name_with_markup_is_shown_literally() -> None:
    html = render_page("Page", "", [Section("Section", [Facts([("name", "<b>&amp;</b>")])])])
    assert Parsed(html).texts_in("dd") == ["<b>&amp;</b>"]


def test_cells_have_sort_keys() -> None:
    html = render_page("Page", "", [Section("Section", [table()])])
    cells = [one for tag, one in Parsed(html).elements if tag in ("td", "th")]
    assert [cell.get("data-key") for cell in cells] == [None, None, None, None, None, "2.5", None, None, None]
    assert [cell.get("scope") for cell in cells] == ["col"] * 3 + ["row", None, None] * 2
    rows = Parsed(html).all("tr")
    assert [row.get("class") for row in rows] == [None, None, "marked"]
    assert [row.get("data-r") for row in rows] == [None, "0", "1"]


def test_columns_have_descriptions() -> None:
    html = render_page("Page", "", [Section("Section", [table()])])
    assert "<li><b>System SYS</b>: SYS</li>" in html
    plain = Table("Table", [text("System")], [["a"]])
    assert "<details>" not in render_page("Page", "", [Section("Section", [plain])])


def test_columns_are_hidden_where_there_is_no_room() -> None:
    columns = (text("System"), text("Round"), number("Score", priority=ESSENTIAL), number("GBS", priority=DETAIL))
    parts = [Table("Table", columns, [["a", "b", 1, 2]]), Table("Table", columns[:3], [["a", "b", 1]])]
    html = render_page("Page", "", [Section("Section", parts)])
    assert [one.get("data-hides") for one in Parsed(html).all("table")] == ["details", "phone"]
    assert "@media screen and (max-width: 42rem){#s1p1 .brief tr>:nth-child(2){display:none}}" in html
    assert "@media screen{#s1p1 .brief tr>:nth-child(4){display:none}}" in html
    assert Table("Table", columns[:2], [["a", "b"]]).hides == "", "without an essential column, all are shown"
    assert ".brief tr>:nth-child(3)" not in html and ".brief tr>:nth-child(1)" not in html


def test_a_chart_has_its_caption_and_its_values_in_words(html: str) -> None:
    parsed = Parsed(html)
    assert parsed.texts_in("figcaption") == ["Caption SYS"] * 2
    assert "Summary SYS" in parsed.texts_in("p") and "The chart needs JavaScript. Summary SYS" in parsed.texts_in("p")
    assert charts_of(html)["Chart SYS"]["traces"][0]["records"] == [0, 1]


def test_a_page_without_charts_has_no_plotly() -> None:
    assert len(render_page("Page", "", [Section("Section", [table()])])) < 50_000


def test_output_is_deterministic(html: str) -> None:
    assert make() == html


def test_page_without_sections() -> None:
    parsed = Parsed(render_page("Page", "Nothing.", []))
    assert parsed.texts_in("p") == ["Nothing."] and not parsed.all("nav") and not parsed.all("footer")


@pytest.mark.parametrize("content", [b":::MLLOG {}\n", b"<html>", b"\xff", b"<!doctype html><p>mine"])
def test_only_a_page_is_overwritten(tmp_path: Path, html: str, content: bytes) -> None:
    path = tmp_path / "result_0.txt"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="exists and is not a page of Podium"):
        write_page(path, html)
    assert path.read_bytes() == content
    for replaced in (b"", render_page("Older", "", []).encode()):
        path.write_bytes(replaced)
        write_page(path, html)
        assert path.read_text(encoding="utf-8") == html


def test_page_is_written_or_an_error_is_raised(tmp_path: Path, html: str) -> None:
    write_page(tmp_path / "page.html", html)
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == html
    with pytest.raises(WorkError, match="nowhere"):
        write_page(tmp_path / "nowhere" / "page.html", html)
