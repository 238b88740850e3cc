"""Untrusted text is made safe for display."""

import unicodedata
from xml.etree import ElementTree

import pytest

from podium.core.text import MAX_HTML_CHARACTERS, for_html, for_xml, label


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ND96amsr A100 – 中文 é", "ND96amsr A100 – 中文 é"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        ("\x1b[31mred\x07", "\ufffd[31mred\ufffd"),
        ("abc\u202edcba\u2066x\u200f", "abc\ufffddcba\ufffdx\ufffd"),
        ("half \ud800 of a pair", "half \ufffd of a pair"),
        ("a\rb\u2028c", "a b c"),
        ("\x00\x85\ufffe", "\ufffd\ufffd\ufffd"),
    ],
)
def test_invisible_characters_are_replaced(text: str, expected: str) -> None:
    assert for_xml(text) == expected
    assert for_html(text) == expected


def test_remaining_characters_are_visible_and_valid_xml() -> None:
    every = "".join(map(chr, [*range(0x3000), *range(0xD7F0, 0xE010), *range(0xFD00, 0x10010)]))
    left = for_xml(every)
    assert ElementTree.fromstring(f"<a>{left.replace('&', '').replace('<', '')}</a>").text
    assert {character for character in left if unicodedata.category(character) in ("Cc", "Cs")} == {"\n", "\t"}
    assert not any(unicodedata.bidirectional(character) in ("RLO", "LRO", "RLE", "LRE", "RLI") for character in left)


def test_long_text_is_truncated_with_an_ellipsis() -> None:
    assert for_html("x" * MAX_HTML_CHARACTERS) == "x" * MAX_HTML_CHARACTERS
    assert for_html("x" * (MAX_HTML_CHARACTERS + 1)) == "x" * (MAX_HTML_CHARACTERS - 1) + "…"
    assert for_html("abcdef", 4) == "abc…"


def test_labels_are_on_one_line_and_never_empty() -> None:
    assert label("two\nlines  and\ta tab", 40) == "two lines and a tab"
    assert label(" \n ", 40) == "–"
    assert label("abcdef", 4) == "abc…"
