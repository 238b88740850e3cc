"""All commands with their options and help. Command groups and longer commands are in separate modules.

A new command is registered by `app.command(…)(function)` or `app.add_typer(group, name=…)`, and is named in PANELS.
"""

import errno
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import typer

from podium.cli import names
from podium.cli.compare import compare
from podium.cli.config import config
from podium.cli.data import data
from podium.cli.framework import HELP_OPTIONS, CommandGroup, PodiumGroup, Quiet, Verbose, set_verbosity
from podium.cli.options import AsJson, Lengths, NodeRank, OptionalSystem, Recipe, Settings, System, print_output
from podium.cli.recipes import recipes
from podium.cli.rehearse import rehearse
from podium.cli.report import report
from podium.cli.study import study
from podium.cli.submit import submit
from podium.cli.sweep import sweep
from podium.cli.systems import systems
from podium.core.console import (
    Console,
    errors,
    print_findings,
    print_json,
    print_message,
    print_note,
    print_status,
    print_text,
    verbosity,
    waiting,
)
from podium.core.errors import (
    Interrupted,
    PodiumError,
    UsageError,
    clear_stop_signal,
    interruption_is_lost,
    raise_interrupted,
    record_stop_signal,
)
from podium.core.finding import has_errors
from podium.core.paths import require_podium_packages
from podium.core.processes import discard_closed_terminal_output, stop_signals
from podium.core.text import truncate

REPEAT_SECONDS = 0.05  # between two checks that an interruption has not been lost
MAX_PATH_LENGTH = 200  # characters of a path in an error message; longer ones are cut

# The order of commands in `podium --help`, by panel; as in the table of README.md.
PANELS: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        "Run": ("run", "sweep"),
        "Before a run": (
            *("systems", "recipes", "config", "doctor", "bench", "balance", "predict", "rehearse", "tune"),
        ),
        "After a run": ("report", "compare", "study"),
        "Data": ("data",),
        "Submission": ("submit",),
    }
)


class _TopLevel(PodiumGroup):
    """The commands of `podium` itself, in the order and the panels of PANELS; others follow under Commands."""

    def __init__(self, *, commands: Mapping[str, Any], **settings: Any) -> None:
        panels = {name: panel for panel, names_of_panel in PANELS.items() for name in names_of_panel}
        for name, command in commands.items():
            command.rich_help_panel = panels.get(name)
        known = {name: commands[name] for name in panels if name in commands}
        super().__init__(commands={**known, **commands}, **settings)


app = CommandGroup(
    cls=_TopLevel,
    add_completion=True,
    epilog="Example: [bold]podium run laptop[/bold]. [bold]podium COMMAND --help[/bold] has an example of each "
    "command. Exit codes: 0 done, 1 failed, 2 wrong usage, 130 after Ctrl-C, 143 after SIGTERM.",
)


def _print_version(requested: bool) -> None:
    if requested:
        from podium.cli.version import version_text

        print_text(version_text())
        raise typer.Exit


