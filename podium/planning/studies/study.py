"""Result of a study: tables with the source of their figures, one chart, and findings as sentences."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Cell = str | int | float | None
# computed: by running the strategies on samples; predicted: by the cost model; published: in result logs and papers.
Source = Literal["computed with the strategies", "predicted by the model", "published"]


@dataclass(frozen=True)
class Table:
    """Rows of cells. `formats` has the number format of each column; text is printed unchanged; None is unknown."""

    title: str
    source: Source
    headings: tuple[str, ...]
    formats: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def format_rows(self) -> list[tuple[str, ...]]:
        """Return the rows as formatted text; unknown cells are dashes."""
        return [tuple(_text(cell, form) for cell, form in zip(row, self.formats, strict=True)) for row in self.rows]


def _text(cell: Cell, form: str) -> str:
    if cell is None:
        return "–"
    return cell if isinstance(cell, str) else format(cell, form)


@dataclass(frozen=True)
class Line:
    """Points of a chart, connected in their order, or drawn as separate marks."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    joined: bool = True


@dataclass(frozen=True)
class Chart:
    """Line chart, or with `names` a chart of horizontal bars: one bar per line for every name."""

    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    log_x: bool = False
    names: tuple[str, ...] = ()
    limit: float | None = None  # y of a horizontal line


@dataclass(frozen=True)
class Study:
    """One question with its answer. The field names are keys of `podium study --json`."""

    name: str
    question: str
    findings: tuple[str, ...]
    tables: tuple[Table, ...]
    chart: Chart

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def crossing(x: Sequence[float], y: Sequence[float], level: float) -> float | None:
    """Return the x at which the line through points in ascending x first reaches a level; None if it never does."""
    for (x0, y0), (x1, y1) in zip(zip(x, y, strict=True), list(zip(x, y, strict=True))[1:], strict=False):
        if y0 < level <= y1:
            return x0 + (level - y0) / (y1 - y0) * (x1 - x0)
    return x[0] if y and y[0] >= level else None
