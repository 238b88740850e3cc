"""Output of the command line: errors and progress on standard error, tables and findings on standard output."""

import json
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from rich.box import SIMPLE_HEAD
from rich.console import Console as RichConsole
from rich.console import ConsoleOptions, RenderableType
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from podium.core.finding import Finding, Severity, has_errors
from podium.core.text import is_printable, printable


class Console(RichConsole):
    """A console on which no text acts on the terminal, wherever it is from: rich itself lets escapes through."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text, style, control = segment
            # A segment of rich's own codes, such as a progress bar's, has `control`.
            yield segment if control or text.isprintable() else Segment(printable(text, keep="\n"), style)


def print_text(text: object) -> None:
    """Print a text, or several lines, from anywhere to standard output, unfolded and without acting on the terminal."""
    print(printable(str(text), keep="\n"))


def print_json(document: object) -> None:
    """Print a JSON document for programs to standard output, in which what cannot be printed is escaped."""
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
    for line in text.split("\n"):
        print(line if line.isprintable() else "".join(o if is_printable(o) else json.dumps(o)[1:-1] for o in line))


errors = Console(stderr=True, soft_wrap=True)

MARKS: Mapping[Severity, tuple[str, str]] = MappingProxyType(
    {"ok": ("✓", "green"), "note": ("!", "yellow"), "warning": ("!", "yellow"), "error": ("✗", "red")}
)
UNKNOWN = "–"


def tell(message: str) -> None:
    """Print an error or a warning to standard error."""
    errors.print("podium:", style="red", end=" ")
    errors.print(printable(message, keep="\n\t"), markup=False, highlight=False)


def print_line(console: RichConsole, text: str, style: str | None = None) -> None:
    """Print one line of text from anywhere: no markup, no control characters."""
    console.print(printable(text), style=style, markup=False, highlight=False, soft_wrap=True)


def print_findings(console: RichConsole, findings: Sequence[Finding], conclusion: str) -> None:
    """A row for each finding, then what to do and the further lines of what was found, and the conclusion last."""
    table = text_table("check", "found", "expected", "")
    for one in findings:
        cells = (one.rule, one.message.partition("\n")[0], one.expected)
        table.add_row(*(Text(printable(cell)) for cell in cells), Text(*MARKS[one.severity]))
    console.print(table)
    for one in findings:
        if one.advice:
            print_line(console, f"{one.rule}: {one.advice}")
        for line in one.message.splitlines()[1:]:
            print_line(console, f"    {line}")
    print_line(console, conclusion, "bold red" if has_errors(findings) else "bold green")


def text_table(*headings: str, title: str | None = None, no_wrap: str | None = None) -> Table:
    """A table of texts without lines; where the terminal is narrow, all columns but `no_wrap` are folded."""
    table = Table(title=_title(title), box=None, pad_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold", no_wrap=heading == no_wrap)
    return table


def result_table(title: str | None, texts: Sequence[str], figures: Sequence[str]) -> Table:
    """A wide table: columns of texts share the room that columns of figures leave; a line below the headings."""
    table = Table(title=_title(title), box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for number, heading in enumerate(texts):
        table.add_column(heading, overflow="fold", ratio=1 if number else 2, min_width=8 if number else 14)
    for heading in figures:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def figure_table(title: str, name: str, *figures: str, caption: str | None = None) -> Table:
    """A table with lines: a column of names, and columns of figures."""
    table = Table(title=_title(title), caption=caption)
    table.add_column(name)
    for heading in figures:
        table.add_column(heading, justify="right")
    return table


def summary_table(title: str) -> Table:
    """A table of two columns, what and how much."""
    table = Table(title=_title(title), show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right", overflow="fold")
    return table


def _title(title: str | None) -> Text | None:
    return None if title is None else Text(printable(title), "table.title")


def progress_bar() -> Progress:
    """A bar with the time taken and the time left; nothing where standard error is no terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=errors,
        transient=True,
        disable=not errors.is_terminal,
    )
