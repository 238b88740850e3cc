"""Diagnostics of devices and ranks for `podium doctor`: capabilities, versions, collectives and clocks.

Each feature that a configuration requires is tried alone, and then all of them in a real step. Clock offsets are
bounded by timestamps of messages, since a message is received after it was sent, by any clock. Source: Cristian,
Probabilistic clock synchronization, 1989.
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
from implementations.pytorch.bench.variants import PodiumRunner, mixed_lengths
from implementations.pytorch.build_run import uses_graphs
from implementations.pytorch.distributed.process_group import Processes, single_process
from implementations.pytorch.kernels.choose import resolve_kernels
from implementations.pytorch.model.attention.selection import resolve_attention
from implementations.pytorch.precision import COMPUTE_TYPES, matmul_peak, measure_seconds, resolve_precision
from podium.config.schema import RunConfig
from podium.core.errors import PodiumError, UsageError


def visible_device() -> dict[str, Any]:
    """Return versions as text, None for what is not available, and name, free and total bytes of each GPU."""
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
    """Format cuDNN's version number: 91002 is 9.10.2. Before version 9 it had a digit less: 8907 is 8.9.7."""
    if number is None:
        return None
    major, rest = divmod(number, 10_000 if number >= 90_000 else 1000)
    return f"{major}.{rest // 100}.{rest % 100}"


MAX_STEP_SAMPLES = 8  # upper bound on the global batch of the trial step


def diagnose_device(config: RunConfig) -> dict[str, Any]:
    """Return versions, GPUs, and for each feature of the configuration its resolved value or why it is not possible."""
    found = visible_device()
    if config.launch.device == "cuda" and not found["gpus"]:
        return found | {"possible": []}
    device = torch.device(config.launch.device)
    if device.type == "cpu":
        torch.set_num_threads(config.launch.threads)
    return found | {"possible": [_run_check(name, check, config, device) for name, check in CHECKS.items()]}


def _attention(config: RunConfig, device: torch.device) -> str:
    return resolve_attention(config.attention, device, COMPUTE_TYPES[resolve_precision(config.precision, device)])


def _loader(config: RunConfig, device: torch.device) -> str:
    if config.loader == "dali" and (find_spec("nvidia") is None or find_spec("nvidia.dali") is None):
        raise UsageError("loader: found dali, which is not installed; install it with `pip install --editable .[dali]`")
    return config.loader


