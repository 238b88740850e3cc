"""`podium bench`: times training steps in an implementation's processes, or counts their kernels."""

import secrets
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.bert.lengths import read_histogram
from benchmarks.bert.rules import MAX_SEED
from benchmarks.bert.sizes import SIZES
from podium.config.load import write_resolved
from podium.config.run_folder import RunFolder
from podium.config.schema import RunConfig
from podium.core.console import UNKNOWN, number_table, print_line, summary_table, waiting
from podium.core.errors import UsageError, WorkError
from podium.core.files import make_folder
from podium.core.machine import MAX_OTHER_LOAD, OtherLoad
from podium.launch.launch import diagnose_failure, launch
from podium.planning.accelerators import PRODUCT_UNITS, Accelerator, require_gpu, require_rates
from podium.planning.costs import StepCosts, own_costs_path, save_costs
from podium.planning.hardware import require_hardware
from podium.run.implementation import call_entry_point
from podium.run.progress import Progress
from podium.run.run_set import RUNS
from podium.run.source import current_source

DEFAULT_STEPS = 8
HEAD_SIZE = 64  # of the models with --hidden


@dataclass(frozen=True)
class BenchOptions:
    """What to time besides the system's training step, and model dimensions that replace the system's."""

    ablate: bool = False
    baseline: str | None = None
    steps: int | None = None
    layers: int | None = None
    hidden: int | None = None
    vocabulary: int | None = None
    lengths: Path | None = None
    rounds: int | None = None

    @property
    def uses_system_model(self) -> bool:
        """Whether model dimensions and sample lengths are the system's, so that fitted costs are valid for it."""
        return not (self.layers or self.hidden or self.vocabulary or self.lengths)

    def require_valid(self) -> None:
        """Raise UsageError for a value that the processes would refuse only after they have started."""
        if self.baseline not in (None, "huggingface"):
            raise UsageError(f"--baseline: found {self.baseline}, allowed is huggingface")
        if self.hidden is not None and self.hidden % HEAD_SIZE:
            raise UsageError(f"--hidden: found {self.hidden}, allowed are multiples of {HEAD_SIZE}")
        if self.lengths is not None:
            read_histogram(self.lengths)

    def arguments(self, size: str) -> list[str]:
        """Return the command-line arguments of the implementation's `bench`. The options are valid."""
        arguments = ["--steps", str(self.steps or DEFAULT_STEPS)]
        arguments += ["--vocabulary", str(self.vocabulary or SIZES[size].vocabulary_size)]
        for name in ("rounds", "layers", "hidden", "baseline"):
            value = getattr(self, name)
            arguments += [f"--{name}", str(value)] if value is not None else []
        arguments += ["--lengths", str(self.lengths.resolve())] if self.lengths is not None else []
        return [*arguments, *(["--ablate"] if self.ablate else [])]


def measure(config: RunConfig, options: BenchOptions, costs: bool, progress: Progress) -> dict[str, Any]:
    """Run the implementation's `bench` in a new folder under runs/ and return its summary.

    With `costs` it also fits step costs. UsageError or WorkError, as the processes end. If they end after Podium's
    first turn, the summary has their error among its `failures`.
    """
    options.require_valid()
    arguments = options.arguments(config.size) + (["--costs"] if costs else [])
    folder = RunFolder(make_folder(RUNS / config.system / f"bench_{datetime.now():%Y-%m-%d_%H-%M-%S_%f}"))
    if config.seed is None:
        config = config.model_copy(update={"seed": secrets.randbelow(MAX_SEED + 1)})
    write_resolved(config, folder.config)
    progress.note("Timing steps")
    load = OtherLoad()
    with waiting("Timing steps", announced=True):
        exit_code = launch(config, folder, "bench", arguments, on_tick=lambda: None)
    measured = folder.read_summary()
    assert measured is not None, "launch raises if the processes leave no summary"
    measured["other_load"] = load.share()
    if not measured["complete"]:
        measured["failures"]["the rest"] = str(diagnose_failure(folder, exit_code))
    return measured


def require_timing_options_unset(options: BenchOptions) -> None:
    """Raise UsageError for options of timed steps, which `--roofline` does not run."""
    for name in ("ablate", "baseline", "steps", "rounds"):
        if getattr(options, name):
            raise UsageError(
                f"--{name} times steps on this machine, and --roofline counts the kernels of one step without running "
                "them; leave out one of the two. To compare settings, count each with --set, such as "
                "--set precision=fp8"
            )


