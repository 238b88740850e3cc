"""`podium systems list` and `show`: the systems, the source of their settings, and whether they run here."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from benchmarks.bert.published.hyperparameters import HyperparameterSet, hyperparameter_sets
from podium.config.load import load_system, system_names, system_path
from podium.config.schema import RunConfig, is_stated
from podium.core.console import print_line, summary_table, text_table
from podium.core.errors import UsageError, attempt
from podium.core.paths import WORKING_FOLDER
from podium.core.text import printable
from podium.doctor.accelerators import NvidiaGpu, nvidia_gpus
from podium.launch.mounts import container_errors
from podium.planning.accelerators import find_accelerator
from podium.system_files.files import head_comment

PROGRAMS = {"docker": "docker", "slurm": "sbatch"}  # launcher → the program that starts a run


@dataclass(frozen=True)
class SystemSummary:
    """A system's file and configuration, and what keeps it from running on this machine."""

    name: str
    path: Path
    config: RunConfig | None  # None: the file has errors, which are in `obstacles`
    obstacles: tuple[str, ...]  # empty if it can run here


def read_systems() -> list[SystemSummary]:
    """Return all systems in systems/ by name; a file with errors does not end the list."""
    gpus = nvidia_gpus()
    return [_summarize(name, gpus) for name in system_names()]


def read_system(system: str) -> SystemSummary:
    """Return one system, by name or path. Raises UsageError if there is none, or if its file has errors."""
    load_system(system)
    return _summarize(system, nvidia_gpus())


def _summarize(system: str, gpus: Sequence[NvidiaGpu]) -> SystemSummary:
    path = system_path(system)
    config, error = attempt(load_system, system)
    if config is None:
        return SystemSummary(path.stem, path, None, (str(error).replace(f"{path}: ", ""),))
    return SystemSummary(path.stem, path, config, tuple(_obstacles(system, config, gpus)))


def _obstacles(system: str, config: RunConfig, gpus: Sequence[NvidiaGpu]) -> list[str]:
    """Return what is missing on this machine for a run, as sentence fragments."""
    launch, found = config.launch, []
    program = PROGRAMS.get(launch.launcher)
    if program and shutil.which(program) is None:
        found.append(f"{program} is not installed")
    if launch.launcher == "torchrun" and launch.nodes > 1:
        found.append(f"is started on {launch.nodes} machines")
    if launch.device == "cuda" and launch.launcher != "slurm" and len(gpus) < launch.processes_per_node:
        needed = f"{launch.processes_per_node} NVIDIA GPU{'s' * (launch.processes_per_node > 1)}"
        found.append(f"needs {needed}, found {len(gpus)}")
    if launch.launcher == "torchrun":
        found += [f"{key}: {_shown(path)} is missing" for key, path in config.named_paths.items() if not path.exists()]
    elif launch.launcher == "docker" and not found:
        found += container_errors(load_system(system, paths_as_written=True))
    return found


def _shown(path: Path) -> str:
    """A path relative to the working folder where it is in it."""
    return str(path.relative_to(WORKING_FOLDER) if path.is_relative_to(WORKING_FOLDER) else path)


def hardware(config: RunConfig) -> str:
    """Format a system's accelerators, such as `8×NVIDIA H100 SXM`; of a CPU system its processes."""
    launch = config.launch
    if launch.device == "cpu":
        return f"CPU, {launch.ranks} process{'es' * (launch.ranks > 1)}"
    stated = config.description.accelerator_model_name
    kind = find_accelerator(stated)
    model = kind.name if kind is not None else stated if is_stated(stated) else "NVIDIA GPU"
    return f"{launch.ranks:,}×{model}"


def known_set(config: RunConfig) -> HyperparameterSet | None:
    """Return the named set of hyper-parameters that a system trains with; None if its numbers are in no set."""
    return hyperparameter_sets().get(config.hyperparameters or "")


def system_json(one: SystemSummary) -> dict[str, Any]:
    """Return a system as a JSON object, with its settings if the file is valid."""
    document: dict[str, Any] = {"name": one.name, "file": str(one.path)}
    if one.config is None:
        return document | {"valid": False, "error": one.obstacles[0]}
    config, known = one.config, known_set(one.config)
    return document | {
        "valid": True,
        "hardware": hardware(config),
        "launcher": config.launch.launcher,
        "nodes": config.launch.nodes,
        "processes_per_node": config.launch.processes_per_node,
        "device": config.launch.device,
        "recipe": config.recipe,
        "size": config.size,
        "division": config.division,
        "global_batch_size": config.global_batch_size,
        "hyperparameters": config.hyperparameters,
        "hyperparameters_source": known.source if known else None,
        "samples_to_target": known.samples if known else None,
        "optimizer": config.optimizer.model_dump(mode="json", exclude_none=True),
        "runs_here": not one.obstacles,
        "missing_here": list(one.obstacles),
    }


def print_systems(console: Console, systems: Sequence[SystemSummary]) -> None:
    """Print a row for each system."""
    table = text_table("system", "hardware", "launcher", "recipe", "size", "runs on this machine", no_wrap="system")
    for one in systems:
        if one.config is None:
            table.add_row(*map(_cell, (one.name, "", "", "", "", f"no: {one.obstacles[0].splitlines()[0]}")))
            continue
        config = one.config
        here = f"no: {one.obstacles[0]}" if one.obstacles else "yes"
        cells = (one.name, hardware(config), config.launch.launcher, config.recipe, config.size, here)
        table.add_row(*map(_cell, cells))
    console.print(table)


def print_system(console: Console, one: SystemSummary) -> None:
    """Print a system's file, where its settings come from, and its main settings."""
    config, known = _require_config(one), known_set(_require_config(one))
    launch, optimizer = config.launch, config.optimizer
    table = summary_table(one.name)
    rows: Mapping[str, str] = {
        "file": _shown(one.path),
        "hardware": hardware(config),
        "nodes": f"{launch.nodes:,} × {launch.processes_per_node} processes on {launch.device}",
        "started by": f"{launch.launcher}{f', image {launch.container.image}' if launch.container else ''}",
        "recipe, size, division": f"{config.recipe}, {config.size}, {config.division}",
        "samples a step": f"{config.global_batch_size:,} ({config.local_batch_size:,} a process, in "
        f"{config.gradient_accumulation_steps} micro-batch{'es' * (config.gradient_accumulation_steps > 1)})",
        "ends after at most": f"{config.max_samples:,} samples",
        "optimizer": f"{optimizer.algorithm}, learning rate {optimizer.learning_rate:g}, betas {optimizer.beta1:g} and "
        f"{optimizer.beta2:g}, weight decay {optimizer.weight_decay:g}, warm-up {optimizer.warmup_steps:,} steps, "
        f"decay to step {optimizer.decay_steps:,}",
        "hyper-parameters": "of the file" if known is None else f"{known.name}, from {known.source}",
        "samples to target": f"{known.samples:,}, mean of {known.source}" if known and known.samples else "not known",
        "data": ", ".join(f"{key} {_shown(path)}" for key, path in config.named_paths.items()) or "the embedded text",
        "runs on this machine": f"no: {'; '.join(one.obstacles)}" if one.obstacles else "yes",
    }
    for name, value in rows.items():
        table.add_row(name, _cell(value))
    print_line(console, head_comment(one.path) or "The file has no comment at its head.")
    console.print(table)


def _cell(text: str) -> Text:
    """A table's cell of text from a file: without markup, control characters escaped."""
    return Text(printable(text))


def _require_config(one: SystemSummary) -> RunConfig:
    if one.config is None:
        raise UsageError(one.obstacles[0])
    return one.config
