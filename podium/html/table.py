"""Tables of a page: the text of each cell, and its sort key, which is the number, not its text."""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from podium.core.text import shorten_middle, truncate

MISSING = "–"
MAX_CELL_CHARACTERS = 100  # of a text that is not long; its middle is left out
MAX_TOOLTIP_CHARACTERS = 300
ESSENTIAL, USUAL, DETAIL = 0, 1, 2  # priorities of columns
PHONE = "screen and (max-width: 42rem)"  # as in style.css


class Cell(NamedTuple):
    """A value with its own text, in place of the column's format."""

    text: str
    sort_key: float | None  # None: sorted last


# None and non-finite numbers are shown as MISSING, and sorted last.
Value = str | int | float | Cell | None


@dataclass(frozen=True)
class Column:
    """A column of a table: its title, format and controls."""

    title: str
    format: Callable[[float], str] | None = None  # of a number; None: a column of texts
    help: str = ""  # description, shown below the table
    long: bool = False  # whether it has sentences, which need width
    # Where there is no room for all columns: ESSENTIAL ones are shown on a phone too, DETAILS only on request.
    priority: int = USUAL

    @property
    def numeric(self) -> bool:
        return self.format is not None

    def text(self, value: Value) -> str:
        """Return the text of a cell."""
        if isinstance(value, Cell):
            return value.text
        if isinstance(value, str):
            return (value if self.long else shorten_middle(value, MAX_CELL_CHARACTERS)) or MISSING
        if value is None or not math.isfinite(value):
            return MISSING
        return str(value) if self.format is None else self.format(value)

    def tooltip(self, value: Value) -> str:
        """Return the start of a text that its cell does not show in full; empty for others."""
        if not isinstance(value, str) or self.text(value) == (value or MISSING):
            return ""
        return truncate(value, MAX_TOOLTIP_CHARACTERS)

    def sort_key(self, value: Value) -> str | None:
        """Return the sort key of a cell, "" where the value is missing; None if it is sorted by its text.

        The text is the key of a number that is shown in full, which is most of a page's numbers.
        """
        number = value.sort_key if isinstance(value, Cell) else value
        if isinstance(number, str):
            return None if number else ""
        key = f"{number:.10g}" if number is not None and math.isfinite(number) else ""
        return None if key and self.numeric and key == self.text(value).replace(",", "") else key


def text(title: str, help: str = "", long: bool = False, priority: int = USUAL) -> Column:
    """Return a column of texts."""
    return Column(title, None, help, long, priority)


def number(title: str, digits: int = 0, help: str = "", priority: int = USUAL) -> Column:
    """Return a column of numbers with thousands separators; the unit belongs in the title."""
    return Column(title, lambda value: f"{value:,.{digits}f}", help, priority=priority)


def share(title: str, digits: int = 1, help: str = "", priority: int = USUAL) -> Column:
    """Return a column of shares from 0 to 1, shown in percent."""
    return Column(title, lambda value: f"{100 * value:.{digits}f} %", help, priority=priority)


@dataclass(frozen=True)
class Table:
    """A table that the reader can sort."""

    title: str
    columns: Sequence[Column]
    # Each with one value per column. The first column names the row, and does not scroll horizontally.
    rows: Sequence[Sequence[Value]]
    caption: str = ""
    marked: Collection[int] = ()  # indices of highlighted rows
    records: Sequence[int] = ()  # of each row, the index of its record in the page's filters; without, all are shown

    @property
    def hides(self) -> str:
        """Where columns are hidden at first: `details`, on every screen; `phone`, only on a phone; "", nowhere.

        A table without an essential column besides the first hides none.
        """
        priorities = {column.priority for column in self.columns[1:]}
        if ESSENTIAL not in priorities or len(priorities) == 1:
            return ""
        return "details" if DETAIL in priorities else "phone"

    def style_rules(self, identity: str) -> list[str]:
        """Return CSS of the columns of the table in the element of this id, so that cells need no classes."""
        rules = []
        for place, column in enumerate(self.columns, 1):
            cells = f"tr>:nth-child({place})"
            if column.numeric and place > 1:
                rules.append(f"#{identity} {cells}{{text-align:right;font-variant-numeric:tabular-nums}}")
                rules.append(f"#{identity} td:nth-child({place}){{white-space:nowrap}}")
            elif column.long:
                rules.append(f"#{identity} td:nth-child({place}){{max-width:none;overflow-wrap:anywhere}}")
                rules.append(
                    f"@media screen and (min-width: 42rem){{#{identity} td:nth-child({place}){{min-width:20rem}}}}"
                )
            if place > 1 and column.priority == DETAIL:
                rules.append(f"@media screen{{#{identity} .brief {cells}{{display:none}}}}")
            elif place > 1 and column.priority == USUAL:
                rules.append(f"@media {PHONE}{{#{identity} .brief {cells}{{display:none}}}}")
        return rules