def count(config: RunConfig, options: BenchOptions, gpu: str | None, progress: Progress) -> dict[str, Any]:
    """Count the kernels of a step on a GPU, by default the system's own; see implementations/pytorch/bench/roofline.py.

    Raises UsageError for options that do not apply, and for a GPU that is unknown or does not support the settings.
    """
    require_timing_options_unset(options)
    options.require_valid()
    if gpu is None:
        if config.launch.device == "cpu":
            raise UsageError(f"{config.system} trains on a CPU; name the GPU to count for, such as --gpu h200")
        kind, rates = require_gpu(config.description.accelerator_model_name, config.system)
        require_hardware(config)
    else:
        kind, rates = require_gpu(gpu)
        _require_support(config, kind)
    require_rates(kind, rates, config.precision)
    arguments = ["--gpu", kind.name, "--vocabulary", str(options.vocabulary or SIZES[config.size].vocabulary_size)]
    for name in ("layers", "hidden"):
        value = getattr(options, name)
        arguments += [f"--{name}", str(value)] if value is not None else []
    arguments += ["--lengths", str(options.lengths.resolve())] if options.lengths is not None else []
    progress.note(f"Counting the kernels of a step on one {kind.name}")
    with tempfile.TemporaryDirectory(prefix="podium_") as folder:
        path = Path(folder) / "config.yaml"
        write_resolved(config.model_copy(update={"seed": config.seed or 0}), path)
        with waiting("Counting the kernels of a step", announced=True):
            return call_entry_point(config.implementation, "bench.roofline", [str(path), *arguments])


def _require_support(config: RunConfig, kind: Accelerator) -> None:
    """Raise UsageError for the first setting that the GPU named by --gpu cannot run."""
    description = config.description.model_copy(update={"accelerator_model_name": kind.name})
    launch = config.launch.model_copy(update={"device": "cuda"})
    try:
        require_hardware(config.model_copy(update={"description": description, "launch": launch}))
    except UsageError as error:
        raise UsageError(str(error).replace("description.accelerator_model_name", "--gpu")) from None


SHOWN_SHARE = 0.01  # of the step's time: kernels below it are summed up in one row of their part


def print_count(console: Console, config: RunConfig, counted: Mapping[str, Any]) -> None:
    """Print launches, bytes, FLOPs and counted milliseconds by part of the step and by kernel."""
    total = counted["total"]
    rates, precision = counted["rates"], counted["precision"]
    speeds = [
        f"{rates['flops'][unit] / 1e12:.4g} TFLOP/s {'bf16' if unit == 'half' and precision == 'fp8' else precision}"
        for unit in PRODUCT_UNITS[precision]
    ]
    caption = (
        f"{counted['sequences']} sequences, {counted['tokens']:,} tokens on one of {counted['ranks']} ranks; precision "
        f"{precision}, kernels {counted['kernel_set']}, attention {counted['attention']}. Counted for "
        f"{counted['gpu']} at assumed rates: {rates['bytes_per_second'] / 1e12:.3g} TB/s, {', '.join(speeds)}. "
        f"{1000 * counted['sequences'] / total['milliseconds']:,.0f} sequences/s counted, not measured, without gaps "
        "between launches, waiting and throttling."
    )
    title = f"Counted step of {config.system}, recipe {config.recipe}"
    table = number_table(title, "part and kernel", "launches", "GB", "TFLOP", "ms", "share", caption=caption)

    def add(name: str, row: Mapping[str, Any], style: str | None = None) -> None:
        flops = f"{row['flops'] / 1e12:.3f}" if row["flops"] else ""
        share = row["milliseconds"] / total["milliseconds"]
        numbers = (f"{row['launches']:,}", f"{row['bytes'] / 1e9:.2f}", flops, f"{row['milliseconds']:.2f}")
        table.add_row(name, *numbers, f"{share:.1%}", style=style)

    for part in counted["parts"]:
        if not part["launches"]:
            continue
        add(part["part"], part, "bold")
        kernels = [row for row in counted["kernels"] if row["part"] == part["part"]]
        shown = [row for row in kernels if row["milliseconds"] >= SHOWN_SHARE * total["milliseconds"]]
        rest = [row for row in kernels if row not in shown]
        for row in shown:
            add(f"  {row['kernel']}", row)
        if shown and rest:
            add(
                "  others",
                {key: sum(row[key] for row in rest) for key in ("launches", "bytes", "flops", "milliseconds")},
            )
    table.add_section()
    add("step", total, "bold")
    console.print(table)


def write_costs(config: RunConfig, measured: Mapping[str, Any]) -> Path:
    """Write the fitted step costs, the machine and the settings to runs/SYSTEM/costs.json and return that path."""
    path = own_costs_path(config.system)
    settings = ("device", "precision", "threads", "layers", "hidden", "vocabulary", "global_batch_size", "ranks")
    source = current_source()
    conditions: dict[str, object] = {"system": config.system, "date": f"{datetime.now(UTC):%Y-%m-%d}"}
    conditions |= {"machine": measured["machine"], "torch": measured["torch"], "other_load": measured["other_load"]}
    conditions |= {"commit": source.commit, "code": source.code}
    # The backend in use: `auto` depends on the GPU and on a check there.
    conditions |= {"recipe": config.recipe, "attention": measured["attention"], "kernels": config.kernels}
    save_costs(StepCosts(**measured["step_costs"]), path, conditions | {key: measured[key] for key in settings})
    return path


