"""The command line. Each command says what it does in one place and leaves the doing to a module of its own."""

import json
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.errors import PodiumError, WorkError
from podium.console import errors, tell
from podium.data_cli import data

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="MLPerf Training's BERT: time it on a system, and get a result file that the official checkers accept.",
)
app.add_typer(data, name="data")


@app.command(
    epilog="Example: [bold]podium run laptop --runs 10 --set optimizer.learning_rate=2e-3[/bold]",
)
def run(
    system: Annotated[str, typer.Argument(help="A name in systems/, or the path of a system's YAML file.")],
    runs: Annotated[int, typer.Option("--runs", min=1, help="How many consecutive runs to make.")] = 1,
    recipe: Annotated[str | None, typer.Option(help="A published way of training instead of the system's own.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a setting, such as launch.processes_per_node=2."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Time BERT on a system and write results/SYSTEM/bert/result_0.txt.

    Earlier results of the system are moved to this set's folder under runs/. Exit code 1 if a run did not reach its
    target.
    """
    from podium.config import load_system
    from podium.progress import Progress
    from podium.report import as_json as report_json
    from podium.report import print_report
    from podium.running import FinishedRun, run_set

    config = load_system(system, recipe, settings or [])
    finished: list[FinishedRun] = []
    try:
        for one in run_set(config, runs, Progress(errors)):
            finished.append(one)
    finally:
        if finished and as_json:
            print(json.dumps(report_json(finished), indent=2))
        elif finished:
            print_report(Console(), config, finished)
    as_asked = config.target_accuracy is None or all(one.reached_target for one in finished)
    if not as_asked:
        tell(
            f"the target accuracy of {config.target_accuracy} was not reached within max_samples {config.max_samples}, "
            "so the log says aborted"
        )
    if not as_asked or not all(one.compliant for one in finished):
        raise typer.Exit(1)


@app.command(
    epilog="Example: [bold]podium bench laptop --layers 4 --hidden 512 --set global_batch_size=48 --ablate[/bold]",
)
def bench(
    system: Annotated[str, typer.Argument(help="A name in systems/, or the path of a system's YAML file.")],
    ablate: Annotated[bool, typer.Option("--ablate", help="Turn every optimisation off, one at a time.")] = False,
    against: Annotated[
        str | None, typer.Option(metavar="huggingface", help="Take turns with transformers' BERT, padded.")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps of each side that are counted.")] = 8,
    layers: Annotated[int | None, typer.Option(min=1, help="Another number of layers than the system's size.")] = None,
    hidden: Annotated[int | None, typer.Option(min=64, help="Another width, a multiple of 64.")] = None,
    vocabulary: Annotated[int | None, typer.Option(min=5, max=65_536, help="Words of the model.")] = None,
    lengths: Annotated[
        Path | None, typer.Option(help="A JSON list of how many samples have 1, 2, … tokens. Default: Wikipedia's.")
    ] = None,
    recipe: Annotated[str | None, typer.Option(help="A published way of training instead of the system's own.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a setting of the system.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Time whole training steps on a system: sequences/s, and how far that is from what the machine can do.

    Needs no data: samples are synthetic, of Wikipedia's lengths. Also fits what a token, a pair of tokens and so on
    costs, for `podium balance` and `podium predict`, into systems/costs/SYSTEM.json; not where an option changes
    what the system's file says.
    """
    from podium.bench import Options, keep_costs, measure, print_measured
    from podium.config import load_system
    from podium.progress import Progress

    config = load_system(system, recipe, settings or [])
    options = Options(ablate, against, steps, layers, hidden, vocabulary, lengths)
    as_described = options.as_described and not (recipe or settings)
    measured = measure(config, options, as_described, Progress(errors))
    if as_described:
        tell(f"what a token and a pair of tokens cost is in {keep_costs(config, measured)}")
    if as_json:
        print(json.dumps(measured, indent=2))
    else:
        print_measured(Console(), config, measured)


def main() -> None:
    """Run a command; a failure or an interruption is told as a sentence, with its exit code."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    try:
        app()
    except PodiumError as error:
        tell(str(error))
        sys.exit(error.exit_code)


def _interrupt(*_: object) -> None:
    raise WorkError("interrupted")


if __name__ == "__main__":
    main()
