"""`podium bench`: runs an implementation's timed steps as processes and prints the timings."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.bert.rules import LARGEST_SEED
from benchmarks.bert.sizes import SIZES
from podium.config.load import write_resolved
from podium.config.run_folder import RunFolder
from podium.config.schema import RunConfig
from podium.core.console import figure_table, summary_table
from podium.core.errors import UsageError
from podium.core.files import make_folder
from podium.launch.launch import launch
from podium.planning.costs import StepCosts, own_costs_path, save_costs
from podium.run.progress import Progress
from podium.run.run_set import RUNS


@dataclass(frozen=True)
class Options:
    """What to time besides the system's own step, and in what other dimensions."""

    ablate: bool = False
    against: str | None = None
    steps: int = 8
    layers: int | None = None
    hidden: int | None = None
    vocabulary: int | None = None
    lengths: Path | None = None

    @property
    def as_described(self) -> bool:
        """Whether the model is the system's own."""
        return not (self.layers or self.hidden or self.vocabulary or self.lengths)

    def words(self, size: str) -> list[str]:
        """The implementation's command-line options."""
        if self.against not in (None, "huggingface"):
            raise UsageError(f"--against: found {self.against}, allowed is huggingface")
        words = ["--steps", str(self.steps), "--vocabulary", str(self.vocabulary or SIZES[size].vocabulary_size)]
        for name in ("layers", "hidden", "against"):
            value = getattr(self, name)
            words += [f"--{name}", str(value)] if value is not None else []
        words += ["--lengths", str(self.lengths.resolve())] if self.lengths is not None else []
        return [*words, *(["--ablate"] if self.ablate else [])]


def measure(config: RunConfig, options: Options, costs: bool, progress: Progress) -> dict[str, Any]:
    """Run the implementation's bench in a new folder under runs/; what it measured, with `costs` step costs too."""
    words = options.words(config.size) + (["--costs"] if costs else [])
    folder = RunFolder(make_folder(RUNS / config.system / f"bench_{datetime.now():%Y-%m-%d_%H-%M-%S_%f}"))
    if config.seed is None:
        config = config.model_copy(update={"seed": secrets.randbelow(LARGEST_SEED + 1)})
    write_resolved(config, folder.config)
    progress.note("Timing steps")
    launch(config, folder, "bench", words, on_tick=lambda: None)
    measured = folder.read_summary()
    assert measured is not None, "launch raises where there is none"
    return measured


def keep_costs(config: RunConfig, measured: Mapping[str, Any]) -> Path:
    """Write the fitted costs to systems/costs/SYSTEM.json."""
    path = own_costs_path(config.system)
    about = ("device", "precision", "threads", "layers", "hidden", "vocabulary", "global_batch_size", "ranks", "torch")
    conditions: dict[str, object] = {"system": config.system, "date": f"{datetime.now(UTC):%Y-%m-%d}"}
    conditions |= {"recipe": config.recipe, "attention": config.attention, "kernels": config.kernels}
    save_costs(StepCosts(**measured["step_costs"]), path, conditions | {key: measured[key] for key in about})
    return path


def print_measured(console: Console, config: RunConfig, measured: Mapping[str, Any]) -> None:
    table = summary_table(f"{config.system}, recipe {config.recipe}")
    for what, figure in _figures(measured):
        table.add_row(what, figure)
    table.add_section()
    whole = sum(measured["phases_ms"].values())
    if measured["device"] != "cpu":
        table.add_row("phases", "as the host sees them: it runs ahead of the GPU")
    for phase, milliseconds in measured["phases_ms"].items():
        table.add_row(phase.replace("_", " "), f"{milliseconds:.2f} ms a step, {milliseconds / whole:5.1%}")
    console.print(table)
    if measured["ablation"]:
        console.print(_ablation_table(measured))


def _figures(measured: Mapping[str, Any]) -> list[tuple[str, str]]:
    times, peak = measured["milliseconds"], measured["peak_tflops"]
    model = f"{measured['layers']} layers × {measured['hidden']}, {measured['vocabulary']:,} words"
    figures = [
        ("model", model),
        ("device", f"{measured['ranks']} × {measured['device']}, {measured['threads']} threads"),
        ("global batch", f"{measured['global_batch_size']} sequences"),
        (
            "a step",
            f"{times['median']:,.1f} ms ({times['least']:,.1f} to {times['greatest']:,.1f}, n = {measured['steps']})",
        ),
        ("sequences/s", f"{measured['sequences_per_second']:,.1f}"),
        ("useful FLOP/s", f"{measured['useful_tflops']:.4g} TFLOP/s"),
        ("  of the matmul peak", f"{measured['share_of_peak']:.1%} of {peak:.4g} TFLOP/s {measured['precision']}"),
        ("  counted as published (MFU)", f"{measured['model_flops_utilization']:.1%}"),
        ("padding share", f"{measured['padding_share']:.1%}"),
        ("memory, all that was timed", f"{measured['memory_bytes'] / 2**30:.2f} GiB"),
    ]
    other = measured["huggingface"]
    if other:
        rate = f"{other['sequences_per_second']:,.1f} sequences/s with {other['attention']} attention"
        figures += [
            ("Hugging Face, padded", rate),
            ("  Podium is", f"{measured['ratio_to_huggingface']:.2f} times as fast"),
        ]
    return figures


def _ablation_table(measured: Mapping[str, Any]) -> Table:
    table = figure_table("A step takes so many times as long without …", "without", "times", "least to greatest")
    table.add_column("that is")
    for row in measured["ablation"]:
        spread = row["ratio_by_step"]
        table.add_row(
            row["without"], f"{row['ratio']:.2f}", f"{spread['least']:.2f} to {spread['greatest']:.2f}", row["what"]
        )
    return table
