"""Helpers for tests of pages: hostile names, an HTML parser, and the data of charts."""

import json
import re
from html import unescape
from html.parser import HTMLParser
from typing import Any

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</script><script>alert(1)</script>",
    "</style><svg onload=alert(1)>",
    "</title></svg><script>alert(1)</script>",
    "]]><![CDATA[<b>",
    "<!--",
    "{{ 7 * 7 }}{% raw %}",
    "' onmouseover='alert(1)",
    "javascript:alert(1)",
    "&lt;script&gt;",
    "$\\frac{1}{0}$ %s {0}",
    "_hidden",
    "\u202egnp.exe\u2066\u200f",
    "\x00\x07\x1b[31m\x9b\ud800\ufffe",
    "a\nb\rc\u2028d",
    "x" * 5000,
    "   ",
)
VOID = frozenset(("meta", "link", "img", "input", "br", "hr"))


class Parsed(HTMLParser):
    """The elements, attributes and texts of a page. Raises AssertionError if elements are not nested properly."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []  # innermost element and text
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert not self._open, f"{self._open} are not closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"</{tag}> closes nothing"
        assert self._open[-1] == tag, f"</{tag}> inside of {self._open}"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        if self._open:
            self.texts.append((self._open[-1], data))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def texts_in(self, tag: str) -> list[str]:
        return [text for name, text in self.texts if name == tag]


def assert_only_page_content(parsed: Parsed) -> None:
    """Check that the page has no content that runs, loads or sends data, except its data, its scripts and its style."""
    scripts = [one.get("type") for one in parsed.all("script")]
    assert scripts in (["application/json", None], ["application/json", None, None]) and len(parsed.all("style")) == 1
    allowed = {"href": ("#", "data:,")}
    for tag, attributes in parsed.elements:
        assert tag not in ("img", "iframe", "object", "embed", "form", "base", "a:href", "foreignobject", "image"), tag
        for name, value in attributes.items():
            assert not name.startswith("on"), f"{tag} {name}"
            assert name not in ("src", "action", "srcdoc", "formaction", "xlink:href"), f"{tag} {name}"
            if name in allowed:
                assert (value or "").startswith(allowed[name]), f"{tag} {name}={value}"
            if name == "style":
                assert "url(" not in (value or "").replace("url(#", "")


def data_of(html: str) -> dict[str, Any]:
    """Return the data of a page's script."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def charts_of(html: str) -> dict[str, dict[str, Any]]:
    """Return the charts of a page by their titles."""
    titles = dict(re.findall(r'<h3 id="(\w+)-title">([^<]*)</h3>', html))
    return {unescape(titles[identity]): chart for identity, chart in data_of(html)["charts"].items()}
