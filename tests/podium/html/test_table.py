"""Texts and sort keys of cells."""

import pytest

from podium.html.table import MISSING, Cell, Value, number, share, text


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
    column = share("MFU", missing="unknown")
    assert (column.text(0.12345), column.sort_key(0.12345)) == ("12.3 %", "0.12345")
    assert (column.text(None), column.sort_key(None)) == ("unknown", "")


def test_texts_are_sorted_by_their_text() -> None:
    column = text("Submitter", missing="unknown")
    assert (column.text("ASUSTeK"), column.sort_key("ASUSTeK")) == ("ASUSTeK", None)
    assert (column.text(""), column.sort_key("")) == ("unknown", "")
    assert (column.text(None), column.sort_key(None)) == ("unknown", "")
    assert not column.numeric


def test_sort_keys_distinguish_close_numbers() -> None:
    column = number("Score (min)", 3)
    assert column.text(16.18290001) == column.text(16.18290002)
    assert float(column.sort_key(16.18290001) or 0) < float(column.sort_key(16.18290002) or 0)
