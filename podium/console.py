"""Where the command line speaks to a person: standard error, so that standard output stays for results."""

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

errors = Console(stderr=True, soft_wrap=True)


def tell(sentence: str) -> None:
    """Say what went wrong, or what to know about a result."""
    errors.print("podium:", style="red", end=" ")
    errors.print(sentence, markup=False, highlight=False)


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
