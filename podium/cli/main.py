"""All commands with their options and help. Command groups and longer commands are in separate modules."""

import errno
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from podium.cli.compare import compare
from podium.cli.data import data
from podium.cli.options import AsJson, Lengths, NodeRank, Recipe, Settings, System, print_output
from podium.cli.rehearse import rehearse
from podium.cli.report import report
from podium.cli.study import study
from podium.cli.submit import submit
from podium.cli.sweep import sweep
from podium.core.console import Console, errors, print_findings, print_message, print_text
from podium.core.errors import Interrupted, PodiumError, UsageError
from podium.core.finding import has_errors
from podium.core.paths import require_podium_packages
from podium.core.processes import discard_closed_terminal_output, stop_signals
from podium.core.text import truncate

MAX_PATH_LENGTH = 200  # characters of a path in an error message; longer ones are cut

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Train BERT by the rules of MLPerf Training, and write result files that the official checkers accept.",
)
app.add_typer(data, name="data")
app.add_typer(submit, name="submit")
app.command(
    epilog="Example: [bold]podium compare training_results_v2.1 results --accelerator A100 --html page.html[/bold]",
)(compare)
app.command(
    epilog="Example: [bold]podium rehearse dgxa100_n128 --recipe indexed --set launch.nodes=512[/bold]",
)(rehearse)
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
        bool, typer.Option("--dry-run", help="Print the commands that would be run, without starting them.")
    ] = False,
    node_rank: NodeRank = 0,
    job_record: Annotated[
        Path | None,
        typer.Option(hidden=True, help="Set by docker/slurm.sub; see podium/run/requeue.py."),
    ] = None,
) -> None:
    """Train BERT on a system and write the result log results/SYSTEM/bert/result_0.txt.

    The logs stay in runs/SYSTEM/DATE_TIME. They are copied to results/SYSTEM if all runs of the set are valid results
    and at least one succeeded. Runs that an earlier, killed `podium run` left open are closed first. Exit code 1 if a
    run did not reach its target, 130 if it was interrupted (Ctrl-C, SIGTERM, a closed terminal), 143 if it was
    interrupted and has saved a checkpoint, which needs the key `checkpoint`.
    """
    from podium.run.collect import FinishedRun
    from podium.run.progress import Progress
    from podium.run.requeue import JobRecord
    from podium.run.run_set import RunRequest, execute, resolve_run_folder
    from podium.run.summary import as_json as summary_json
    from podium.run.summary import print_table

    folder = resolve_run_folder(resumed) if resumed is not None else None
    job = JobRecord(job_record) if job_record is not None else None
    request = RunRequest(system, settings or [], recipe, runs, folder, node_rank, as_json, job).in_requeued_job()
    if dry_run:
        from podium.run.dry_run import commands

        print_text("\n".join(commands(request)))
        return
    finished: list[FinishedRun] = []
    try:
        for finished_run in execute(request, Progress(errors)):
            finished.append(finished_run)
    finally:  # runs that have ended are reported even if a later one fails
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
    container or the Slurm job that `podium run` would start. Exit code 1 if there is an error.
    """
    from podium.doctor.diagnose import as_json as findings_json
    from podium.doctor.diagnose import diagnose, summary
    from podium.run.progress import Progress

    findings = diagnose(system, recipe, settings or [], Progress(errors).note, as_json, node_rank)
    if findings is None:
        return
    print_output(as_json, findings_json(system, findings), lambda to: print_findings(to, findings, summary(findings)))
    if has_errors(findings):
        raise typer.Exit(1)


@app.command(
    epilog="Example: [bold]podium bench laptop --layers 4 --hidden 512 --set global_batch_size=48 --ablate[/bold]",
)
def bench(
    system: System,
    ablate: Annotated[
        bool, typer.Option("--ablate", help="Also time steps with each optimisation turned off in turn.")
    ] = False,
    against: Annotated[
        str | None,
        typer.Option(metavar="huggingface", help="Also time Hugging Face's BERT, on padded batches, in turn."),
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
    settings, also fits the time for each token, pair of tokens and so on, and writes these step costs to
    systems/costs/SYSTEM.json, for `podium balance` and `podium predict`.
    """
    from podium.cli.bench import (
        BenchOptions,
        count,
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
    options = BenchOptions(ablate, against, steps, layers, hidden, vocabulary, lengths, rounds)
    if roofline:
        counted = count(config, options, gpu, Progress(errors))
        print_output(as_json, counted, lambda to: print_count(to, config, counted))
        return
    if gpu is not None:
        raise UsageError("--gpu names the GPU that --roofline counts for; steps are timed on this machine's devices")
    fit_costs = options.uses_system_model and not (recipe or settings)
    measured = measure(config, options, fit_costs, Progress(errors))
    if fit_costs and "step_costs" in measured:
        print_message(f"the fitted step costs are in {write_costs(config, measured)}")
    print_output(as_json, measured, lambda to: print_timings(to, config, measured))
    require_all_sides(measured)


@app.command(
    epilog="Example: [bold]podium balance --ranks 1024 --local-batch 16[/bold]",
)
def balance(
    system: Annotated[
        str | None, typer.Argument(help="A name in systems/, or the path of a system's YAML file.", show_default=False)
    ] = None,
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
    plot: Annotated[Path | None, typer.Option(help="Draw the chart to this SVG file.")] = None,
    recipe: Recipe = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Show how evenly each strategy assigns samples to the ranks of a system, or to any number of ranks.

    The strategies are run on samples of Wikipedia's lengths. Nothing is trained and no GPU is needed.
    """
    from podium.cli.balance import plot_balance, print_balance, print_packing
    from podium.planning.balance_report import Cluster, balance_report

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
        Path | None, typer.Option(help="Draw the curve of --scale and the published results to this SVG file.")
    ] = None,
    cost: Annotated[
        Path | None,
        typer.Option(
            metavar="PRICES.yaml", help="Add the cost of the run, by the prices in this file (see docs/prices.yaml)."
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
    from podium.cli.predict import check_plot, plot_scale, predict_run, print_prediction
    from podium.config.load import load_system
    from podium.run.progress import Progress

    check_plot(scale, plot)
    config = load_system(system, recipe, settings or [])
    predicted = predict_run(config, scale, Progress(errors), cost)
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
            metavar="NAME",
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
        Path | None, typer.Option(help="The folder to write to and to resume from. Default: runs/SYSTEM/tune.")
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

    def report_line(line: str) -> None:
        errors.print(line, markup=False, highlight=False)

    options = Options(tuple(searches or ()), trials, workers, repeats, folder)
    tuned = tune_system(system, recipe, settings or [], options, Progress(errors), report_line)
    write_tune_report(tuned)
    plot_tuned(tuned, tuned.folder / "tuning.svg")
    print_output(as_json, tuned_json(tuned), lambda to: print_tuned(to, tuned))


def main() -> None:
    """Run the command of sys.argv; print an error or an interruption as one line and exit with its exit code."""
    for number in (*stop_signals(), signal.SIGALRM):
        signal.signal(number, _interrupt)
    hook, sys.unraisablehook = sys.unraisablehook, _repeat_lost_interrupt
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
    if number == signal.SIGHUP:
        discard_closed_terminal_output()
    raise Interrupted("interrupted")


def _repeat_lost_interrupt(unraisable: "sys.UnraisableHookArgs") -> None:
    """Interrupt again, by SIGALRM, if Interrupted was raised where it cannot propagate, as in a callback of numba."""
    if isinstance(unraisable.exc_value, Interrupted):
        # Not raised here: in this hook it would be lost as well. The alarm comes when the callback has returned.
        signal.setitimer(signal.ITIMER_REAL, 0.05)
    else:
        sys.__unraisablehook__(unraisable)