def print_timings(console: Console, config: RunConfig, measured: Mapping[str, Any]) -> None:
    """Print throughput, utilization, phases, and the ablation if there is one."""
    table = summary_table(f"{config.system}, recipe {config.recipe}")
    for label, value in _summary_rows(measured):
        table.add_row(label, value)
    table.add_section()
    total = sum(measured["phase_milliseconds"].values())
    if measured["device"] != "cpu":
        # Kernels are launched asynchronously, so a phase's host time is not the GPU's time in it.
        table.add_row("phases", "host time, which runs ahead of the GPU")
    for phase, milliseconds in measured["phase_milliseconds"].items():
        table.add_row(phase.replace("_", " "), f"{milliseconds:.2f} ms a step, {milliseconds / total:5.1%}")
    console.print(table)
    if measured["ablation"]:
        console.print(_ablation_table(measured))
    for name, reason in measured["misfits"].items():
        print_line(console, f"{name}: not timed, {reason}")


def load_warning(measured: Mapping[str, Any]) -> str | None:
    """Return a warning if other processes used so much of the processors that the times are too long."""
    share = measured["other_load"]
    if share is None or share <= MAX_OTHER_LOAD:
        return None
    return (
        f"warning: while steps were timed, other processes used {share:.0%} of this machine's processors, so the times "
        f"are too long; end them (allowed are {MAX_OTHER_LOAD:.0%}) and run the command again"
    )


def require_all_sides(measured: Mapping[str, Any]) -> None:
    """Raise WorkError with the sides that failed, if any."""
    failures = measured["failures"]
    if failures:
        raise WorkError("not all was timed\n" + "\n".join(f"  {name}: {why}" for name, why in failures.items()))


def _summary_rows(measured: Mapping[str, Any]) -> list[tuple[str, str]]:
    times, peak = measured["milliseconds"], measured["peak_tflops"]
    model = f"{measured['layers']} layers × {measured['hidden']}, vocabulary of {measured['vocabulary']:,}"
    rows = [
        ("model", model),
        ("device", f"{measured['ranks']} × {measured['device']}, {measured['threads']} threads"),
        ("global batch", f"{measured['global_batch_size']} sequences"),
        (
            "a step",
            f"{times['median']:,.1f} ms ({times['min']:,.1f} to {times['max']:,.1f}, n = {measured['steps']})",
        ),
        ("sequences/s", f"{measured['sequences_per_second']:,.1f}"),
        ("useful FLOP/s", f"{measured['useful_tflops']:.4g} TFLOP/s"),
        ("  of the matmul peak", f"{measured['share_of_peak']:.1%} of {peak:.4g} TFLOP/s {measured['precision']}"),
        ("  by the published FLOP count (MFU)", f"{measured['model_flops_utilization']:.1%}"),
        ("padding share", f"{measured['padding_share']:.1%}"),
        _memory_row(measured),
    ]
    other = measured["huggingface"]
    if other:
        rate = f"{other['sequences_per_second']:,.1f} sequences/s with {other['attention']} attention"
        rows += [
            ("Hugging Face, padded", rate),
            ("  Podium is", f"{measured['ratio_to_huggingface']:.2f} times as fast"),
        ]
    return rows


def _memory_row(measured: Mapping[str, Any]) -> tuple[str, str]:
    peak = f"{measured['memory_bytes'] / 2**30:.2f} GiB"
    if measured["device"] == "cpu":
        return "peak memory of the process", peak
    return "peak memory of a GPU, with warm-up", f"{peak} (estimated: {measured['estimated_bytes'] / 2**30:.2f})"


def _ablation_table(measured: Mapping[str, Any]) -> Table:
    title = "Step time without an optimisation, relative to the step with all of them in the same round"
    with_memory = measured["device"] != "cpu"  # of the process, which all variants share
    table = number_table(title, "without", "ratio", "least to greatest", *(["GiB"] if with_memory else []))
    table.add_column("runs instead")
    for row in measured["ablation"]:
        spread, memory = row["ratio_by_round"], row["memory_bytes"]
        cells = [row["without"], UNKNOWN, UNKNOWN]
        if spread:
            cells[1:] = [f"{spread['median']:.2f}", f"{spread['min']:.2f} to {spread['max']:.2f}"]
        if with_memory:
            cells.append(f"{memory / 2**30:.1f}" if memory else UNKNOWN)
        table.add_row(*cells, Text(f"{row['what']}; {row['obstacle']}" if row["obstacle"] else row["what"]))
    return table
