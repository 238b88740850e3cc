"""`podium report`: reports on local runs, as tables, as JSON and as an HTML page."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from podium.cli.options import AsJson, print_output
from podium.core.console import errors, print_status, waiting

if TYPE_CHECKING:
    from podium.report.find import FoundRuns


def report(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="FOLDER",
            help="Folders of runs (runs/SYSTEM/DATE_TIME/run_N), of sets of runs (runs/SYSTEM/DATE_TIME), of "
            "systems (runs/SYSTEM, for its newest set), or of sweeps (runs/SYSTEM/sweep, for all its sets).",
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

    Of several sets, a table has a row for each: the settings in which they differ, time-to-train, samples to target,
    and p of Welch's t-test against the first set that has runs which succeeded.

    Covers finished, running and failed runs, and changes nothing in their folders except with --log-to. Exit code 0
    whatever the outcome of the runs, 1 if the page cannot be written, 2 if a folder contains no run.
    """
    with waiting("Loading the report"):
        from podium.report.find import find_runs
        from podium.run.loggers import parse_loggers, require_packages
        from podium.run.run_set import resolve_run_folder

    names = parse_loggers(log_to)
    require_packages(names)
    if html is not None:
        from podium.html.page import require_page_or_no_file

        require_page_or_no_file(html)
    found = find_runs([resolve_run_folder(path).path if not path.is_absolute() else path for path in paths])
    write_report(found, html, as_json, loggers=names)


def write_report(
    found: "FoundRuns",
    html: Path | None,
    as_json: bool,
    extra: Mapping[str, Any] = MappingProxyType({}),
    loggers: Sequence[str] = (),
) -> None:
    """Print the report on these runs, as tables or as a JSON object with the keys of `extra`; write its page.

    Their metrics are copied to `loggers`.
    """
    with waiting("Loading the report"):
        from podium.report.load import read_sets
        from podium.report.table import as_json as report_json
        from podium.report.table import print_sets

    with waiting("Reading the runs"):
        sets = read_sets(found)
    if html is not None:
        from podium.html.page import write_page
        from podium.report.page import page_html

        write_page(html, page_html(sets, found.notes))
        print_status(f"The page is {html}")
    if loggers:
        from podium.config.run_folder import RunFolder
        from podium.run.metrics_export import export_finished
        from podium.run.progress import Progress

        for reported in (run for one in sets for run in one.runs):
            rates = {int(rate.samples): rate.sequences_per_second for rate in reported.rates}
            succeeded = bool(reported.totals)
            export_finished(RunFolder(reported.folder), loggers, rates, succeeded, Progress(errors).note)
    print_output(as_json, {**report_json(sets, found.notes), **extra}, lambda to: print_sets(to, sets, found.notes))
