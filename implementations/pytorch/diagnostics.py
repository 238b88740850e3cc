"""Diagnostics of devices and ranks for `podium doctor`: capabilities, versions, collectives and clocks.

Each feature that a configuration requires is tried alone, and then all in a real step. Clock offsets are bounded by
messages whose order is known. Source: the bounds that causality gives (Cristian, Probabilistic clock synchronization,
1989): a message was sent before it is received, by any clock.
"""

import os
import platform
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.bert.lengths import wikipedia_histogram
from benchmarks.bert.sizes import TINY, Size
from implementations.pytorch.bench.variants import Podium, mixed_lengths
from implementations.pytorch.build_run import uses_graphs
from implementations.pytorch.distributed.process_group import Processes, alone
from implementations.pytorch.kernels.choose import resolve_kernels
from implementations.pytorch.model.attention.dispatch import resolve_attention
from implementations.pytorch.precision import COMPUTE_TYPES, matmul_peak, resolve_precision, timed
from podium.config.schema import RunConfig
from podium.core.errors import PodiumError, UsageError


def visible_device() -> dict[str, Any]:
    """Versions as text, None where there is none of the kind; of each GPU its name and bytes, free and in all."""
    gpus = []
    for number in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        free, total = torch.cuda.mem_get_info(number)
        gpus.append({"name": torch.cuda.get_device_name(number), "free_bytes": free, "total_bytes": total})
    return {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": _cudnn(torch.backends.cudnn.version()),  # type: ignore[no-untyped-call]
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if gpus else None,  # type: ignore[no-untyped-call]
        "gpus": gpus,
    }


def _cudnn(number: int | None) -> str | None:
    """91002 is 9.10.2; before version 9 a digit less was kept for the major version: 8907 is 8.9.7."""
    if number is None:
        return None
    major, rest = divmod(number, 10_000 if number >= 90_000 else 1000)
    return f"{major}.{rest // 100}.{rest % 100}"


MOST_SAMPLES = 8  # global batch of the step that is tried, at most


def examine_device(config: RunConfig) -> dict[str, Any]:
    """Versions, GPUs, and for each thing that the configuration asks what it comes to here or why it cannot be."""
    found = visible_device()
    if config.launch.device == "cuda" and not found["gpus"]:
        return found | {"possible": []}
    device = torch.device(config.launch.device)
    if device.type == "cpu":
        torch.set_num_threads(config.launch.threads)
    return found | {"possible": [_tried(what, ask, config, device) for what, ask in ASKED.items()]}


def _attention(config: RunConfig, device: torch.device) -> str:
    return resolve_attention(config.attention, device, COMPUTE_TYPES[resolve_precision(config.precision, device)])


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
    "precision": lambda config, device: resolve_precision(config.precision, device),
    "attention": _attention,
    "kernels": lambda config, device: resolve_kernels(config.kernels, device),
    "cuda_graph": lambda config, device: "step" if uses_graphs(config, device) else "none",
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


ROUNDS = 20


@dataclass(frozen=True)
class Offset:
    """A rank's clock minus rank 0's lies between these, in seconds."""

    least: float
    greatest: float

    @property
    def certain(self) -> float:
        """Seconds that the clocks are apart at least; 0 where they may be alike."""
        return max(self.least, -self.greatest, 0.0)


def measure_offsets(processes: Processes, rounds: int = ROUNDS) -> list[Offset]:
    """Of every rank, as all ranks tell each other the time again and again. On every rank the same."""
    sent, received = [], []
    for _ in range(rounds):
        dist.barrier()
        now = torch.tensor([time.time()], dtype=torch.float64, device=processes.device)
        times = [torch.empty_like(now) for _ in range(processes.ranks)]
        dist.all_gather(times, now)
        sent.append(torch.cat(times).cpu())
        received.append(time.time())
    mine = torch.tensor(received, dtype=torch.float64, device=processes.device)
    everyones = [torch.empty_like(mine) for _ in range(processes.ranks)]
    dist.all_gather(everyones, mine)
    return offsets(torch.stack(sent), torch.stack(everyones, dim=1).cpu())


def offsets(sent_NR: Tensor, received_NR: Tensor) -> list[Offset]:
    """From when, in each of N rounds, each of R ranks sent and when it had received what all had sent.

    Rank r received after rank 0 sent, so its clock is at most received[r] − sent[0] ahead; and rank 0 received after
    rank r sent, so it is at least sent[r] − received[0] ahead.
    """
    greatest_R = (received_NR - sent_NR[:, :1]).min(dim=0).values
    least_R = (sent_NR - received_NR[:, :1]).max(dim=0).values
    least_R[0] = greatest_R[0] = 0.0
    return [Offset(*pair) for pair in zip(least_R.tolist(), greatest_R.tolist(), strict=True)]


LARGEST_MESSAGE = {"cpu": 2**26, "cuda": 2**29}  # bytes all-reduced at most: enough for latency not to count
TURNS = 5


def examine_together(config: RunConfig, processes: Processes, words: int) -> dict[str, Any]:
    """One object for the whole system; every rank has to call it."""
    clocks = measure_offsets(processes)
    everyone: list[dict[str, Any]] = [{}] * processes.ranks
    dist.all_gather_object(everyone, _own(config, processes))
    for facts, offset in zip(everyone, clocks, strict=True):
        facts |= {"clock_seconds": [offset.least, offset.greatest], "clock_seconds_certain": offset.certain}
    return {
        "ranks": everyone,
        "backend": dist.get_backend(),
        "all_reduce": measure_all_reduce(processes, config.model_size, words),
    }


def measure_all_reduce(processes: Processes, size: Size, words: int) -> dict[str, float]:
    """Median of several all-reduces of float32 as many as the gradients are, or of a part of them where they are large.

    `bus_bandwidth` in bytes/s is what each link carries in a ring, 2 (n − 1) / n of the bytes a second; it does not
    depend on the number of ranks n, and is 0 for one rank, which sends nothing.
    """
    gradients = 4 * size.parameters(words)
    message = min(gradients, LARGEST_MESSAGE[processes.device.type])
    tensor = torch.ones(message // 4, dtype=torch.float32, device=processes.device)
    seconds = []
    for _ in range(TURNS + 1):
        tensor.fill_(1.0)
        dist.barrier()
        seconds.append(timed(lambda: dist.all_reduce(tensor), processes.device))
    right = bool((tensor == processes.ranks).all())
    typical = median(seconds[1:])
    share = 2 * (processes.ranks - 1) / processes.ranks
    return {
        "bytes": message,
        "seconds": typical,
        "bus_bandwidth": share * message / typical,
        "gradient_bytes": gradients,
        "right": float(right),
    }


def missing_paths(paths: Sequence[Path]) -> list[str]:
    """Those that this process cannot read."""
    return [str(path) for path in paths if not os.access(path, os.R_OK)]


def _own(config: RunConfig, processes: Processes) -> dict[str, Any]:
    device, data = processes.device, config.data
    paths = [*config.stores, data.evaluation_store, data.vocabulary, config.initial_checkpoint]
    dist.barrier()  # so that all multiply at once, as in training
    return {
        "rank": processes.rank,
        "host": socket.gethostname(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "matmul_flops": matmul_peak(resolve_precision(config.precision, device), device),
        "missing_paths": missing_paths([path for path in paths if path is not None]),
    }