@app.callback(context_settings=dict(HELP_OPTIONS))
def podium(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print the versions of Podium, Python and PyTorch, and the commit of a clone.",
        ),
    ] = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Train BERT by the rules of MLPerf Training, and write result files that the official checkers accept."""
    verbosity.level = 0
    set_verbosity(verbose, quiet)


app.add_typer(data, name="data")
app.add_typer(submit, name="submit")
app.add_typer(systems, name="systems")
app.add_typer(recipes, name="recipes")
app.command(
    epilog="Example: [bold]podium compare training_results_v2.1 results --accelerator A100 --html page.html[/bold]",
)(compare)
app.command(
    epilog="Example: [bold]podium rehearse dgxa100_n128 --recipe indexed --set launch.nodes=512[/bold]",
)(rehearse)
app.command(epilog="Example: [bold]podium config laptop --recipe exchanged --set global_batch_size=32[/bold]")(config)
app.command(epilog="Example: [bold]podium report runs/laptop --html laptop.html[/bold]")(report)
app.command(epilog="Example: [bold]podium study buckets --out docs/pictures[/bold]")(study)
app.command(
    epilog="Example: [bold]podium sweep laptop --recipe indexed,random --set optimizer.learning_rate=1e-3,2e-3[/bold]",
)(sweep)


@app.command(
    epilog="Example: [bold]podium run laptop --runs 10 --set optimizer.learning_rate=2e-3[/bold]",
)
def run(
    system: System,
    runs: Annotated[int, typer.Option("--runs", min=1, help="Number of consecutive runs.")] = 1,
    recipe: Recipe = None,
    settings: Settings = None,
    resumed: Annotated[
        Path | None,
        typer.Option(
            "--resume",
            metavar="FOLDER",
            help="Resume the run in this folder from its last checkpoint. Only launch.KEY can be set with --set then.",
        ),
    ] = None,
    as_json: AsJson = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Print the commands that would be run, as in a shell, and what would fail here, without starting "
            "them. With --json: an object with argv, environment, settings and files.",
        ),
    ] = False,
    node_rank: NodeRank = 0,
    log_to: Annotated[
        str | None,
        typer.Option(
            "--log-to",
            metavar="LOGGER,…",
            help="Copy metrics and configuration to tensorboard, wandb, mlflow or several of them, while the run "
            "trains. Needs their packages; wandb stays offline unless you have given it a key.",
        ),
    ] = None,
    profile: Annotated[
        int | None,
        typer.Option(
            "--profile",
            metavar="STEPS",
            min=1,
            max=1000,
            help="Trace this number of steps, after the first ten, with torch.profiler into the run's folder. The run "
            "is slower, so its log is not a result.",
        ),
    ] = None,
    profile_all_ranks: Annotated[
        bool, typer.Option("--profile-all-ranks", help="With --profile: trace all ranks, not only the first.")
    ] = False,
    job_record: Annotated[
        Path | None,
        typer.Option(hidden=True, help="Set by docker/slurm.sub; see podium/run/requeue.py."),
    ] = None,
) -> None:
    """Train BERT on a system and write the result log results/SYSTEM/bert/result_0.txt.

    The logs stay in runs/SYSTEM/DATE_TIME. They are copied to results/SYSTEM if all runs of the set are valid results
    and at least one succeeded. Runs that an earlier, killed `podium run` left open are closed first.

    Exit code 1 if a run did not reach its target, 130 after Ctrl-C, and 143 after SIGTERM or when the terminal is
    closed. With the key `checkpoint` an interrupted run saves a checkpoint first, and the last message is the command
    that resumes it.
    """
    from podium.run.collect import FinishedRun
    from podium.run.loggers import parse_loggers
    from podium.run.observation import Observation
    from podium.run.progress import Progress
    from podium.run.requeue import JobRecord
    from podium.run.run_set import RunRequest, execute, resolve_run_folder
    from podium.run.summary import as_json as summary_json
    from podium.run.summary import failure_json, print_table

    folder = resolve_run_folder(resumed) if resumed is not None else None
    job = JobRecord(job_record) if job_record is not None else None
    if profile_all_ranks and profile is None:
        raise UsageError("--profile-all-ranks needs --profile STEPS")
    observation = Observation(parse_loggers(log_to), profile, profile_all_ranks)
    json_of_run = as_json and not dry_run
    request = RunRequest(
        system, settings or [], recipe, runs, folder, node_rank, json_of_run, job, observation
    ).in_requeued_job()
    for warning in request.warnings:
        print_message(f"warning: {warning}")
    if dry_run:
        from podium.run.dry_run import dry_run as plan

        planned = plan(request)
        print_output(as_json, planned.as_json(), lambda _: print_text(planned.text))
        return
    finished: list[FinishedRun] = []
    try:
        for finished_run in execute(request, Progress(errors)):
            finished.append(finished_run)
    except (PodiumError, Interrupted) as error:
        if as_json and node_rank == 0:
            print_json(failure_json(error, finished))
        elif finished:  # runs that have ended are reported even if a later one fails
            print_table(Console(), request.config, finished)
        raise
    if finished:
        print_output(as_json, summary_json(finished), lambda to: print_table(to, request.config, finished))
    shortfalls = [finished_run.shortfall(request.config) for finished_run in finished]
    for message in dict.fromkeys(filter(None, shortfalls)):
        print_message(message)
    if any(shortfalls):
        raise typer.Exit(1)


@app.command(
    epilog="Example: [bold]podium doctor laptop --set launch.processes_per_node=2[/bold]",
)
def doctor(
    system: System,
    recipe: Recipe = None,
    settings: Settings = None,
    as_json: AsJson = False,
    node_rank: NodeRank = 0,
) -> None:
    """Check before a run whether it would fail: versions, GPUs, network, disks, data, description, rules.

    Runs a training step of a one-layer model, and a rendezvous and collectives with all ranks of the system, in the
    container or the Slurm job that `podium run` would start. Exit code 1 if there is an error, 2 if the file or an
    option is not valid.
    """
    from podium.doctor.diagnose import as_json as findings_json
    from podium.doctor.diagnose import diagnose, is_invalid, summary
    from podium.run.progress import Progress

    findings = diagnose(system, recipe, settings or [], Progress(errors).note, as_json, node_rank)
    if findings is None:
        return
    print_output(as_json, findings_json(system, findings), lambda to: print_findings(to, findings, summary(findings)))
    if has_errors(findings):
        raise typer.Exit(UsageError.exit_code if is_invalid(findings) else 1)


@app.command(
    epilog="Example: [bold]podium bench laptop --layers 4 --hidden 512 --set global_batch_size=48 --ablate[/bold]",
)
def bench(
    system: System,
    ablate: Annotated[
        bool, typer.Option("--ablate", help="Also time steps with each optimisation turned off in turn.")
    ] = False,
    baseline: Annotated[
        str | None,
        typer.Option(metavar="huggingface", help="Also time Hugging Face's BERT, on padded batches, in turn."),
    ] = None,
    former_baseline: Annotated[
        str | None, typer.Option("--against", hidden=True, help="The former name of --baseline.")
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Number of timed steps of each variant. Default: 8.")] = None,
    rounds: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Turns of each variant, which the steps are spread over. Default: 3, or 1 without other variants.",
        ),
    ] = None,
    layers: Annotated[
        int | None, typer.Option(min=1, help="Number of layers. Default: that of the system's model size.")
    ] = None,
    hidden: Annotated[
        int | None,
        typer.Option(min=64, help="Hidden size, a multiple of 64. Default: that of the system's model size."),
    ] = None,
    vocabulary: Annotated[
        int | None,
        typer.Option(min=5, max=65_536, help="Vocabulary size. Default: that of the system's model size."),
    ] = None,
    lengths: Lengths = None,
    roofline: Annotated[
        bool,
        typer.Option(
            "--roofline",
            help="Count the bytes and FLOPs of every kernel of a step, and their time at assumed rates of a GPU. Runs "
            "nothing and needs no GPU.",
        ),
    ] = False,
    gpu: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="With --roofline: the GPU, such as h200 or a100. Default: the system's."),
    ] = None,
    recipe: Recipe = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Time full training steps on a system: sequences/s, and the share of the machine's peak FLOP/s.

    Needs no data: samples are synthetic, with Wikipedia's lengths. Unless an option changes the system's model or
    settings, also fits the time for each token, pair of tokens and so on, and writes these step costs with the machine
    to runs/SYSTEM/costs.json, for `podium balance` and `podium predict`.
    """
    from podium.cli.bench import (
        BenchOptions,
        count,
        load_warning,
        measure,
        print_count,
        print_timings,
        require_all_sides,
        write_costs,
    )
    from podium.config.load import load_system
    from podium.launch.launch import require_torch
    from podium.run.progress import Progress

    config = load_system(system, recipe, settings or [])
    require_torch()
    options = BenchOptions(ablate, baseline or former_baseline, steps, layers, hidden, vocabulary, lengths, rounds)
    options.require_valid()
    if roofline:
        counted = count(config, options, gpu, Progress(errors))
        print_output(as_json, counted, lambda to: print_count(to, config, counted))
        return
    if gpu is not None:
        raise UsageError("--gpu names the GPU that --roofline counts for; steps are timed on this machine's devices")
    fit_costs = options.uses_system_model and not (recipe or settings)
    measured = measure(config, options, fit_costs, Progress(errors))
    if fit_costs and "step_costs" in measured:
        print_note(f"the fitted step costs are in {write_costs(config, measured)}")
    print_output(as_json, measured, lambda to: print_timings(to, config, measured))
    if (warning := load_warning(measured)) is not None:
        print_message(warning)
    require_all_sides(measured)


