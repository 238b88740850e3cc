"""The summary that `podium run` prints at its end, as a table and as JSON."""

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from rich.console import Console
from rich.table import Table

from podium.config.schema import RunConfig
from podium.core.console import summary_table
from podium.core.errors import Interrupted, PodiumError
from podium.mllog.score import score_seconds
from podium.run.collect import FinishedRun
from podium.run.outcome import Outcome, failed_outcome

MEANS = (
    "seconds",
    "samples",
    "accuracy",
    "next_sentence_accuracy",
    "sequences_per_second",
    "useful_tflops",
    "peak_tflops",
    "share_of_peak",
    "padding_share",
    "max_over_mean_tokens",
)


def as_json(runs: Sequence[FinishedRun]) -> dict[str, Any]:
    """Return the JSON object of a single run, or the means of several, with their objects under `runs`."""
    objects = [run.as_json() for run in runs]
    if len(objects) == 1:
        return objects[0]
    return {
        "result_file": objects[-1]["result_file"],
        "published": objects[-1]["published"],
        "reached_target": all(run.reached_target for run in runs),
        **{key: mean(run[key] for run in objects) for key in MEANS},
        "score_seconds": score_seconds([run.summary["seconds"] if run.reached_target else math.inf for run in runs]),
        "phases_ms": {phase: mean(run["phases_ms"][phase] for run in objects) for phase in objects[0]["phases_ms"]},
        "runs": objects,
    }


def failure_json(error: PodiumError | Interrupted, finished: Sequence[FinishedRun]) -> dict[str, Any]:
    """Return the JSON object of a set of runs of which one failed or was stopped; `runs` are those that had ended."""
    return {
        "outcome": failed_outcome(error),
        "message": str(error),
        "exit_code": error.exit_code,
        "run_folder": str(error.run_folder) if error.run_folder is not None else None,
        "runs": [run.as_json() for run in finished],
    }


def print_table(console: Console, config: RunConfig, runs: Sequence[FinishedRun]) -> None:
    """Print a table of several runs, then means, phases, and what the compliance checker printed where it failed."""
    if len(runs) > 1:
        console.print(_run_table(runs))
    console.print(_summary_table(config, as_json(runs), runs))
    for run in runs:
        for ruleset, output in run.compliance.items():
            if output:
                console.print(f"{run.result.name} fails ruleset {ruleset}:", style="red")
                console.print(output, markup=False, highlight=False)


def _run_table(runs: Sequence[FinishedRun]) -> Table:
    table = Table(title="Runs")
    for heading in ("result", "seed", "time", "samples", "accuracy", "outcome", "compliance"):
        table.add_column(heading, overflow="fold")
    for run in runs:
        table.add_row(
            run.result.stem.removeprefix("result_"),
            str(run.seed),
            f"{run.summary['seconds']:.2f} s",
            f"{run.summary['samples']:,}",
            f"{run.summary['accuracy']:.4f}",
            run.outcome,
            _verdict([run]).partition(" (")[0] if run.compliant else _verdict([run]),
        )
    return table


def _summary_table(config: RunConfig, totals: dict[str, Any], runs: Sequence[FinishedRun]) -> Table:
    several = len(runs) > 1
    title = f"{config.system}, recipe {config.recipe}" + (f", mean of {len(runs)} runs" if several else "")
    table = summary_table(title)
    if totals.get("score_seconds") is not None:
        table.add_row("MLPerf score", f"{totals['score_seconds']:.2f} s")
    target = config.target_accuracy
    time = "time-to-train" if totals["reached_target"] else f"time, {Outcome.MISSED}" if target else "time"
    table.add_row(time, f"{totals['seconds']:.2f} s")
    table.add_row("accuracy", f"{totals['accuracy']:.4f}" + (f" (target {target})" if target is not None else ""))
    table.add_row("samples", f"{totals['samples']:,.0f}")
    table.add_row("sequences/s", f"{totals['sequences_per_second']:,.1f}")
    table.add_row("useful FLOP/s", f"{1000 * totals['useful_tflops']:,.1f} GFLOP/s")
    table.add_row(
        "  of the matmul peak",
        f"{totals['share_of_peak']:.1%} of {1000 * totals['peak_tflops']:,.0f} GFLOP/s {runs[0].summary['precision']}",
    )
    table.add_row("padding share", f"{totals['padding_share']:.1%}")
    table.add_row("balance (max/mean tokens)", f"{totals['max_over_mean_tokens']:.4f}", end_section=True)
    energies = [run.summary.get("energy_joules") for run in runs]
    if known := [float(energy) for energy in energies if energy is not None]:
        of = "" if len(known) == len(runs) else f", mean of {len(known)} runs"
        table.add_row("energy of the GPUs", f"{mean(known) / 1000:,.1f} kJ{of}", end_section=True)
    total = sum(totals["phases_ms"].values())
    for phase, milliseconds in totals["phases_ms"].items():
        table.add_row(f"{phase.replace('_', ' ')}", f"{milliseconds:.2f} ms a step, {milliseconds / total:5.1%}")
    table.add_section()
    table.add_row("official compliance check", _verdict(runs))
    result = runs[-1].published or runs[-1].result
    table.add_row("result", _shorten(result.parent if several else result))
    table.add_row("side files", _shorten(runs[-1].folder.parent if several else runs[-1].folder))
    return table


def _shorten(path: Path) -> str:
    """Return a path relative to the current folder if it is below that, else the absolute path."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _verdict(runs: Sequence[FinishedRun]) -> str:
    rulesets = list(runs[0].compliance)
    if all(run.compliant for run in runs):
        return f"[green]SUCCESS[/green] ({rulesets[0]} to {rulesets[-1]})"
    failed = sorted({ruleset for run in runs for ruleset, output in run.compliance.items() if output})
    return f"[red]FAILED[/red] ({', '.join(failed)})"
