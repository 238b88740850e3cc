"""`podium report`: reports on local runs, as tables, as JSON and as an HTML page."""

from pathlib import Path
from typing import Annotated

import typer

from podium.cli.options import AsJson, print_output
from podium.core.console import errors


def report(
    paths: Annotated[
        list[Path],
        typer.Argument(
            help="Folders of runs (runs/SYSTEM/DATE_TIME/run_N), of sets of runs (runs/SYSTEM/DATE_TIME), or of "
            "systems (runs/SYSTEM, for its newest set).",
        ),
    ],
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Write an HTML page that needs no network connection."),
    ] = None,
    log_to: Annotated[
        str | None,
        typer.Option(
            "--log-to",
            metavar="LOGGER,…",
            help="Copy the metrics of each run to tensorboard, wandb, mlflow or several of them, as `podium run "
            "--log-to` does while it trains.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Report on local runs: outcome, speed, balance and phases; --html adds curves of loss and accuracy.

    Covers finished, running and failed runs, and changes nothing in their folders except with --log-to.

    Exit code 0 whatever the outcome of
    the runs, 1 if the page cannot be written, 2 if a folder contains no run.
    """
    from podium.config.run_folder import RunFolder
    from podium.report.find import find_runs
    from podium.report.load import read_sets
    from podium.report.table import as_json as report_json
    from podium.report.table import print_sets
    from podium.run.loggers import parse_loggers, require_packages
    from podium.run.progress import Progress
    from podium.run.run_set import resolve_run_folder

    names = parse_loggers(log_to)
    require_packages(names)
    if html is not None:
        from podium.html.page import require_page_or_no_file

        require_page_or_no_file(html)
    found = find_runs([resolve_run_folder(path).path if not path.is_absolute() else path for path in paths])
    sets = read_sets(found)
    if html is not None:
        from podium.html.page import write_page
        from podium.report.page import page_html

        write_page(html, page_html(sets, found.notes))
        errors.print(f"The page is {html}", markup=False, highlight=False)
    if names:
        from podium.run.metrics_export import export_finished

        for reported in (run for one in sets for run in one.runs):
            rates = {int(rate.samples): rate.sequences_per_second for rate in reported.rates}
            succeeded = bool(reported.totals)
            export_finished(RunFolder(reported.folder), names, rates, succeeded, Progress(errors).note)
    print_output(as_json, report_json(sets, found.notes), lambda to: print_sets(to, sets, found.notes))
