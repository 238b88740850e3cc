"""`podium submit …`: describes systems, and builds and checks submission packages for MLPerf."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from podium.cli import names
from podium.cli.framework import CommandGroup
from podium.cli.options import AsJson, System, print_output
from podium.core.console import Console, errors, print_json, print_message, print_note, progress_bar, waiting

if TYPE_CHECKING:
    from podium.core.finding import Finding
    from podium.mllog.rulesets import Ruleset

submit = CommandGroup(help="Describe systems, and build and check submissions to MLPerf.")


@submit.command(epilog="Example: [bold]podium submit describe laptop --out laptop.json[/bold]")
def describe(
    system: System,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write MLPerf's system description to this JSON file.")
    ] = None,
    fill: Annotated[
        bool,
        typer.Option(
            "--fill", help="Fill fields that are not stated with values detected on this machine, and list them."
        ),
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit code 1 if a stated field differs from the detected value.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compare a system's description with this machine, and write MLPerf's systems/NAME.json.

    Run it on a node of the system, since it detects the hardware and software of the machine that it runs on.
    """
    from podium.config.load import load_system, shown_path, system_path
    from podium.core.errors import attempt
    from podium.core.files import write_atomically
    from podium.run.implementation import call_entry_point
    from podium.run.run_set import RUNS
    from podium.submission.check import print_fields
    from podium.submission.describe import as_json as fields_json
    from podium.submission.describe import (
        compare,
        detect,
        differing_fields,
        fill_description,
        nodes_of_runs,
        require_complete,
        require_description_or_no_file,
        stated,
        system_json,
    )

    config = load_system(system)
    if out is not None:
        require_description_or_no_file(out)
    with waiting("Detecting this machine's hardware and software"):
        device, fault = attempt(call_entry_point, config.implementation, "describe", [])
        detected = detect(device)
    if fault:
        print_message(f"framework and GPUs cannot be detected: {fault}")
    fields = compare(config, detected, nodes_of_runs(config, RUNS))
    description, filled_names = fill_description(config, fields) if fill else (stated(config), [])
    if as_json:
        print_json(fields_json(description, fields, filled_names))
    else:
        print_fields(Console(), config.system, fields)
    if filled_names:
        print_message(
            "these fields were filled with values detected on this machine; to keep them, add them to description:"
        )
    for name in filled_names:
        text = json.dumps(description[name], ensure_ascii=False)
        errors.print(f"  {name}: {text}", markup=False, highlight=False)
    for field in differing_fields(fields):
        where = "by launch.nodes" if field.name == "number_of_nodes" else "on this machine"
        print_message(
            f"warning: {field.name} is stated as {field.stated!r}, and detected as {field.detected!r} {where}"
        )
    if out is not None:
        require_complete(shown_path(system_path(system)), description)
        write_atomically(out, system_json(description))
        print_note(f"MLPerf's description of {config.system} is in {out}")
    if strict and differing_fields(fields):
        raise typer.Exit(1)


