"""Tables of a page: the text of each cell, and its sort key, which is the number, not its text."""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

MISSING = "–"


class Cell(NamedTuple):
    """A value with its own text, in place of the column's format."""

    text: str
    sort_key: float | None  # None: sorted last


# None and non-finite numbers are shown as the column's `missing`, and sorted last.
Value = str | int | float | Cell | None


@dataclass(frozen=True)
class Column:
    """A column of a table: its title, format and controls."""

    title: str
    format: Callable[[float], str] | None = None  # of a number; None: a column of texts
    help: str = ""  # description, shown below the table
    choices: bool = False  # whether rows can be filtered by a value of the column
    missing: str = MISSING
    long: bool = False  # whether it has sentences, which need width

    @property
    def numeric(self) -> bool:
        return self.format is not None

    def text(self, value: Value) -> str:
        """Return the text of a cell."""
        if isinstance(value, Cell):
            return value.text
        if isinstance(value, str):
            return value or self.missing
        if value is None or not math.isfinite(value):
            return self.missing
        return str(value) if self.format is None else self.format(value)

    def sort_key(self, value: Value) -> str | None:
        """Return the sort key of a cell, "" where the value is missing; None if it is sorted by its text.

        The text is the key of a number that is shown in full, which is most of a page's numbers.
        """
        number = value.sort_key if isinstance(value, Cell) else value
        if isinstance(number, str):
            return None if number else ""
        key = f"{number:.10g}" if number is not None and math.isfinite(number) else ""
        return None if key and self.numeric and key == self.text(value).replace(",", "") else key


def text(title: str, help: str = "", choices: bool = False, missing: str = MISSING, long: bool = False) -> Column:
    """Return a column of texts."""
    return Column(title, None, help, choices, missing, long)


def number(title: str, digits: int = 0, help: str = "", missing: str = MISSING) -> Column:
    """Return a column of numbers with thousands separators; the unit belongs in the title."""
    return Column(title, lambda value: f"{value:,.{digits}f}", help, missing=missing)


def share(title: str, digits: int = 1, help: str = "", missing: str = MISSING) -> Column:
    """Return a column of shares from 0 to 1, shown in percent."""
    return Column(title, lambda value: f"{100 * value:.{digits}f} %", help, missing=missing)


@dataclass(frozen=True)
class Table:
    """A table that the reader can sort."""

    title: str
    columns: Sequence[Column]
    # Each with one value per column. The first column names the row, and does not scroll horizontally.
    rows: Sequence[Sequence[Value]]
    caption: str = ""
    marked: Collection[int] = ()  # indices of highlighted rows
    searchable: bool = True  # whether it has a search field
