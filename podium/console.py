"""Where the command line speaks to a person: standard error, so that standard output stays for results."""

from rich.console import Console

errors = Console(stderr=True, soft_wrap=True)


def tell(sentence: str) -> None:
    """Say what went wrong, or what to know about a result."""
    errors.print("podium:", style="red", end=" ")
    errors.print(sentence, markup=False, highlight=False)
