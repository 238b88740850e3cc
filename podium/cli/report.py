"""`podium report`: a report of local runs in the terminal, as JSON, and as an HTML page."""

from pathlib import Path
from typing import Annotated

import typer

from podium.cli.options import AsJson, show
from podium.core.console import errors


def report(
    paths: Annotated[
        list[Path],
        typer.Argument(
            help="Folders of runs (runs/SYSTEM/DATE_TIME/run_N), of sets (runs/SYSTEM/DATE_TIME), or of systems "
            "(runs/SYSTEM: its newest set).",
        ),
    ],
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Write the page there: one file that needs no network."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Tell how one's own runs went: outcome, speed, balance, phases; --html adds loss and accuracy as curves.

    Of finished runs, of those under way and of those that broke off. Changes nothing in the folders. Exit code 0
    however the runs went, 1 if the page cannot be written, 2 where a folder holds no run.
    """
    from podium.report.find import find
    from podium.report.load import read_sets
    from podium.report.table import as_json as report_json
    from podium.report.table import print_sets
    from podium.run.run_set import run_folder

    if html is not None:
        from podium.html.page import require_page

        require_page(html)
    found = find([run_folder(path).path if not path.is_absolute() else path for path in paths])
    sets = read_sets(found)
    if html is not None:
        from podium.html.page import write_page
        from podium.report.page import page_html

        write_page(html, page_html(sets, found.notes))
        errors.print(f"The page is {html}", markup=False, highlight=False)
    show(as_json, report_json(sets, found.notes), lambda to: print_sets(to, sets, found.notes))