@app.command(
    epilog="Example: [bold]podium balance --ranks 1024 --local-batch 16[/bold]",
)
def balance(
    system: OptionalSystem = None,
    ranks: Annotated[int | None, typer.Option(min=1, help="Without a system: the number of ranks.")] = None,
    local_batch: Annotated[
        int | None, typer.Option(min=1, help="Without a system: the number of samples of a rank in a step.")
    ] = None,
    ranks_per_node: Annotated[
        int | None,
        typer.Option(
            min=1, help="Without a system: the number of ranks on a node. Default: 8, or all if not divisible."
        ),
    ] = None,
    counts: Annotated[
        str | None,
        typer.Option(
            metavar="equal|free",
            help="Without a system: whether `indexed` assigns the same number of samples to every rank.",
        ),
    ] = None,
    scan: Annotated[
        str | None,
        typer.Option(
            metavar="stride|snake",
            help="Without a system: the order in which strategies that sort assign samples to ranks. Default: the "
            "strategy's own.",
        ),
    ] = None,
    strategy: Annotated[
        str, typer.Option(metavar="STRATEGY|all", help="The strategy to evaluate, whatever the recipe uses.")
    ] = "all",
    lengths: Lengths = None,
    steps: Annotated[
        int | None,
        typer.Option(
            min=1, help="Number of global batches to assign. Default: those of a million samples, between 20 and 400."
        ),
    ] = None,
    packing: Annotated[
        bool,
        typer.Option(
            "--packing", help="Also pack the whole dataset with every method, and show how full the rows are."
        ),
    ] = False,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the chart to this SVG file.")] = None,
    recipe: Recipe = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Show how evenly each strategy assigns samples to the ranks of a system, or to any number of ranks.

    The strategies are run on samples of Wikipedia's lengths. Nothing is trained and no GPU is needed.
    """
    with waiting("Loading the strategies"):
        from podium.cli.balance import check_plot, plot_balance, print_balance, print_packing
        from podium.planning.balance_report import Cluster, balance_report

    check_plot(plot)
    cluster_options = (ranks, local_batch, ranks_per_node, counts, scan)
    if system is not None and any(value is not None for value in cluster_options):
        raise UsageError("give either a system or --ranks and --local-batch; change a system's settings with --set")
    if system is not None:
        from podium.config.load import load_system

        cluster = Cluster.of_system(load_system(system, recipe, settings or []))
    elif ranks is None or local_batch is None:
        raise UsageError("give a system, such as laptop, or both --ranks and --local-batch")
    elif recipe or settings:
        raise UsageError("--recipe and --set change a system's settings; give a system too")
    else:
        cluster = Cluster.of_ranks(ranks, local_batch, ranks_per_node, counts, scan)
    with waiting("Assigning samples to ranks"):
        result = balance_report(cluster, [] if strategy == "all" else [strategy], lengths, steps, packing)
    if plot is not None:
        plot_balance(cluster, result, plot)
    print_output(as_json, result, lambda to: print_balance(to, cluster, result))
    if packing and not as_json:
        print_packing(Console(), result)


@app.command(
    epilog="Example: [bold]podium predict h200_1x --scale 8,64,1024,4096 --plot curve.svg[/bold]",
)
def predict(
    system: System,
    recipe: Recipe = None,
    scale: Annotated[
        str | None, typer.Option(metavar="GPUS,…", help="Also predict the time for these numbers of GPUs.")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw the curve of --scale and the published results to this SVG file."),
    ] = None,
    cost: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Add the cost of the run, by the prices in this file (see docs/prices.yaml)."
        ),
    ] = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Predict time-to-train on a system before a run: its parts, an interval, and the uncertainties.

    The time of a step is what `podium bench` measured on the system. Without a measurement it is that of the best
    published code, fitted on A100 runs, and the estimate for Podium's step is printed too. Samples to target are
    interpolated between published batch sizes.
    """
    with waiting("Loading the model of time-to-train"):
        from podium.cli.predict import check_plot, plot_scale, predict_run, print_prediction
        from podium.config.load import resolve_system
        from podium.run.progress import Progress

    check_plot(scale, plot)
    loaded = resolve_system(system, recipe, settings or [])
    config = loaded.config
    predicted = predict_run(config, scale, Progress(errors), cost, loaded.origins.locate)
    if plot is not None:
        plot_scale(predicted, config.system, plot)
    print_output(as_json, predicted, lambda to: print_prediction(to, config, predicted))


@app.command(
    epilog="Example: [bold]podium tune laptop --search laptop_lamb --search laptop_adamw --trials 40[/bold]",
)
def tune(
    system: System,
    searches: Annotated[
        list[str] | None,
        typer.Option(
            "--search",
            metavar="NAME|FILE",
            autocompletion=lambda incomplete: names.matching(names.searches(), incomplete),
            help="A search space: a name in systems/search or a YAML file. May be repeated. Default: all of a system.",
        ),
    ] = None,
    trials: Annotated[
        int | None, typer.Option(min=1, help="Number of trials of each search. Default: that of its file.")
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, help="Number of concurrent trials, which share the system's threads.")
    ] = 1,
    repeats: Annotated[
        int, typer.Option(min=0, help="Repeats, with other seeds, of the best and of the shipped settings.")
    ] = 5,
    folder: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="The folder to write to and to resume from. Default: runs/SYSTEM/tune."),
    ] = None,
    recipe: Recipe = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Search for hyper-parameters that reach the target with fewer samples.

    Several searches are compared on the same budget. Every trial is a training run; results/ is not changed. Run the
    same command again to resume after an interruption. Writes report.json, tuning.svg and the best settings as YAML to
    the folder.
    """
    from podium.launch.launch import require_torch

    require_torch()  # before Optuna is imported, which comes with it

    from podium.run.progress import Progress
    from podium.tune.tune import Options, plot_tuned, print_tuned, write_tune_report
    from podium.tune.tune import as_json as tuned_json
    from podium.tune.tune import tune as tune_system

    options = Options(tuple(searches or ()), trials, workers, repeats, folder)
    tuned = tune_system(system, recipe, settings or [], options, Progress(errors), print_status)
    write_tune_report(tuned)
    plot_tuned(tuned, tuned.folder / "tuning.svg")
    print_output(as_json, tuned_json(tuned), lambda to: print_tuned(to, tuned))


def main() -> None:
    """Run the command of sys.argv; print an error or an interruption as one line and exit with its exit code."""
    clear_stop_signal()
    for number in stop_signals():
        signal.signal(number, _interrupt)
    signal.signal(signal.SIGALRM, _repeat_lost_interrupt)
    hook, sys.unraisablehook = sys.unraisablehook, _print_unraisable
    try:
        try:
            require_podium_packages()
            _require_utf8(sys.argv[1:])
            app()
        finally:
            sys.stdout.flush()
    except (PodiumError, Interrupted, SystemError) as error:
        failure: BaseException | None = error
        while isinstance(failure, SystemError):  # numba wraps what a signal handler raises while it loads code
            failure = failure.__cause__
        if not isinstance(failure, PodiumError | Interrupted):
            raise
        print_message(str(failure))
        sys.exit(failure.exit_code)
    except MemoryError:
        print_message("out of memory; check that the command was given the right files")
        sys.exit(1)
    except RuntimeError as error:
        if "Symlink loop" not in str(error):  # pathlib's message before Python 3.13
            raise
        print_message(f"{error}; name another path")
        sys.exit(2)
    except OSError as error:
        if error.filename is not None:
            print_message(
                f"{truncate(os.fsdecode(error.filename), MAX_PATH_LENGTH)}: {error.strerror}; name another path"
            )
            sys.exit(1)
        # Python flushes standard output again at exit; what is left in its buffer goes to /dev/null then.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno != errno.EPIPE:  # a reader such as `head` that has closed the pipe is not an error
            print_message(f"the output cannot be written ({error.strerror})")
        sys.exit(1)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.unraisablehook = hook


def _require_utf8(arguments: Sequence[str]) -> None:
    """UsageError for an argument that is not UTF-8 and so could be written neither to files nor to a terminal."""
    for argument in arguments:
        # Python decodes bytes of argv that are not UTF-8 to lone surrogates (PEP 383).
        if any("\ud800" <= character <= "\udfff" for character in argument):
            raise UsageError(
                f"the argument {truncate(argument, MAX_PATH_LENGTH)} is not UTF-8; rename the file, or type it again"
            )


def _interrupt(number: int, _: object) -> None:
    record_stop_signal(number)
    if number == signal.SIGHUP:
        discard_closed_terminal_output()
    signal.setitimer(signal.ITIMER_REAL, REPEAT_SECONDS)
    raise_interrupted()


def _repeat_lost_interrupt(_: int, __: object) -> None:
    """Interrupt again if Interrupted was discarded, as by a library that ignores whatever an optional import raises.

    While it propagates, and Podium ends processes and closes logs, it is only checked again.
    """
    signal.setitimer(signal.ITIMER_REAL, REPEAT_SECONDS)
    if interruption_is_lost():
        raise_interrupted()


def _print_unraisable(unraisable: "sys.UnraisableHookArgs") -> None:
    """Print an exception that cannot propagate, such as one in a callback of numba; Interrupted is repeated instead."""
    if not isinstance(unraisable.exc_value, Interrupted):
        sys.__unraisablehook__(unraisable)
