"""What a study returns: tables with the source of their figures, one chart, and its findings as sentences."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Cell = str | int | float | None
# computed: the strategies were run on samples; predicted: by the cost model; published: of result logs and papers.
Source = Literal["computed with the strategies", "predicted by the model", "published"]


@dataclass(frozen=True)
class Table:
    """Rows of figures; `formats` has a column's format of numbers, text as it is, and None is unknown."""

    title: str
    source: Source
    headings: tuple[str, ...]
    formats: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def texts(self) -> list[tuple[str, ...]]:
        """The rows as a terminal shows them."""
        return [tuple(_text(cell, form) for cell, form in zip(row, self.formats, strict=True)) for row in self.rows]


def _text(cell: Cell, form: str) -> str:
    if cell is None:
        return "–"
    return cell if isinstance(cell, str) else format(cell, form)


@dataclass(frozen=True)
class Line:
    """Points of a chart, joined in their order, or marked alone."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    joined: bool = True


@dataclass(frozen=True)
class Chart:
    """Lines over numbers, or with `names` horizontal bars: a bar of each line for every name."""

    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    log_x: bool = False
    names: tuple[str, ...] = ()
    limit: float | None = None  # a level to draw across


@dataclass(frozen=True)
class Study:
    """One question with its answer."""

    name: str
    question: str
    findings: tuple[str, ...]
    tables: tuple[Table, ...]
    chart: Chart

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def crossing(x: Sequence[float], y: Sequence[float], level: float) -> float | None:
    """Where the line through points, in rising order of x, first reaches a level; None where it never does."""
    for (x0, y0), (x1, y1) in zip(zip(x, y, strict=True), list(zip(x, y, strict=True))[1:], strict=False):
        if y0 < level <= y1:
            return x0 + (level - y0) / (y1 - y0) * (x1 - x0)
    return x[0] if y and y[0] >= level else None
