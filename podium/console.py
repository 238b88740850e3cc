"""Where the command line speaks to a person: standard error, so that standard output stays for results."""

from unicodedata import category

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

errors = Console(stderr=True, soft_wrap=True)

_STEERING = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Categories of characters: controls, formats, halves of surrogate pairs, separators of lines and of paragraphs."""


def tell(sentence: str) -> None:
    """Say what went wrong, or what to know about a result."""
    errors.print("podium:", style="red", end=" ")
    errors.print(_harmless(sentence), markup=False, highlight=False)


def _harmless(sentence: str) -> str:
    """With escapes for what steers a terminal or the direction of writing: names of files may hold anything."""
    return "".join(
        letter if letter in "\n\t" or category(letter) not in _STEERING else ascii(letter)[1:-1] for letter in sentence
    )


def progress_bar() -> Progress:
    """A bar with the time taken and the time left; nothing where nobody looks on."""
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