def _step(config: RunConfig, device: torch.device) -> str:
    """Run an optimizer step of a one-layer model under the configuration, on a few synthetic samples."""
    parts = config.gradient_accumulation_steps
    samples = parts * min(MAX_STEP_SAMPLES, max(1, config.local_batch_size // parts))
    launch = config.launch.model_copy(update={"processes_per_node": 1, "nodes": 1})
    changed = {"launch": launch, "global_batch_size": samples, "initial_checkpoint": None, "seed": 0}
    with single_process(device) as processes:
        wrong = _non_finite_parameters(config.model_copy(update=changed), processes, samples)
    if wrong:
        raise UsageError(f"after one step {wrong[0]} is not finite")
    return f"{samples} samples, {config.optimizer.algorithm}"


def _non_finite_parameters(config: RunConfig, processes: Processes, samples: int) -> list[str]:
    """Return the names of parameters that are not finite after a step."""
    size = replace(config.model_size, layers=1)
    runner = PodiumRunner(config, processes, mixed_lengths(wikipedia_histogram(), samples), TINY.vocabulary_size, size)
    runner.take(0)
    return [name for name, p in runner.stepper.model.named_parameters() if not bool(torch.isfinite(p).all())]


# What is checked → function that returns the resolved value or raises. The step comes last: its errors are the least
# specific.
CHECKS: dict[str, Callable[[RunConfig, torch.device], str]] = {
    "precision": lambda config, device: resolve_precision(config.precision, device),
    "attention": _attention,
    "kernels": lambda config, device: resolve_kernels(config.kernels, device),
    "cuda_graph": lambda config, device: "step" if uses_graphs(config, device) else "none",
    "loader": _loader,
    "step": _step,
}


def _run_check(
    name: str, check: Callable[[RunConfig, torch.device], str], config: RunConfig, device: torch.device
) -> Any:
    """Return the result of a check as JSON."""
    try:
        return {"what": name, "found": check(config, device), "why_not": None}
    except PodiumError as error:
        return {"what": name, "found": "", "why_not": str(error)}
    except Exception as error:  # noqa: BLE001 — any error of the step would end a run too
        lines = str(error).strip().splitlines() or [""]
        return {"what": name, "found": "", "why_not": f"{type(error).__name__}: {lines[0]}"}


OFFSET_ROUNDS = 20


@dataclass(frozen=True)
class ClockOffset:
    """Bounds on a rank's clock minus rank 0's clock, in seconds."""

    lower: float
    upper: float

    @property
    def minimum_difference(self) -> float:
        """Lower bound on the difference of the clocks in seconds; 0 if they may be equal."""
        return max(self.lower, -self.upper, 0.0)


def measure_offsets(processes: Processes, rounds: int = OFFSET_ROUNDS) -> list[ClockOffset]:
    """Measure the clock offset of every rank by all-gathers of timestamps. A collective, with equal results."""
    sent, received = [], []
    for _ in range(rounds):
        dist.barrier()  # the closer together ranks send, the tighter the bounds
        now = torch.tensor([time.time()], dtype=torch.float64, device=processes.device)
        times = [torch.empty_like(now) for _ in range(processes.ranks)]
        dist.all_gather(times, now)
        # On a GPU the copy to the host waits for the all-gather, so the next timestamp is taken after it.
        sent.append(torch.cat(times).cpu())
        received.append(time.time())
    received_here = torch.tensor(received, dtype=torch.float64, device=processes.device)
    received_by_rank = [torch.empty_like(received_here) for _ in range(processes.ranks)]
    dist.all_gather(received_by_rank, received_here)
    return offset_bounds(torch.stack(sent), torch.stack(received_by_rank, dim=1).cpu())


def offset_bounds(sent_NR: Tensor, received_NR: Tensor) -> list[ClockOffset]:
    """Bound the clock offsets of R ranks, from the times [N, R] of N all-gathers at which ranks sent and received.

    Rank r received after rank 0 sent, so its clock is at most received[r] − sent[0] ahead. Rank 0 received after rank r
    sent, so it is at least sent[r] − received[0] ahead. The tightest bounds of all rounds hold.
    """
    greatest_R = (received_NR - sent_NR[:, :1]).min(dim=0).values
    least_R = (sent_NR - received_NR[:, :1]).max(dim=0).values
    least_R[0] = greatest_R[0] = 0.0
    return [ClockOffset(*pair) for pair in zip(least_R.tolist(), greatest_R.tolist(), strict=True)]


LARGEST_MESSAGE = {"cpu": 2**26, "cuda": 2**29}  # bytes of an all-reduce, large enough for latency to be negligible
ALL_REDUCE_ROUNDS = 5


def diagnose_ranks(config: RunConfig, processes: Processes, vocabulary_size: int) -> dict[str, Any]:
    """Return facts of all ranks, clock offsets and all-reduce bandwidth, as JSON. A collective."""
    clocks = measure_offsets(processes)
    facts_by_rank: list[dict[str, Any]] = [{}] * processes.ranks
    dist.all_gather_object(facts_by_rank, _rank_facts(config, processes))
    for facts, offset in zip(facts_by_rank, clocks, strict=True):
        facts |= {"clock_seconds": [offset.lower, offset.upper], "clock_seconds_certain": offset.minimum_difference}
    return {
        "ranks": facts_by_rank,
        "backend": dist.get_backend(),
        "all_reduce": measure_all_reduce(processes, config.model_size, vocabulary_size),
    }


def measure_all_reduce(processes: Processes, size: Size, vocabulary_size: int) -> dict[str, float]:
    """Measure the median of several float32 all-reduces, of the size of the gradients up to LARGEST_MESSAGE.

    `bus_bandwidth` in bytes/s is what each link of a ring carries, 2 (n − 1) / n of the message per second; it does not
    depend on the number of ranks n. It is 0 for one rank, which sends nothing. Source: NCCL tests, PERFORMANCE.md.
    """
    gradients = 4 * size.parameters(vocabulary_size)
    message = min(gradients, LARGEST_MESSAGE[processes.device.type])
    tensor = torch.ones(message // 4, dtype=torch.float32, device=processes.device)
    seconds = []
    for _ in range(ALL_REDUCE_ROUNDS + 1):
        tensor.fill_(1.0)
        dist.barrier()  # so that the time does not include waiting for the slowest rank
        seconds.append(measure_seconds(lambda: dist.all_reduce(tensor), processes.device))
    right = bool((tensor == processes.ranks).all())
    typical = median(seconds[1:])  # without the first, which sets up connections
    share = 2 * (processes.ranks - 1) / processes.ranks
    return {
        "bytes": message,
        "seconds": typical,
        "bus_bandwidth": share * message / typical,
        "gradient_bytes": gradients,
        "right": float(right),
    }


def missing_paths(paths: Sequence[Path]) -> list[str]:
    """Return the paths that this process cannot read, as text."""
    return [str(path) for path in paths if not os.access(path, os.R_OK)]


def _rank_facts(config: RunConfig, processes: Processes) -> dict[str, Any]:
    """Return host, versions, device, matrix-product rate and unreadable paths of this rank."""
    device, data = processes.device, config.data
    paths = [*config.stores, data.evaluation_store, data.vocabulary, config.initial_checkpoint]
    dist.barrier()  # so that all ranks multiply at the same time, as in training
    return {
        "rank": processes.rank,
        "host": socket.gethostname(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "matmul_flops": matmul_peak(resolve_precision(config.precision, device), device),
        "missing_paths": missing_paths([path for path in paths if path is not None]),
    }
