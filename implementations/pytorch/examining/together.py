"""What the ranks of a system find out together: who they are, how fast they reach each other, whose clock differs."""

import json
import os
import platform
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.bert.sizes import Size
from implementations.pytorch.examining.clocks import measure_offsets
from implementations.pytorch.training.precision import matmul_peak, resolve_precision
from implementations.pytorch.training.processes import Processes
from podium.config import RunConfig

LARGEST_MESSAGE = {"cpu": 2**26, "cuda": 2**29}
"""Bytes that are all-reduced at most: enough for bandwidth and not for latency to count."""
TURNS = 5


def examine_together(config: RunConfig, processes: Processes, words: int) -> dict[str, Any]:
    """One object for the whole system; every rank has to call it."""
    clocks = measure_offsets(processes)
    own = _own(config, processes)
    everyone = gathered(processes, own)
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
        _wait(processes.device)
        started = time.perf_counter()
        dist.all_reduce(tensor)
        _wait(processes.device)
        seconds.append(time.perf_counter() - started)
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


def gathered(processes: Processes, facts: dict[str, Any]) -> list[dict[str, Any]]:
    """Every rank's facts by rank, sent as JSON."""
    content = torch.tensor(list(json.dumps(facts).encode()), dtype=torch.uint8)
    longest = processes.most(len(content))
    padded = torch.full((longest,), ord(" "), dtype=torch.uint8)
    padded[: len(content)] = content
    padded = padded.to(processes.device)
    all_ = [torch.empty_like(padded) for _ in range(processes.ranks)]
    dist.all_gather(all_, padded)
    return [json.loads(bytes(one.cpu().tolist())) for one in all_]


def missing_paths(paths: Sequence[Path]) -> list[str]:
    """Those that this process cannot read."""
    return [str(path) for path in paths if not os.access(path, os.R_OK)]


def _own(config: RunConfig, processes: Processes) -> dict[str, Any]:
    device, data = processes.device, config.data
    paths = [data.store, data.evaluation_store, data.vocabulary, config.initial_checkpoint]
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


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
