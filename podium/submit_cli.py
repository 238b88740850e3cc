"""`podium submit …`: check what goes to MLPerf."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from podium.console import progress_bar

submit = typer.Typer(no_args_is_help=True, help="Check a submission to MLPerf.")


@submit.command(epilog="Example: [bold]podium submit check path/to/ORG --ruleset 5.0.0[/bold]")
def check(
    path: Annotated[
        Path,
        typer.Argument(
            help="A package (ORG with systems/ and results/), a folder of packages, one system's results, one log, or "
            "a .zip, .tar, .tar.gz or .tar.xz of these."
        ),
    ],
    ruleset: Annotated[str, typer.Option(help="The rules of a round, 1.1.0 to 5.0.0.")] = "5.0.0",
    runs: Annotated[
        Path | None,
        typer.Option(
            help="Podium's own runs, such as runs/laptop: their logs must say what they were configured with."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Check anybody's package: all official checkers on a copy of it, and what they let through.

    A verdict for every file, and what was found. Nothing in the package is written to, followed or executed. Exit code
    1 if there is an error: something for which the package would be rejected, or its score would be worth nothing.
    """
    from podium.submission.checking import check as check_path
    from podium.submission.rulesets import ruleset as named
    from podium.submission.telling import as_json as report_json
    from podium.submission.telling import print_report

    rules = named(ruleset)
    with progress_bar() as bar:
        task = bar.add_task("Checking logs", total=None)
        report = check_path(
            path,
            rules,
            starting=lambda logs: bar.update(task, total=logs),
            told=lambda logs: bar.advance(task, logs),
            runs=runs,
        )
    if as_json:
        print(json.dumps(report_json(report), indent=2))
    else:
        print_report(Console(), report)
    if not report.accepted:
        raise typer.Exit(1)