@submit.command(
    epilog="Examples: [bold]podium submit package laptop --out submission --org Podium[/bold]; "
    "[bold]podium submit package logs/llama31_8b --description mine.json --code llama --ruleset 6.1.0 "
    "--out submission --org Podium[/bold]"
)
def package(
    systems: Annotated[
        list[str],
        typer.Argument(
            metavar="SYSTEM|LOGS",
            help="Names in systems/ or paths of systems' YAML files, whose runs are those in results/SYSTEM; or sets "
            "of runs, runs/SYSTEM/DATE_TIME. With --description: folders of logs by any framework, each with the "
            "result_*.txt (or without any, the *.txt and *.log) of one benchmark.",
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="A new folder. The package is the folder ORG in it.")],
    org: Annotated[
        str, typer.Option(help="The submitter, which names the package's folder: description.submitter in the logs.")
    ],
    division: Annotated[
        str | None, typer.Option(metavar="closed|open", help="Refuse systems of the other division.")
    ] = None,
    ruleset_name: Annotated[
        str | None,
        typer.Option(
            "--ruleset",
            metavar="VERSION",
            help="The version of MLPerf's rules: of Podium's runs 1.1.0 to 5.0.0, which include BERT, by default "
            "5.0.0; required with --description, 1.1.0 to 6.1.0.",
        ),
    ] = None,
    description: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Package folders of logs of the system that this file describes: NAME.json or NAME.yaml.",
        ),
    ] = None,
    code: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[BENCHMARK=]FOLDER",
            help="With --description: the code that made the runs, with a README; given several times where "
            "benchmarks have different code.",
        ),
    ] = None,
    results: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="The folder that contains SYSTEM/bert, or a folder of logs. Default: results/."
        ),
    ] = None,
    runs: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="The folder that contains the run folders of SYSTEM. Default: runs/."),
    ] = None,
    allow_other_code: Annotated[
        bool,
        typer.Option(
            "--allow-other-code",
            help="If the commit of the runs is not known, package the current one and state that in the README.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Build a submission package of Podium's runs of each system, or of logs of any benchmark by any framework.

    Of more runs than a result needs, ten of most benchmarks, the consecutive ones with the median score are used.
    The logs of Podium's runs are compared with the records of their runs, and the comparisons are printed; other logs
    are copied byte for byte. If the package would be rejected, the command prints the rule, exits with code 1 and
    leaves no package.
    """
    from podium.core.errors import UsageError
    from podium.mllog.rulesets import LATEST, bert_ruleset
    from podium.mllog.rulesets import ruleset as named
    from podium.run.progress import Progress
    from podium.submission.check import check as check_path
    from podium.submission.check import package_json, print_package
    from podium.submission.package.build import PackageRequest
    from podium.submission.package.build import package as make_package
    from podium.submission.package.from_logs import LogsRequest, package_logs

    if division not in (None, "closed", "open"):
        raise UsageError(f"--division: found {division!r}, allowed is closed or open")
    report_progress = Progress(errors).note

    def checker(path: Path, rules: "Ruleset") -> "Sequence[Finding]":
        return check_path(path, rules).findings

    if description is None:
        if code:
            raise UsageError("--code is of packages of logs; give --description too, or leave it out")
        request = PackageRequest(
            tuple(systems), out, org, bert_ruleset(ruleset_name or LATEST), division, results, runs, allow_other_code
        )
        made = make_package(request, checker, report_progress)
    else:
        if ruleset_name is None or not code:
            missing = "--ruleset" if ruleset_name is None else "--code"
            raise UsageError(f"{missing} is missing: a package of logs needs --description, --code and --ruleset")
        if results is not None or runs is not None or allow_other_code:
            raise UsageError("--results, --runs and --allow-other-code are of Podium's runs; leave --description out")
        of_logs = LogsRequest(
            tuple(map(Path, systems)), description, tuple(code), out, org, named(ruleset_name), division
        )
        made = package_logs(of_logs, checker, report_progress)
    print_output(as_json, package_json(made), lambda to: print_package(to, made))


@submit.command(epilog="Example: [bold]podium submit check path/to/ORG --ruleset 5.0.0[/bold]")
def check(
    path: Annotated[
        Path,
        typer.Argument(
            help="A package (ORG with systems/ and results/), a folder of packages, one system's results, a set of "
            "runs (runs/SYSTEM/DATE_TIME), one log, or a .zip, .tar, .tar.gz or .tar.xz of these."
        ),
    ],
    ruleset: Annotated[
        str | None,
        typer.Option(
            metavar="VERSION",
            help="The version of MLPerf's rules, 1.1.0 to 6.1.0. Default: that of the round that the path names, else "
            "of the logs' dates, else the newest with the benchmarks of the results.",
        ),
    ] = None,
    runs: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Run folders of Podium, such as runs/laptop, whose configurations are compared with the logs.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check a submission package by any submitter with all official checkers and with Podium's own checks.

    Prints a verdict for every file, and the findings. The checkers run on a copy; nothing in the package is modified,
    followed as a link, or executed. Exit code 1 if there is an error, for which the package would be rejected or its
    score would be invalid.
    """
    from podium.mllog.rulesets import ruleset as named
    from podium.submission.check import as_json as report_json
    from podium.submission.check import check as check_path
    from podium.submission.check import print_report

    rules = None if ruleset is None else named(ruleset)
    with progress_bar() as bar:
        task = bar.add_task("Checking logs", total=None)
        report = check_path(
            path,
            rules,
            on_start=lambda logs: bar.update(task, total=logs),
            on_checked=lambda logs: bar.advance(task, logs),
            runs=runs,
        )
    print_output(as_json, report_json(report), lambda to: print_report(to, report))
    if not report.accepted:
        raise typer.Exit(1)


@submit.command(
    epilog="Example: [bold]podium submit rcp --benchmark llama31_8b --batch-size 32 --samples 172032,184320[/bold]"
)
def rcp(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="PATH",
            help="Logs of the runs so far, or folders of them such as runs/SYSTEM/DATE_TIME, instead of --samples.",
        ),
    ] = None,
    benchmark: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            autocompletion=lambda incomplete: names.matching(names.benchmarks(), incomplete),
            help="MLPerf's name, such as llama31_8b. Default: the logs' benchmark.",
        ),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="The global batch size. Default: the logs'; without any, only the points.")
    ] = None,
    samples: Annotated[
        str | None,
        typer.Option(
            metavar="N,…",
            help="What the runs so far needed to the target, in the unit of the points, separated by commas; none for "
            "a run that did not converge.",
        ),
    ] = None,
    ruleset: Annotated[
        str | None,
        typer.Option(metavar="VERSION", help="The version of MLPerf's rules. Default: the newest with points."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print a benchmark's reference convergence points, and the chance that a set of runs passes their check.

    With a batch size: what a result is compared with, the probability that a set of runs passes the RCP check, the
    scaling factor to be expected with its 90% interval, and what the other runs must need on average to pass. The runs
    so far are part of the set; without any, the figures are for runs that converge as the reference. Exit code 1 if
    all runs of the set are given and it fails, or if the batch size is greater than those of all points.
    """
    from podium.submission.rcp_report import as_json as report_json
    from podium.submission.rcp_report import make_report, print_report

    report = make_report(paths or [], benchmark, batch_size, samples, ruleset)
    print_output(as_json, report_json(report), lambda to: print_report(to, report))
    if not report.accepted:
        raise typer.Exit(1)
