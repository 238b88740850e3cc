"""Parsing of system descriptions that were written by hand."""

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
    assert system.parse_count(text) == number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *[("1 TB", 1e12), ("2TiB", 2.0**41), ("1,024 GB", 1.024e12), ("1.5 PB", 1.5e15), ("512 GiB", 2.0**39)],
        *[("8 x 64 GB", 512e9), ("263.863808 GB", 263.863808e9), ("24 x 32GB RDIMM, 3200MT/s, Dual Rank", 768e9)],
        *[(text, None) for text in ("not stated", "", "1,02 TB", "1 024 GB", "8 DIMMs of 64 GB", "64 GB per socket")],
        *[(text, None) for text in ("64 GB x 8", "2 TB (16 x 128 GB)", "25 GB/s", "1 TBps", "GB", f"{9**999} TB")],
    ],
)
def test_amounts_of_memory(text: str, number: float | None) -> None:
    assert system.parse_memory_size(text) == (None if number is None else pytest.approx(number, rel=1e-12))


def test_names_and_divisions() -> None:
    assert [system.parse_name(text) for text in (" NVIDIA A100 ", "N/A", "", "-", None)] == ["NVIDIA A100", *[None] * 4]
    assert [system.parse_division(text) for text in ("Closed", "close", " OPEN", "", "both", None)] == [
        "closed",
        "closed",
        "open",
        None,
        None,
        None,
    ]


def test_fields_become_printable_lines() -> None:
    assert one_line("a\x1b[31mb\n\u202ec\x00\ud800 d") == "a [31mb c d"
    assert one_line("a\u00adb\U000e0001c\ue000\u2003d") == "a b c d", "invisible characters are removed"
    assert len(one_line("x" * 10_000)) == LONGEST_LINE
    fields = {"a": "x\ny", "b": 4, "c": 1.0, "d": None, "e": [1], "f": True}
    assert system.readable_fields(fields) == {"a": "x y", "b": "4", "c": "1.0"}
