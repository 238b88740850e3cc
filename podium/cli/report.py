"""`podium report`: reports on local runs, as tables, as JSON and as an HTML page."""

from pathlib import Path
from typing import Annotated

import typer

from podium.cli.options import AsJson, print_output
from podium.core.console import print_status, waiting


def report(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="FOLDER",
            help="Folders of runs (runs/SYSTEM/DATE_TIME/run_N), of sets of runs (runs/SYSTEM/DATE_TIME), or of "
            "systems (runs/SYSTEM, for its newest set).",
        ),
    ],
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Write an HTML page that needs no network connection."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Report on local runs: outcome, speed, balance and phases; --html adds curves of loss and accuracy.

    Covers finished, running and failed runs, and changes nothing in their folders. Exit code 0 whatever the outcome of
    the runs, 1 if the page cannot be written, 2 if a folder contains no run.
    """
    with waiting("Loading the report"):
        from podium.report.find import find_runs
        from podium.report.load import read_sets
        from podium.report.table import as_json as report_json
        from podium.report.table import print_sets
        from podium.run.run_set import resolve_run_folder

    if html is not None:
        from podium.html.page import require_page_or_no_file

        require_page_or_no_file(html)
    with waiting("Reading the runs"):
        found = find_runs([resolve_run_folder(path).path if not path.is_absolute() else path for path in paths])
        sets = read_sets(found)
    if html is not None:
        from podium.html.page import write_page
        from podium.report.page import page_html

        write_page(html, page_html(sets, found.notes))
        print_status(f"The page is {html}")
    print_output(as_json, report_json(sets, found.notes), lambda to: print_sets(to, sets, found.notes))
