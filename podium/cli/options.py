"""Command-line options and output that several commands share."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from podium.cli import names
from podium.core.console import Console, print_json


def _complete_systems(incomplete: str) -> list[str]:
    return names.matching(names.systems(), incomplete)


def _complete_recipes(incomplete: str) -> list[str]:
    return names.matching(names.recipes(), incomplete)


def _complete_settings(incomplete: str) -> list[str]:
    return names.matching(names.settings(), incomplete)


SYSTEM_HELP = "A name in systems/, or the path of a system's YAML file."
System = Annotated[str, typer.Argument(metavar="SYSTEM", autocompletion=_complete_systems, help=SYSTEM_HELP)]
OptionalSystem = Annotated[
    str | None,
    typer.Argument(metavar="SYSTEM", autocompletion=_complete_systems, help=SYSTEM_HELP, show_default=False),
]
Recipe = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        autocompletion=_complete_recipes,
        help=f"The training recipe: {', '.join(names.recipes())}. Default: the one that the system's file names.",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        autocompletion=_complete_settings,
        help="Override a setting, such as launch.processes_per_node=2. May be repeated.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
NodeRank = Annotated[
    int,
    typer.Option("--node-rank", min=0, help="This node's number if there are several; node 0 writes the results."),
]
Lengths = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="A histogram of sample lengths: a JSON list of how many samples have 1, 2, … tokens. Default: "
        "Wikipedia's.",
    ),
]
Processes = Annotated[int, typer.Option(min=1, help="Number of worker processes.")]


def print_output(as_json: bool, document: Any, print_tables: Callable[[Console], None]) -> None:
    """Print `document` as one JSON object, or else call `print_tables`, to standard output."""
    if as_json:
        print_json(document)
    else:
        print_tables(Console())
