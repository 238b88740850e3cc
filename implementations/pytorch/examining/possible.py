"""Whether this machine's device can do what a configuration asks, each thing by itself and then in a real step."""

from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import torch

from benchmarks.bert.lengths import wikipedia_histogram
from benchmarks.bert.sizes import TINY
from benchmarks.errors import PodiumError, UsageError
from implementations.pytorch.examining.device import visible_device
from implementations.pytorch.kernels.choose import resolve_kernels
from implementations.pytorch.measuring.samples import mixed_lengths
from implementations.pytorch.measuring.sides import Podium
from implementations.pytorch.model.attention import require
from implementations.pytorch.training.building import uses_graphs
from implementations.pytorch.training.precision import COMPUTE_TYPES, resolve_precision
from implementations.pytorch.training.processes import Processes, alone
from podium.config import RunConfig

MOST_SAMPLES = 8
"""Of the step that is tried."""


def examine_device(config: RunConfig) -> dict[str, Any]:
    """Versions, GPUs, and for each thing that the configuration asks what it comes to here or why it cannot be."""
    found = visible_device()
    if config.launch.device == "cuda" and not found["gpus"]:
        return found | {"possible": []}
    device = torch.device(config.launch.device)
    if device.type == "cpu":
        torch.set_num_threads(config.launch.threads)
    return found | {"possible": [_tried(what, ask, config, device) for what, ask in ASKED.items()]}


def _precision(config: RunConfig, device: torch.device) -> str:
    return resolve_precision(config.precision, device)


def _attention(config: RunConfig, device: torch.device) -> str:
    require(config.attention, device, COMPUTE_TYPES[resolve_precision(config.precision, device)])
    return config.attention


def _kernels(config: RunConfig, device: torch.device) -> str:
    return resolve_kernels(config.kernels, device)


def _graphs(config: RunConfig, device: torch.device) -> str:
    return "step" if uses_graphs(config, device) else "none"


def _loader(config: RunConfig, device: torch.device) -> str:
    if config.loader == "dali" and (find_spec("nvidia") is None or find_spec("nvidia.dali") is None):
        raise UsageError("loader: found dali, which is not installed; install it with `pip install --editable .[dali]`")
    return config.loader


def _step(config: RunConfig, device: torch.device) -> str:
    """Take a whole optimizer step of one layer under the configuration, on a few synthetic samples."""
    parts = config.gradient_accumulation_steps
    samples = parts * min(MOST_SAMPLES, max(1, config.local_batch_size // parts))
    launch = config.launch.model_copy(update={"processes_per_node": 1, "nodes": 1})
    changed = {"launch": launch, "global_batch_size": samples, "initial_checkpoint": None, "seed": 0}
    with alone(device) as processes:
        wrong = _not_finite(config.model_copy(update=changed), processes, samples)
    if wrong:
        raise UsageError(f"after one step {wrong[0]} is not finite")
    return f"{samples} samples, {config.optimizer.algorithm}"


def _not_finite(config: RunConfig, processes: Processes, samples: int) -> list[str]:
    """Parameters that are not finite after a step."""
    size = replace(config.model_size, layers=1)
    side = Podium(config, processes, mixed_lengths(wikipedia_histogram(), samples), TINY.vocabulary_size, size)
    side.take(0)
    return [name for name, p in side.stepper.model.named_parameters() if not bool(torch.isfinite(p).all())]


ASKED: dict[str, Callable[[RunConfig, torch.device], str]] = {
    "precision": _precision,
    "attention": _attention,
    "kernels": _kernels,
    "cuda_graph": _graphs,
    "loader": _loader,
    "step": _step,
}


def _tried(what: str, ask: Callable[[RunConfig, torch.device], str], config: RunConfig, device: torch.device) -> Any:
    try:
        return {"what": what, "found": ask(config, device), "why_not": None}
    except PodiumError as error:
        return {"what": what, "found": "", "why_not": str(error)}
    except Exception as error:  # noqa: BLE001 — whatever a step fails by here, a run would fail by
        words = str(error).strip().splitlines() or [""]
        return {"what": what, "found": "", "why_not": f"{type(error).__name__}: {words[0]}"}
