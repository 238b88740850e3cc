"""Texts and sort keys of cells."""

import pytest

from podium.html.table import MAX_CELL_CHARACTERS, MAX_TOOLTIP_CHARACTERS, MISSING, Cell, Value, number, share, text


@pytest.mark.parametrize(
    ("value", "expected", "key"),
    [
        (1234567.891, "1,234,567.9", "1234567.891"),
        (3, "3.0", "3"),
        (0, "0.0", "0"),
        (2.5, "2.5", None),
        (1234.5, "1,234.5", None),
        (None, MISSING, ""),
        (float("nan"), MISSING, ""),
        (float("inf"), MISSING, ""),
        (1e-7, "0.0", "1e-07"),
        (Cell("9 of 10", 9.0), "9 of 10", "9"),
        (Cell("not known", None), "not known", ""),
    ],
)
def test_number_column(value: Value, expected: str, key: str | None) -> None:
    column = number("Time (s)", 1)
    assert (column.text(value), column.sort_key(value)) == (expected, key)
    assert column.numeric


def test_shares_are_shown_in_percent_and_sorted_by_value() -> None:
    column = share("MFU")
    assert (column.text(0.12345), column.sort_key(0.12345)) == ("12.3 %", "0.12345")
    assert (column.text(None), column.sort_key(None)) == (MISSING, "")


def test_texts_are_sorted_by_their_text() -> None:
    column = text("Submitter")
    assert (column.text("ASUSTeK"), column.sort_key("ASUSTeK")) == ("ASUSTeK", None)
    assert (column.text(""), column.sort_key("")) == (MISSING, "")
    assert (column.text(None), column.sort_key(None)) == (MISSING, "")
    assert not column.numeric


def test_long_texts_are_shortened_with_their_start_as_tooltip() -> None:
    name, plain, sentences = f"{'a' * 5000}{'z' * 5000}", text("System"), text("Anomaly", long=True)
    assert plain.text(name).startswith("aaa") and plain.text(name).endswith("zzz")
    assert len(plain.text(name)) == MAX_CELL_CHARACTERS and len(plain.tooltip(name)) == MAX_TOOLTIP_CHARACTERS
    assert sentences.text(name) == name and sentences.tooltip(name) == ""
    assert plain.tooltip("ASUSTeK") == plain.tooltip("") == plain.tooltip(None) == ""


def test_sort_keys_distinguish_close_numbers() -> None:
    column = number("Score (min)", 3)
    assert column.text(16.18290001) == column.text(16.18290002)
    assert float(column.sort_key(16.18290001) or 0) < float(column.sort_key(16.18290002) or 0)
