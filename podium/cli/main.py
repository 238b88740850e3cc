"""All commands with their options and help; groups of commands and longer ones have a module of their own."""

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
from podium.cli.options import AsJson, Lengths, NodeRank, Recipe, Settings, System, show
from podium.cli.rehearse import rehearse
from podium.cli.report import report
from podium.cli.study import study
from podium.cli.submit import submit
from podium.core.console import Console, errors, print_findings, print_text, tell
from podium.core.errors import Interrupted, PodiumError, UsageError
from podium.core.finding import has_errors
from podium.core.paths import require_own_packages
from podium.core.processes import leave_closed_terminal, stop_signals
from podium.core.text import cut

LONGEST_PATH = 200  # characters of one that are shown

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="MLPerf Training's BERT: time it on a system, and get a result file that the official checkers accept.",
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


@app.command(
    epilog="Example: [bold]podium run laptop --runs 10 --set optimizer.learning_rate=2e-3[/bold]",
)
def run(
    system: System,
    runs: Annotated[int, typer.Option("--runs", min=1, help="How many consecutive runs to make.")] = 1,
    recipe: Recipe = None,
    settings: Settings = None,
    resumed: Annotated[
        Path | None,
        typer.Option(
            "--resume",
            metavar="FOLDER",
            help="Go on with the run in this folder from its last checkpoint instead; of --set launch.KEY=VALUE alone.",
        ),
    ] = None,
    as_json: AsJson = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the commands that would be run, and start nothing.")
    ] = False,
    node_rank: NodeRank = 0,
    job_record: Annotated[
        Path | None,
        typer.Option(hidden=True, help="Given by docker/slurm.sub; see podium/run/requeue.py."),
    ] = None,
) -> None:
    """Time BERT on a system and write results/SYSTEM/bert/result_0.txt.

    The logs stay in runs/SYSTEM/DATE_TIME, and results/SYSTEM holds copies of the last set of which all runs are
    results and one succeeded. What an earlier `podium run` left open when it was killed is closed first. Exit code 1 if
    a run did not reach its target, 130 if it was interrupted (Ctrl-C, SIGTERM, a closed terminal), 143 if it has saved
    itself then, where `checkpoint` is set.
    """
    from podium.run.collect import FinishedRun
    from podium.run.progress import Progress
    from podium.run.requeue import JobRecord
    from podium.run.run_set import RunRequest, execute, run_folder
    from podium.run.summary import as_json as summary_json
    from podium.run.summary import print_table

    folder = run_folder(resumed) if resumed is not None else None
    job = JobRecord(job_record) if job_record is not None else None
    request = RunRequest(system, settings or [], recipe, runs, folder, node_rank, as_json, job).in_requeued_job()
    if dry_run:
        from podium.run.dry_run import commands

        print_text("\n".join(commands(request)))
        return
    finished: list[FinishedRun] = []
    try:
        for one in execute(request, Progress(errors)):
            finished.append(one)
    finally:
        if finished:
            show(as_json, summary_json(finished), lambda to: print_table(to, request.config, finished))
    shortfalls = [one.shortfall(request.config) for one in finished]
    for sentence in dict.fromkeys(filter(None, shortfalls)):
        tell(sentence)
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
    """Find out before a run what it would fail by: versions, GPUs, network, disks, data, description, rules.

    Takes a training step of one layer, and has all ranks of the system meet; in the container or on the nodes of the
    Slurm job that `podium run` would start. Exit code 1 if there is an error.
    """
    from podium.doctor.diagnose import as_json as findings_json
    from podium.doctor.diagnose import diagnose, summary
    from podium.run.progress import Progress

    findings = diagnose(system, recipe, settings or [], Progress(errors).note, as_json, node_rank)
    if findings is None:
        return
    show(as_json, findings_json(system, findings), lambda to: print_findings(to, findings, summary(findings)))
    if has_errors(findings):
        raise typer.Exit(1)


