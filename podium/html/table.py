"""Tables of a page: the text of each cell, and its sort key, which is the number and not the text."""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

MISSING = "–"


class Cell(NamedTuple):
    """A value that is shown as something else than its column would."""

    shown: str
    key: float | None  # what it is sorted by; None: behind all others


# None, and a number that is not finite, is shown as the column's `missing`, and is sorted behind all others.
Value = str | int | float | Cell | None


@dataclass(frozen=True)
class Column:
    title: str
    shown: Callable[[float], str] | None = None  # how a number is written; None: the column holds texts
    help: str = ""  # what the column tells, for those who ask
    choices: bool = False  # whether a reader can choose one of the column's values
    missing: str = MISSING
    long: bool = False  # whether it holds sentences, which need room

    @property
    def numeric(self) -> bool:
        return self.shown is not None

    def text(self, value: Value) -> str:
        """What a cell shows."""
        if isinstance(value, Cell):
            return value.shown
        if isinstance(value, str):
            return value or self.missing
        if value is None or not math.isfinite(value):
            return self.missing
        return str(value) if self.shown is None else self.shown(value)

    def key(self, value: Value) -> str | None:
        """What a cell is sorted by where that is not its text; empty for what is missing."""
        number = value.key if isinstance(value, Cell) else value
        if isinstance(number, str):
            return None if number else ""
        return f"{number:.10g}" if number is not None and math.isfinite(number) else ""


def text(title: str, help: str = "", choices: bool = False, missing: str = MISSING, long: bool = False) -> Column:
    return Column(title, None, help, choices, missing, long)


def number(title: str, digits: int = 0, help: str = "", missing: str = MISSING) -> Column:
    """With thousands separated; the unit belongs into the title."""
    return Column(title, lambda value: f"{value:,.{digits}f}", help, missing=missing)


def share(title: str, digits: int = 1, help: str = "", missing: str = MISSING) -> Column:
    """A share of one, shown in percent."""
    return Column(title, lambda value: f"{100 * value:.{digits}f} %", help, missing=missing)


@dataclass(frozen=True)
class Table:
    title: str
    columns: Sequence[Column]
    # Each with one value a column. The first column is what a row is called, and stays in sight.
    rows: Sequence[Sequence[Value]]
    caption: str = ""
    marked: Collection[int] = ()  # numbers of the rows that stand out
    filtered: bool = True  # whether a reader can search in it
