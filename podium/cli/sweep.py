"""`podium sweep`: sets of runs for all combinations of recipes and settings."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from podium.cli.options import AsJson, System, print_output
from podium.core.console import errors, number_table, print_message, print_note
from podium.core.errors import Interrupted, PodiumError, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from podium.run.sweep import Sweep


def sweep(
    system: System,
    recipes: Annotated[
        str | None,
        typer.Option(
            "--recipe", metavar="RECIPE,…", help="Training recipes, instead of the one that the system's file names."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE,…",
            help="Values of a setting, such as optimizer.learning_rate=1e-3,2e-3. A list is one value: KEY=[A,B]; so "
            "is a text in quotes.",
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option("--seeds", metavar="N", min=1, help="Runs of each combination, with the seeds 0 to N - 1.")
    ] = 3,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FOLDER", help="Folder of the runs, also to resume from. Default: runs/SYSTEM/sweep."
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Write an HTML page of the report, as `podium report` does."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the combinations and what is finished, without starting a run.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run every combination of recipes and settings with the same seeds, and report on them in one table.

    Combinations are resolved first: if one is not valid, nothing is started. Run the same command again to resume after
    an interruption; finished runs are skipped, and further values or seeds can be added. A run that fails is reported,
    and made again by the next such command. The runs stay in FOLDER, are marked as no results, and never change
    results/. Exit code 1 if a run failed, 0 if all finished, whether or not they reached their target.
    """
    from podium.run.progress import Progress
    from podium.run.sweep import SweepRequest, plan_sweep, run_sweep, sweep_json

    names = [] if recipes is None else [name.strip() for name in recipes.split(",")]
    if not all(names):
        raise UsageError(f"--recipe {recipes}: a name is empty; separate recipes by single commas")
    planned = plan_sweep(SweepRequest(system, names, settings or [], seeds, out))
    messages = [*planned.messages, *_unnamed_differences(planned)]
    for message in messages:
        print_note(message)
    if dry_run:
        print_output(as_json, sweep_json(planned), lambda to: print_plan(to, planned))
        return
    if html is not None:
        from podium.html.page import require_page_or_no_file

        require_page_or_no_file(html)
    from podium.launch.launch import require_torch

    require_torch()
    failures = list[dict[str, Any]]()
    try:
        for one, seed, result in run_sweep(planned, Progress(errors)):
            if isinstance(result, PodiumError):
                failures.append({"set": one.name, "seed": seed, "message": str(result)})
                print_message(f"{one.name}, seed {seed}: failed: {result}")
    except Interrupted as error:
        left = planned.missing
        raise Interrupted(
            f"{error}; {planned.total - left} of {planned.total} runs are finished, and the same command makes the "
            f"other {left}"
        ) from None
    _report(planned, failures, html, as_json)
    if failures:
        raise typer.Exit(1)


def print_plan(console: "Console", planned: "Sweep") -> None:
    """Print the combinations with the number of their finished runs."""
    count = len(planned.sets)
    table = number_table(f"{count} {'set' if count == 1 else 'sets'} in {planned.folder}", "set", "finished", "to run")
    for one in planned.sets:
        table.add_row(one.name, str(len(one.finished)), str(len(one.missing)))
    console.print(table)


def _unnamed_differences(planned: "Sweep") -> "Iterator[str]":
    """Yield a note if the sets differ in settings that the command does not give, such as a recipe's optimizer."""
    from podium.report.load import flatten
    from podium.report.run import SETTINGS, format_setting
    from podium.report.sets import differing_keys

    settings = [dict(flatten(one.config.model_dump(mode="json", by_alias=True), "")) for one in planned.sets]
    named = planned.named_keys
    keys = [key for key in differing_keys(settings) if not any(f"{key}.".startswith(f"{one}.") for one in named)]
    if keys:
        found = (
            f"{SETTINGS.get(key, key)} ({', '.join(dict.fromkeys(format_setting(one.get(key)) for one in settings))})"
            for key in keys
        )
        yield f"besides what the command gives, the sets differ in {'; '.join(found)}; --set gives them one value"


def _report(planned: "Sweep", failures: list[dict[str, Any]], html: Path | None, as_json: bool) -> None:
    """Report on the sets that have runs, as `podium report` does."""
    from podium.cli.report import write_report
    from podium.report.find import find_runs, has_runs
    from podium.run.sweep import sweep_json

    folders = [one.folder for one in planned.sets if has_runs(one.folder)]
    extra = {"sweep": {**sweep_json(planned), "failures": failures}}
    if folders:
        write_report(find_runs(folders), html, as_json, extra)
    elif as_json:
        print_output(as_json, extra, lambda to: None)