@app.command(
    epilog="Example: [bold]podium bench laptop --layers 4 --hidden 512 --set global_batch_size=48 --ablate[/bold]",
)
def bench(
    system: System,
    ablate: Annotated[bool, typer.Option("--ablate", help="Turn every optimisation off, one at a time.")] = False,
    against: Annotated[
        str | None, typer.Option(metavar="huggingface", help="Take turns with transformers' BERT, padded.")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps of each side that are counted.")] = 8,
    layers: Annotated[int | None, typer.Option(min=1, help="Another number of layers than the system's size.")] = None,
    hidden: Annotated[int | None, typer.Option(min=64, help="Another width, a multiple of 64.")] = None,
    vocabulary: Annotated[int | None, typer.Option(min=5, max=65_536, help="Words of the model.")] = None,
    lengths: Lengths = None,
    recipe: Recipe = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Time whole training steps on a system: sequences/s, and how far that is from what the machine can do.

    Needs no data: samples are synthetic, of Wikipedia's lengths. Also fits what a token, a pair of tokens and so on
    costs, for `podium balance` and `podium predict`, into systems/costs/SYSTEM.json; not where an option changes
    what the system's file says.
    """
    from podium.cli.bench import Options, keep_costs, measure, print_measured
    from podium.config.load import load_system
    from podium.launch.launch import require_torch
    from podium.run.progress import Progress

    config = load_system(system, recipe, settings or [])
    require_torch()
    options = Options(ablate, against, steps, layers, hidden, vocabulary, lengths)
    as_described = options.as_described and not (recipe or settings)
    measured = measure(config, options, as_described, Progress(errors))
    if as_described:
        tell(f"what a token and a pair of tokens cost is in {keep_costs(config, measured)}")
    show(as_json, measured, lambda to: print_measured(to, config, measured))


@app.command(
    epilog="Example: [bold]podium balance --ranks 1024 --local-batch 16[/bold]",
)
def balance(
    system: Annotated[
        str | None, typer.Argument(help="A name in systems/, or the path of a system's YAML file.", show_default=False)
    ] = None,
    ranks: Annotated[int | None, typer.Option(min=1, help="Without a system: how many ranks.")] = None,
    local_batch: Annotated[int | None, typer.Option(min=1, help="Without a system: samples of a rank a step.")] = None,
    ranks_per_node: Annotated[int | None, typer.Option(min=1, help="Without a system. Default: 8, or all.")] = None,
    counts: Annotated[
        str | None,
        typer.Option(
            metavar="equal|free", help="Without a system: whether `indexed` gives ranks equally many samples."
        ),
    ] = None,
    scan: Annotated[
        str | None,
        typer.Option(metavar="stride|snake", help="Without a system: how those that sort deal out. Default: theirs."),
    ] = None,
    strategy: Annotated[
        str, typer.Option(metavar="STRATEGY|all", help="The strategy to show. Default: all, not the recipe's alone.")
    ] = "all",
    lengths: Lengths = None,
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="Global batches to deal out. Default: of a million samples, from 20 to 400."),
    ] = None,
    packing: Annotated[
        bool, typer.Option("--packing", help="Also pack all samples ahead in every way, and show how full rows get.")
    ] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw it as an SVG file.")] = None,
    recipe: Recipe = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Show how evenly each strategy assigns samples to the ranks of a system, or to any number of ranks.

    Strategies are run on samples of Wikipedia's lengths; nothing is trained and no GPU is needed.
    """
    from podium.cli.balance import plot_balance, print_balance, print_packing
    from podium.planning.balance_report import Cluster, balance_report

    by_number = (ranks, local_batch)
    if system is not None and any(value is not None for value in (*by_number, ranks_per_node, counts, scan)):
        raise UsageError("give either a system or --ranks and --local-batch; a system's are changed by --set")
    if system is not None:
        from podium.config.load import load_system

        cluster = Cluster.of_system(load_system(system, recipe, settings or []))
    elif ranks is None or local_batch is None:
        raise UsageError("give a system, such as laptop, or both --ranks and --local-batch")
    elif recipe or settings:
        raise UsageError("--recipe and --set change a system's settings; give a system too")
    else:
        cluster = Cluster.of_ranks(ranks, local_batch, ranks_per_node, counts, scan)
    measured = balance_report(cluster, [] if strategy == "all" else [strategy], lengths, steps, packing)
    if plot is not None:
        plot_balance(cluster, measured, plot)
    show(as_json, measured, lambda to: print_balance(to, cluster, measured))
    if packing and not as_json:
        print_packing(Console(), measured)


@app.command(
    epilog="Example: [bold]podium predict h200_1x --scale 8,64,1024,4096 --plot curve.svg[/bold]",
)
def predict(
    system: System,
    recipe: Recipe = None,
    scale: Annotated[
        str | None, typer.Option(metavar="GPUS,…", help="Numbers of GPUs to draw the predicted time for.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the curve of --scale and the published points as SVG.")
    ] = None,
    cost: Annotated[
        Path | None,
        typer.Option(metavar="PRICES.yaml", help="Add what it costs, at hourly prices as docs/prices.yaml."),
    ] = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Predict time-to-train on a system before a run: its parts, an interval, and what is unsure.

    A step's cost is what `podium bench` measured there, or else that of the best published code, fitted on A100 runs,
    with Podium's own step as counted beside it; samples to target are interpolated between published batch sizes.
    """
    from podium.cli.predict import check_plot, plot_scale, predict_run, print_prediction
    from podium.config.load import load_system
    from podium.run.progress import Progress

    check_plot(scale, plot)
    config = load_system(system, recipe, settings or [])
    predicted = predict_run(config, scale, Progress(errors), cost)
    if plot is not None:
        plot_scale(predicted, config.system, plot)
    show(as_json, predicted, lambda to: print_prediction(to, config, predicted))


@app.command(
    epilog="Example: [bold]podium tune laptop --search laptop_lamb --search laptop_adamw --trials 40[/bold]",
)
def tune(
    system: System,
    searches: Annotated[
        list[str] | None,
        typer.Option("--search", metavar="NAME", help="In systems/search, or a YAML file. Default: all of the system."),
    ] = None,
    trials: Annotated[int | None, typer.Option(min=1, help="Of each search, instead of what its file says.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Trainings at once; they share the system's threads.")] = 1,
    repeats: Annotated[int, typer.Option(min=0, help="Of the best and of the shipped settings, other seeds.")] = 5,
    folder: Annotated[Path | None, typer.Option(help="To write to and go on from. Default: runs/SYSTEM/tune.")] = None,
    recipe: Recipe = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Search for settings that reach the target on fewer samples; several searches are compared on the same budget.

    Every trial is a training; results/ is left alone. Give the same command again to go on where it was broken off.
    Leaves report.json, tuning.svg and the best settings as YAML in the folder.
    """
    from podium.launch.launch import require_torch

    require_torch()  # before Optuna is imported, which comes with it

    from podium.run.progress import Progress
    from podium.tune.tune import Options, keep_report, plot_tuned, print_tuned
    from podium.tune.tune import as_json as tuned_json
    from podium.tune.tune import tune as tune_system

    def told(line: str) -> None:
        errors.print(line, markup=False, highlight=False)

    options = Options(tuple(searches or ()), trials, workers, repeats, folder)
    tuned = tune_system(system, recipe, settings or [], options, Progress(errors), told)
    keep_report(tuned)
    plot_tuned(tuned, tuned.folder / "tuning.svg")
    show(as_json, tuned_json(tuned), lambda to: print_tuned(to, tuned))


def main() -> None:
    """Run a command; a failure or an interruption is told as a sentence, with its exit code."""
    for number in (*stop_signals(), signal.SIGALRM):
        signal.signal(number, _interrupt)
    hook, sys.unraisablehook = sys.unraisablehook, _interrupt_again
    try:
        try:
            require_own_packages()
            _require_text(sys.argv[1:])
            app()
        finally:
            sys.stdout.flush()
    except (PodiumError, Interrupted, SystemError) as error:
        failure: BaseException | None = error
        while isinstance(failure, SystemError):  # by which numba replaces what a signal raises while it loads code
            failure = failure.__cause__
        if not isinstance(failure, PodiumError | Interrupted):
            raise
        tell(str(failure))
        sys.exit(failure.exit_code)
    except MemoryError:
        tell("there is not enough memory for this; see that the files are those that were meant")
        sys.exit(1)
    except RuntimeError as error:
        if "Symlink loop" not in str(error):  # as pathlib says it before Python 3.13
            raise
        tell(f"{error}; name another place")
        sys.exit(2)
    except OSError as error:
        if error.filename is not None:
            tell(f"{cut(os.fsdecode(error.filename), LONGEST_PATH)}: {error.strerror}; name another place")
            sys.exit(1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left over has nowhere to go
        if error.errno != errno.EPIPE:
            tell(f"the output cannot be written ({error.strerror})")
        sys.exit(1)
    finally:
        sys.unraisablehook = hook


def _require_text(arguments: Sequence[str]) -> None:
    """UsageError for an argument that is not UTF-8, which neither files nor a terminal could show."""
    for argument in arguments:
        if any("\ud800" <= character <= "\udfff" for character in argument):
            raise UsageError(
                f"the argument {cut(argument, LONGEST_PATH)} is not UTF-8; rename the file, or type it anew"
            )


def _interrupt(number: int, _: object) -> None:
    if number == signal.SIGHUP:
        leave_closed_terminal()
    raise Interrupted("interrupted")


def _interrupt_again(unraisable: "sys.UnraisableHookArgs") -> None:
    """Interrupt once more where the exception was lost, as in a callback of numba's while it loads code."""
    if isinstance(unraisable.exc_value, Interrupted):
        signal.setitimer(signal.ITIMER_REAL, 0.05)
    else:
        sys.__unraisablehook__(unraisable)
