"""Options and output that several commands have alike."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from podium.core.console import Console

System = Annotated[str, typer.Argument(help="A name in systems/, or the path of a system's YAML file.")]
Recipe = Annotated[str | None, typer.Option(help="A published way of training instead of the system's own.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a setting, such as launch.processes_per_node=2."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
NodeRank = Annotated[
    int,
    typer.Option("--node-rank", min=0, help="Of several nodes, this one's number; the first one has the results."),
]
Lengths = Annotated[
    Path | None, typer.Option(help="A JSON list of how many samples have 1, 2, … tokens. Default: Wikipedia's.")
]
Processes = Annotated[int, typer.Option(min=1, help="Processes to share the files.")]


def show(as_json: bool, document: Any, print_tables: Callable[[Console], None]) -> None:
    """Print one JSON object, or else tables, to standard output."""
    if as_json:
        print(json.dumps(document, indent=2))
    else:
        print_tables(Console())
