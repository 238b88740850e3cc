"""Output of the command line: errors and progress on standard error, tables and findings on standard output."""

import json
import math
import shlex
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console as RichConsole
from rich.console import ConsoleOptions, RenderableType
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from podium.core.finding import Finding, Severity, has_errors
from podium.core.text import is_printable, printable


class Console(RichConsole):
    """A rich console that escapes control characters in all text; rich itself passes terminal escapes through."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text, style, control = segment
            # Only segments that rich itself generates, such as cursor moves of a progress bar, have `control` set.
            yield segment if control or text.isprintable() else Segment(printable(text, keep="\n"), style)


def print_text(text: object) -> None:
    """Print untrusted text, which may have several lines, to standard output; escape control characters."""
    print(printable(str(text), keep="\n"))


def print_json(document: object) -> None:
    """Print a JSON document to standard output; unprintable characters are written as JSON escapes.

    Numbers that are not finite, which JSON does not have, are null.
    """
    text = json.dumps(_finite(document), indent=2, ensure_ascii=False, allow_nan=False)
    for line in text.split("\n"):
        print(line if line.isprintable() else "".join(o if is_printable(o) else json.dumps(o)[1:-1] for o in line))


def _finite(document: object) -> object:
    if isinstance(document, Mapping):
        return {key: _finite(value) for key, value in document.items()}
    if isinstance(document, list | tuple):
        return [_finite(value) for value in document]
    return None if isinstance(document, float) and not math.isfinite(document) else document


errors = Console(stderr=True, soft_wrap=True)

MARKS: Mapping[Severity, tuple[str, str]] = MappingProxyType(
    {"ok": ("✓", "green"), "note": ("!", "yellow"), "warning": ("!", "yellow"), "error": ("✗", "red")}
)
UNKNOWN = "–"


@dataclass
class Verbosity:
    """How much this process prints to standard error: the options -v and -q."""

    level: int = 0  # -1: results and errors only; 1: commands and times too
    started: float = 0.0

    @property
    def quiet(self) -> bool:
        return self.level < 0

    @property
    def verbose(self) -> bool:
        return self.level > 0

    @property
    def options(self) -> list[str]:
        """The option for a Podium process that runs in this one's place, as in a container."""
        return ["--verbose"] if self.verbose else ["--quiet"] if self.quiet else []

    @property
    def time(self) -> str:
        """With -v: the seconds since the command began, to be printed before a note."""
        return f"[{time.monotonic() - self.started:7.1f} s] " if self.verbose else ""

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Time a command; with -v its duration is printed at the end, also if it fails."""
        self.started = time.monotonic()
        try:
            yield
        finally:
            if self.verbose:
                print_line(errors, f"{self.time}end of the command", "dim")


verbosity = Verbosity()


def print_status(text: str) -> None:
    """Print a line about what is done now to standard error, with -v after the time; nothing with -q."""
    if not verbosity.quiet:
        print_line(errors, f"{verbosity.time}{text}", "dim")


def print_command(argv: Sequence[str]) -> None:
    """With -v: print a command that is about to be run, to standard error and quoted for a shell."""
    if verbosity.verbose:
        print_line(errors, f"{verbosity.time}$ {shlex.join(map(str, argv))}", "dim")


def print_note(message: str) -> None:
    """Print a note to standard error, after `podium:`; nothing with -q."""
    if not verbosity.quiet:
        print_message(message)


def print_message(message: str) -> None:
    """Print an error or a warning to standard error, after `podium:`."""
    errors.print("podium:", style="red", end=" ")
    errors.print(printable(message, keep="\n\t"), markup=False, highlight=False)


def print_line(console: RichConsole, text: str, style: str | None = None) -> None:
    """Print untrusted text on one line, without markup and with control characters escaped."""
    console.print(printable(text), style=style, markup=False, highlight=False, soft_wrap=True)


def print_findings(console: RichConsole, findings: Sequence[Finding], conclusion: str) -> None:
    """Print a table with a row for each finding, then advice and further lines of the messages, then the conclusion."""
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
    """A borderless table of text; in a narrow terminal all columns but `no_wrap` are folded."""
    table = Table(title=_title(title), box=None, pad_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold", no_wrap=heading == no_wrap)
    return table


MIN_TEXT_WIDTH = 8  # characters of a folded name


def result_table(title: str | None, texts: Sequence[str], figures: Sequence[str]) -> Table:
    """A wide table with a line below the headings; text columns share the width that number columns leave."""
    table = Table(title=_title(title), box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for number, heading in enumerate(texts):
        table.add_column(heading, overflow="fold", ratio=1 if number else 2, min_width=MIN_TEXT_WIDTH)
    for heading in figures:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def least_width(table: Table) -> int:
    """Return the characters that a result table needs so that no figure is cut; its names may be folded."""
    widths = []
    for column in table.columns:
        lines = [line for cell in (column.header, *column.cells) for line in str(cell).split("\n")]
        widest = max(map(cell_len, lines))
        is_figure = column.no_wrap and column.justify == "right"
        widths.append(widest if is_figure else min(widest, column.min_width or MIN_TEXT_WIDTH))
    return sum(widths) + 2 * len(widths) + 1  # a space and a separator for each column, and the table's edge


def print_figures(console: RichConsole, table: Table) -> None:
    """Print a result table; where the terminal is narrower than its figures, with lines longer than the terminal."""
    table.width = least if (least := least_width(table)) > console.width else None
    console.print(table, crop=False)


def describe_left_out(columns: Sequence[str], elsewhere: str) -> str:
    """Return a line on the columns that a table has no room for; `elsewhere` are the options that show them."""
    return f"Left out at this width: {', '.join(columns)}. See them in a wider terminal (COLUMNS=…), or by {elsewhere}."


def number_table(title: str, name: str, *figures: str, caption: str | None = None) -> Table:
    """A table with borders: one column of names, and right-aligned columns of numbers."""
    table = Table(title=_title(title), caption=caption)
    table.add_column(name)
    for heading in figures:
        table.add_column(heading, justify="right")
    return table


def summary_table(title: str) -> Table:
    """A table of two columns without headings: name and value."""
    table = Table(title=_title(title), show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right", overflow="fold")
    return table


def _title(title: str | None) -> Text | None:
    return None if title is None else Text(printable(title), "table.title")


class _TaskProgress(Progress):
    """A progress bar that also prints each task as a line with the time, with -v."""

    def add_task(self, description: str, *args: Any, **fields: Any) -> TaskID:
        if verbosity.verbose:
            print_status(f"{description} …")
        return super().add_task(description, *args, **fields)


NOTICE_SECONDS = 1.0  # before anything is shown of an operation
REPEAT_SECONDS = 30.0  # between lines where standard error is not a terminal


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """A progress bar with elapsed and remaining time; a line with the share done where there is no terminal.

    Nothing is shown with -q.
    """
    bar = _TaskProgress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=errors,
        transient=True,
        disable=verbosity.quiet or not errors.is_terminal,
    )
    shown = bar if errors.is_terminal else _repeated_lines(lambda: _describe_tasks(bar), announced=verbosity.verbose)
    with shown:
        yield bar


@contextmanager
def waiting(text: str, announced: bool = False) -> Iterator[None]:
    """Show on standard error what is being done, if it takes longer than NOTICE_SECONDS.

    A terminal shows a spinner and the elapsed time until the end; elsewhere it is a line, repeated with the elapsed
    seconds. `announced` is whether the text was already printed. No other progress bar may be shown inside.
    """
    if verbosity.quiet:
        yield
        return
    if not errors.is_terminal:
        with _repeated_lines(lambda: f"{printable(text)} …", announced):
            yield
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    bar = Progress(*columns, console=errors, transient=True)
    bar.add_task(f"{printable(text)} …", total=None)
    timer = threading.Timer(NOTICE_SECONDS, bar.start)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # it may be starting the bar
        bar.stop()


def _describe_tasks(bar: Progress) -> str:
    task = bar.tasks[-1] if bar.tasks else None
    if task is None:
        return ""
    return f"{task.description} …" + (f" {task.percentage:.0f}%" if task.total else "")


@contextmanager
def _repeated_lines(text: Callable[[], str], announced: bool = False) -> Iterator[None]:
    """Print `text()` after NOTICE_SECONDS, unless it was announced, and every REPEAT_SECONDS with the elapsed time.

    Nothing is printed with -q.
    """
    ended = threading.Event()

    def show() -> None:
        if verbosity.quiet or ended.wait(NOTICE_SECONDS):
            return
        if not announced and (line := text()):
            print_line(errors, line, "dim")
        seconds = NOTICE_SECONDS
        while not ended.wait(REPEAT_SECONDS):
            seconds += REPEAT_SECONDS
            print_line(errors, f"{text()} {seconds:.0f} s", "dim")

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
