"""Descriptions that were written by hand."""

import pytest

from podium.core.text import LONGEST_LINE, one_line
from podium.mllog import system


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *[("8", 8), ("8.0", 8), (" 8 ", 8), ("0", 0), ("N/A", 0), ("none", 0), ("", None), (None, None), ("8x", None)],
        *[("1.5", None), ("-1", None), ("nan", None), ("1e999", None), ("1e300", None), ("٣", 3)],
    ],
)
def test_counts(text: str | None, number: int | None) -> None:
    assert system.count(text) == number


def test_names_and_divisions() -> None:
    assert [system.name(text) for text in (" NVIDIA A100 ", "N/A", "", "-", None)] == ["NVIDIA A100", *[None] * 4]
    assert [system.division(text) for text in ("Closed", "close", " OPEN", "", "both", None)] == [
        "closed",
        "closed",
        "open",
        None,
        None,
        None,
    ]


def test_texts_are_readable() -> None:
    assert one_line("a\x1b[31mb\n\u202ec\x00\ud800 d") == "a [31mb c d"
    assert one_line("a\u00adb\U000e0001c\ue000\u2003d") == "a b c d", "no character that is invisible"
    assert len(one_line("x" * 10_000)) == LONGEST_LINE
    fields = {"a": "x\ny", "b": 4, "c": 1.0, "d": None, "e": [1], "f": True}
    assert system.texts(fields) == {"a": "x y", "b": "4", "c": "1.0"}
