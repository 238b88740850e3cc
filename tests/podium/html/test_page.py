"""Content of a page, and escaping of untrusted text."""

import hashlib
import re
from base64 import b64encode
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from podium.core.errors import UsageError, WorkError
from podium.html.chart import Canvas, Chart
from podium.html.page import Facts, Points, Section, Text, render_page, write_page
from podium.html.table import Table, number, text
from tests.podium.html.conftest import HOSTILE, Parsed, assert_only_page_content


def draw(canvas: Canvas) -> None:
    (line,) = canvas.axes.plot([1, 2], [3, 4], "o")
    canvas.add_tooltips(line, ["a point", "another"])


def table(name: str = "SYS") -> Table:
    columns = (text(f"System {name}", name), text("Round", choices=True), number("Score (min)", 2))
    return Table(f"Table {name}", columns, [(name, "v2.0", 2.5), ("other", name, None)], f"Caption {name}", [1])


def make(name: str = "SYS") -> str:
    charts = [Chart(f"Chart {name}", f"Caption {name}", draw) for _ in range(2)]
    parts = (table(name), *charts, Text([name]), Facts([(name, name)]), Points([name, "b"]))
    return render_page(f"Page {name}", name, [Section(name, parts), Section("Second", [table(name)])], [name])


@pytest.fixture(scope="module")
def html() -> str:
    """The page of most tests."""
    return make()


def test_page_is_complete_and_properly_nested(html: str) -> None:
    parsed = Parsed(html)
    assert parsed.texts_in("title")[0] == "Page SYS"
    assert parsed.texts_in("h2") == ["SYS", "Second"]
    assert len(parsed.all("table")) == 2 and len(parsed.all("svg")) == 4
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
    for name, tag in (("script-src", "script"), ("style-src-elem", "style")):
        content = re.search(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        assert content is not None
        assert rules[name] == f"'sha256-{b64encode(hashlib.sha256(content[1].encode()).digest()).decode()}'"


def test_page_loads_nothing(html: str) -> None:
    assert_only_page_content(Parsed(html))
    assert not re.findall(r"https?:|//\w+\.|@import", re.sub(r"(?m)^\s*// .*$", "", html))


def test_hostile_text_is_escaped() -> None:
    def sections(names: Sequence[str]) -> list[Section]:
        return [
            Section(name, [table(name), Text([name]), Facts([(name, name)]), Points([name, "b"])]) for name in names
        ]

    def named(names: Sequence[str]) -> str:
        charts = [Chart(f"Chart {name}", f"Caption {name}", draw) for name in names[:4]]
        return render_page(f"Page {names[0]}", names[1], [*sections(names), Section("Charts", charts)], names)

    html = named(HOSTILE)
    harmless, hostile = Parsed(named([f"name {number}" for number in range(len(HOSTILE))])), Parsed(html)
    assert_only_page_content(hostile)
    assert [tag for tag, _ in hostile.elements] == [tag for tag, _ in harmless.elements]
    assert [set(attributes) for _, attributes in hostile.elements] == [set(a) for _, a in harmless.elements]
    assert not re.findall(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", html)
    assert len(html) < 300_000, "long names are cut"


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
    assert ["data-choices" in cell for cell in cells[:3]] == [False, True, False]


def test_columns_have_descriptions() -> None:
    html = render_page("Page", "", [Section("Section", [table()])])
    assert "<li><b>System SYS</b>: SYS</li>" in html
    plain = Table("Table", [text("System")], [["a"]])
    assert "<details>" not in render_page("Page", "", [Section("Section", [plain])])


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
