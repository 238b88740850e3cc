"""`podium compare`: results of any round and one's own, held together."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from podium.console import progress_bar, tell


def compare(
    paths: Annotated[
        list[Path],
        typer.Argument(
            help="Clones of rounds' results or parts of them (a submitter, a system, a log), archives of these, and "
            "results/ of your own."
        ),
    ],
    rounds: Annotated[
        list[str] | None, typer.Option("--round", metavar="ROUND", help="Such as v2.1, or own; may be repeated.")
    ] = None,
    accelerators: Annotated[
        list[str] | None, typer.Option("--accelerator", metavar="NAME", help="A part of its name; may be repeated.")
    ] = None,
    divisions: Annotated[list[str] | None, typer.Option("--division", metavar="closed|open")] = None,
    per: Annotated[str, typer.Option(metavar="accelerator|node", help="What throughput is shown for.")] = "accelerator",
    as_json: Annotated[bool, typer.Option("--json", help="Print a list of JSON objects instead of tables.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print comma-separated values instead of tables.")] = False,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page that opens offline.")] = None,
    oddities: Annotated[
        bool, typer.Option("--oddities", help="Tell what does not fit together, result by result.")
    ] = False,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Read every log anew, and keep nothing.")] = False,
) -> None:
    """Compare published results of BERT, and your own beside them: scores, spread, throughput, MFU, scaling.

    Logs are read as they are; what does not fit together is told. Scores are olympic means; where the rules scale one
    both are shown. What was read is kept by its content under ~/.cache/podium.
    """
    from benchmarks.errors import UsageError
    from podium.comparison.cache import RunCache, default_folder
    from podium.comparison.choosing import choose
    from podium.comparison.gathering import Comparison, gather
    from podium.comparison.rows import as_csv as rows_csv
    from podium.comparison.rows import rows
    from podium.comparison.telling import print_comparison

    if per not in ("accelerator", "node"):
        raise UsageError(f"--per {per}: allowed is accelerator or node")
    if as_json and as_csv:
        raise UsageError("--json and --csv: give one of them")
    with progress_bar() as bar:
        task = bar.add_task("Reading logs", total=None)
        found = gather(
            paths,
            RunCache(None if no_cache else default_folder()),
            starting=lambda logs: bar.update(task, total=logs),
            told=lambda logs: bar.advance(task, logs),
        )
    for note in found.notes:
        tell(f"note: {note}")
    shown = Comparison(tuple(choose(found.results, rounds or [], accelerators or [], divisions or [])), found.notes)
    if not shown.results:
        raise UsageError(
            f"none of the {len(found.results)} results is of what --round, --accelerator and --division name"
        )
    if html is not None:
        from podium.comparison.page import comparison_page
        from podium.page.page import write_page

        write_page(html, comparison_page(shown))
    if as_json:
        print(json.dumps(rows(shown.results), indent=2, ensure_ascii=False, allow_nan=False))
    elif as_csv:
        print(rows_csv(rows(shown.results)), end="")
    elif html is None:
        print_comparison(Console(), shown.results, per, oddities)
