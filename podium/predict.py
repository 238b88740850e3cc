"""`podium predict`: have an implementation predict a run's time, and show what it is made of."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.errors import UsageError, WorkError
from benchmarks.files import make_folder
from benchmarks.processes import end_with_parent
from podium.config import RunConfig, RunFolder, write_resolved
from podium.config.loading import ROOT
from podium.costs import costs_path
from podium.data import with_data
from podium.progress import Progress
from podium.running import RUNS

BAR = 40
"""Characters of the longest bar."""


def predict(config: RunConfig, scale: str | None, progress: Progress) -> dict[str, Any]:
    """The prediction, as the implementation's `predict` module writes it; kept in a folder under runs/.

    `scale` has numbers of GPUs between commas. The embedded text is prepared if it is not yet, since its lengths count;
    other text is not. Raises UsageError or WorkError with what the process told.
    """
    if config.data.kind == "embedded" and config.size == "tiny":
        config = with_data(config, progress.note)
    folder = RunFolder(make_folder(RUNS / config.system / f"predict_{datetime.now():%Y-%m-%d_%H-%M-%S_%f}"))
    write_resolved(config, folder.config)
    costs = costs_path(config.system)
    words = [str(folder.config), str(folder.path)]
    words += ["--costs", str(costs)] if costs.is_file() else []
    words += ["--scale", scale] if scale is not None else []
    _run(f"implementations.{config.implementation}.predict", words, folder)
    predicted = folder.read_summary()
    assert predicted is not None, "_run raises where there is none"
    return predicted


def _run(module: str, words: Sequence[str], folder: RunFolder) -> None:
    """One process, from the repository's root; it ends when this one does."""
    with folder.output.open("wb") as output:
        ended = subprocess.run(
            [sys.executable, "-m", module, *words],
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            cwd=ROOT,
            preexec_fn=end_with_parent,
            check=False,
        )
    if ended.returncode != 0 or folder.read_summary() is None:
        failed = f"the prediction ended with exit code {ended.returncode}; what it printed is in {folder.output}"
        raise folder.told_failure() or WorkError(failed)


def print_prediction(console: Console, config: RunConfig, predicted: Mapping[str, Any]) -> None:
    """A table of the whole and its parts, what is unsure, and the curve over GPU counts if it was asked for."""
    table = Table(title=f"{config.system}, recipe {config.recipe}: predicted", show_header=False)
    table.add_column("what")
    table.add_column("figure", justify="right")
    ranks = f"{predicted['global_batch_size']:,} on {predicted['ranks']:,} rank{'s' if predicted['ranks'] > 1 else ''}"
    table.add_row("time-to-train", duration(predicted["seconds"]))
    table.add_row("  between", f"{duration(predicted['low'])} and {duration(predicted['high'])}")
    table.add_row("samples", f"{predicted['samples_to_target']:,.0f}")
    table.add_row("sequences/s", f"{predicted['sequences_per_second']:,.1f}")
    table.add_row("a step", f"{predicted['step_milliseconds']:,.1f} ms")
    table.add_row("global batch", ranks, end_section=True)
    for part, seconds in predicted["split"].items():
        table.add_row(part, f"{duration(seconds)}, {seconds / predicted['seconds']:5.1%}")
    console.print(table)
    for sentence in predicted["unsure"]:
        console.print(f"unsure: {sentence}", markup=False, highlight=False)
    if predicted["scale"]:
        console.print(_scale_table(predicted))
        more = dict.fromkeys(sentence for row in predicted["scale"] for sentence in row["unsure"])
        for sentence in (s for s in more if s not in predicted["unsure"]):
            console.print(f"unsure of the curve: {sentence}", markup=False, highlight=False)


def _scale_table(predicted: Mapping[str, Any]) -> Table:
    rows = predicted["scale"]
    longest = max(row["seconds"] for row in rows)
    table = Table(title="Predicted at the batch size that suits best, beside published A100 systems")
    for heading in ("GPUs", "batch", "predicted", "between", "exposed communication", "published"):
        table.add_column(heading, justify="right")
    table.add_column("", justify="left")
    for row in rows:
        near = [point["seconds"] for point in predicted["published"] if point["gpus"] == row["gpus"]]
        span = f"{duration(min(near))} to {duration(max(near))}" if len(near) > 1 else "".join(map(duration, near))
        table.add_row(
            f"{row['gpus']:,}",
            f"{row['global_batch_size']:,}",
            duration(row["seconds"]),
            f"{duration(row['low'])} to {duration(row['high'])}",
            f"{row['split']['communication'] / row['seconds']:.0%}",
            span or "–",
            "█" * max(1, round(BAR * row["seconds"] / longest)),
        )
    return table


def duration(seconds: float) -> str:
    """Such as 12.3 s, 16.6 min or 3.4 h, with a figure that can be compared."""
    for limit, unit, name in ((120, 1, "s"), (2 * 3600, 60, "min"), (float("inf"), 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit:.3g} {name}" if seconds / unit < 100 else f"{seconds / unit:.0f} {name}"
    raise ValueError(f"{seconds} seconds is no duration")


def check_plot(scale: str | None, plot: Path | None) -> None:
    """UsageError for a picture of a curve that was not asked for, or in another format."""
    if plot is not None and scale is None:
        raise UsageError("--plot: found no --scale, whose curve it draws; allowed with it are numbers of GPUs")
    if plot is not None and plot.suffix != ".svg":
        raise UsageError(f"--plot: found {plot.name}, allowed are names that end in .svg")
