"""Command-line options and output that several commands share."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from podium.core.console import Console

System = Annotated[str, typer.Argument(help="A name in systems/, or the path of a system's YAML file.")]
Recipe = Annotated[
    str | None, typer.Option(help="The training recipe, instead of the one that the system's file names.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a setting, such as launch.processes_per_node=2."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
NodeRank = Annotated[
    int,
    typer.Option("--node-rank", min=0, help="This node's number if there are several; node 0 writes the results."),
]
Lengths = Annotated[
    Path | None,
    typer.Option(
        help="A histogram of sample lengths: a JSON list of how many samples have 1, 2, … tokens. Default: Wikipedia's."
    ),
]
Processes = Annotated[int, typer.Option(min=1, help="Number of worker processes.")]


def print_output(as_json: bool, document: Any, print_tables: Callable[[Console], None]) -> None:
    """Print `document` as one JSON object, or else call `print_tables`, to standard output."""
    if as_json:
        print(json.dumps(document, indent=2))
    else:
        print_tables(Console())
