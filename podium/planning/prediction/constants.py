"""The predictor's constants: each with its name, unit and source, in one file that `fit` writes."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from podium.core.files import write_whole
from podium.core.paths import package_file

PATH = package_file("podium.planning.prediction", "constants.json")


@dataclass(frozen=True)
class Constants:
    """Values alone; constants.json says for each what it is, in what unit, and whether it was fitted or assumed."""

    sustained_flops_sxm: float
    sustained_flops_pcie: float
    micro_batch_seconds: float
    host_path_switched: float
    host_path_direct: float
    link_efficiency: float
    hop_inside: float
    hop_between: float
    memory_efficiency: float
    start_seconds_8: float
    start_seconds_64: float
    start_seconds_1024: float
    evaluation_share: float
    cpu_run_over_bench: float
    throughput_error: float

    def start_seconds(self, ranks: int) -> float:
        """From run_start until steps go at their full rate, by the logarithm of the ranks."""
        known = (8, 64, 1024)
        seconds = (self.start_seconds_8, self.start_seconds_64, self.start_seconds_1024)
        return float(np.interp(np.log(ranks), np.log(known), seconds))


FITTED, ASSUMED = "fitted", "assumed"
ABOUT: dict[str, tuple[str, str, str]] = {
    "sustained_flops_sxm": (
        "FLOP/s",
        FITTED,
        "useful FLOPs of a step on an A100 SXM, launches and communication apart",
    ),
    "sustained_flops_pcie": ("FLOP/s", FITTED, "the same on an A100 PCIe"),
    "micro_batch_seconds": (
        "s",
        ASSUMED,
        "what a micro-batch takes whatever its size: some 40 kernels in each of 24 layers, 4 µs each; beside the "
        "network's rate the systems fitted on cannot tell it from 0",
    ),
    "host_path_switched": ("bytes/s", FITTED, "a node of eight SXM GPUs to its adapters, in series with them"),
    "host_path_direct": (
        "bytes/s",
        FITTED,
        "a node without switches near its GPUs to its adapters, in series with them",
    ),
    "link_efficiency": ("1", ASSUMED, "share of a link's nominal rate that collectives reach inside a node"),
    "hop_inside": ("s", ASSUMED, "latency of a hop inside a node"),
    "hop_between": ("s", ASSUMED, "latency of a hop between nodes, InfiniBand and the software above it"),
    "memory_efficiency": ("1", ASSUMED, "share of the memory's nominal rate that an optimizer step reaches"),
    "start_seconds_8": (
        "s",
        FITTED,
        "run_start to full rate at 8 GPUs: what the first evaluation comes later than the others are apart, median",
    ),
    "start_seconds_64": ("s", FITTED, "the same of NVIDIA's 64 GPUs, 2.0"),
    "start_seconds_1024": ("s", FITTED, "the same of NVIDIA's 1,024 GPUs, 2.0"),
    "evaluation_share": (
        "1",
        ASSUMED,
        "time of an evaluated sample in that of a trained one: forward is a third of the FLOPs; logs of two open 8-GPU "
        "runs that time evaluations have 0.30 and 0.37",
    ),
    "cpu_run_over_bench": (
        "1",
        FITTED,
        "a step of a run on a CPU in what systems/costs says of it: 42.0 ms in ten laptop runs (334.9 sequences/s, "
        "median 30.9 s, docs/lab-notebook.md 2026-11-21), 31.8 ms by laptop.json, whose steps had no loader beside "
        "them",
    ),
    "throughput_error": ("1", FITTED, "nine of ten systems fitted on are nearer in sequences/s"),
}


def load_constants(path: Path = PATH) -> Constants:
    """ValueError for a file with other constants than these."""
    entries: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["constants"]
    if set(entries) != set(ABOUT):
        raise ValueError(f"{path}: has the constants {sorted(entries)}, not {sorted(ABOUT)}")
    return Constants(**{name: float(entry["value"]) for name, entry in entries.items()})


def save_constants(constants: Constants, path: Path, fitted_on: list[str]) -> None:
    """Write every constant with its unit and where it comes from, and the names of the systems fitted on."""
    entries = {
        name: {"value": float(f"{getattr(constants, name):.5g}"), "unit": unit, "source": source, "what": what}
        for name, (unit, source, what) in ABOUT.items()
    }
    write_whole(path, json.dumps({"constants": entries, "fitted_on": fitted_on}, indent=2, ensure_ascii=False) + "\n")
