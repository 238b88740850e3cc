"""`podium submit …`: describe a system, package its runs, and check a package before it is submitted to MLPerf."""

import json
from pathlib import Path
from typing import Annotated

import typer

from podium.cli.options import AsJson, System, show
from podium.core.console import Console, errors, print_json, progress_bar, tell

submit = typer.Typer(no_args_is_help=True, help="Describe systems, and make and check submissions to MLPerf.")


@submit.command(epilog="Example: [bold]podium submit describe laptop --out laptop.json[/bold]")
def describe(
    system: System,
    out: Annotated[Path | None, typer.Option(help="Write MLPerf's JSON of the system there.")] = None,
    fill: Annotated[
        bool, typer.Option("--fill", help="Take what is not stated from what this machine tells, and say so.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit code 1 where the machine contradicts the file.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compare a system's description with this machine, and write MLPerf's systems/NAME.json.

    Give it on a node of the system: it tells of the machine that it runs on.
    """
    from podium.config.load import load_system
    from podium.core.errors import attempt
    from podium.core.files import write_whole
    from podium.run.implementation import ask
    from podium.submission.check import print_fields
    from podium.submission.describe import as_json as fields_json
    from podium.submission.describe import compare, detect, differing, filled, stated, system_json

    config = load_system(system)
    device, fault = attempt(ask, config.implementation, "describe", [])
    if fault:
        tell(f"framework and GPUs cannot be told: {fault}")
    fields = compare(config, detect(device))
    description, taken = filled(config, fields) if fill else (stated(config), [])
    if as_json:
        print_json(fields_json(description, fields, taken))
    else:
        print_fields(Console(), config.system, fields)
    if taken:
        tell("these were not stated and are taken from this machine; to keep them, write them under description:")
    for name in taken:
        text = json.dumps(description[name], ensure_ascii=False)
        errors.print(f"  {name}: {text}", markup=False, highlight=False)
    for one in differing(fields):
        tell(f"warning: {one.name} is stated as {one.stated!r}, and this machine tells {one.detected!r}")
    if out is not None:
        write_whole(out, system_json(description))
    if strict and differing(fields):
        raise typer.Exit(1)


@submit.command(epilog="Example: [bold]podium submit package laptop --out submission --org Podium[/bold]")
def package(
    systems: Annotated[
        list[str],
        typer.Argument(
            help="Names in systems/ or paths of systems' YAML files, for the runs in results/SYSTEM; or sets of runs, "
            "runs/SYSTEM/DATE_TIME."
        ),
    ],
    out: Annotated[Path, typer.Option(help="A new folder; the package is the folder ORG in it.")],
    org: Annotated[str, typer.Option(help="The submitter's folder: description.submitter, as the logs have it.")],
    division: Annotated[
        str | None, typer.Option(metavar="closed|open", help="Refuse systems of the other division.")
    ] = None,
    ruleset_name: Annotated[str, typer.Option("--ruleset", help="The round's rules, such as 4.1.0.")] = "5.0.0",
    results: Annotated[
        Path | None, typer.Option(help="Instead of results/, which holds SYSTEM/bert; or a folder of logs, as a set's.")
    ] = None,
    runs: Annotated[Path | None, typer.Option(help="Instead of runs/, which holds SYSTEM's folders of runs.")] = None,
    allow_other_code: Annotated[
        bool,
        typer.Option(
            "--allow-other-code", help="Take the present commit where the runs' own is not known; the README says so."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make a package of ten runs of each system: results, descriptions, the code that made them.

    Of more than ten runs the window of ten consecutive ones at the median is taken. The logs are compared with what
    their runs recorded, and what was compared is printed. Refuses, with exit code 1 and the rule's name, whatever would
    be rejected; then nothing is left behind.
    """
    from podium.core.errors import UsageError
    from podium.mllog.rulesets import ruleset
    from podium.run.progress import Progress
    from podium.submission.check import check as check_path
    from podium.submission.check import packaged_json, print_packaged
    from podium.submission.package.build import Wish
    from podium.submission.package.build import package as make_package

    if division not in (None, "closed", "open"):
        raise UsageError(f"--division: found {division!r}, allowed is closed or open")
    wish = Wish(tuple(systems), out, org, ruleset(ruleset_name), division, results, runs, allow_other_code)
    made = make_package(wish, lambda path, rules: check_path(path, rules).findings, Progress(errors).note)
    show(as_json, packaged_json(made), lambda to: print_packaged(to, made))


@submit.command(epilog="Example: [bold]podium submit check path/to/ORG --ruleset 5.0.0[/bold]")
def check(
    path: Annotated[
        Path,
        typer.Argument(
            help="A package (ORG with systems/ and results/), a folder of packages, one system's results, a set of "
            "runs (runs/SYSTEM/DATE_TIME), one log, or a .zip, .tar, .tar.gz or .tar.xz of these."
        ),
    ],
    ruleset: Annotated[str, typer.Option(help="The rules of a round, 1.1.0 to 5.0.0.")] = "5.0.0",
    runs: Annotated[
        Path | None,
        typer.Option(
            help="Podium's own runs, such as runs/laptop: their logs must say what they were configured with."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check anybody's package: all official checkers on a copy of it, and what they let through.

    A verdict for every file, and what was found. Nothing in the package is written to, followed or executed. Exit code
    1 if there is an error: something for which the package would be rejected, or its score would be worth nothing.
    """
    from podium.mllog.rulesets import ruleset as named
    from podium.submission.check import as_json as report_json
    from podium.submission.check import check as check_path
    from podium.submission.check import print_report

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
    show(as_json, report_json(report), lambda to: print_report(to, report))
    if not report.accepted:
        raise typer.Exit(1)
