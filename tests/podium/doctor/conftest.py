"""Fixtures: a system without faults, with real data in the test's folder and the diagnostics of a sound machine."""

import hashlib
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.bert.demo_text import EmbeddedText
from benchmarks.bert.published.reading import SamplesToTarget
from podium.config.load import load_system
from podium.config.schema import RunConfig
from podium.doctor.context import DiagnosticContext, Places
from podium.doctor.diagnose import prepare_data
from podium.doctor.filesystem import BLOCK, Speed, write_speed
from podium.run.data import with_data

FAST = 5e11
# Settings that fill all fields of a shipped system's description.
DESCRIBED = [
    "description.host_processor_model_name=EPYC",
    "description.host_processor_core_count=1",
    f"description.host_processor_vcpu_count={os.cpu_count()}",
    *(
        f"description.{key}=stated"
        for key in (
            *("host_processor_frequency", "host_processor_caches", "host_processor_interconnect"),
            *("host_memory_capacity", "host_storage_type", "host_storage_capacity", "host_memory_configuration"),
            *("accelerator_host_interconnect", "accelerator_frequency", "accelerator_on-chip_memories"),
            *("accelerator_memory_configuration", "cooling", "host_processors_per_node"),
        )
    ),
]
LAPTOP = [
    *DESCRIBED,
    "launch.processes_per_node=2",
    "evaluation.samples=20",
    "evaluation.interval_samples=256",
    "max_samples=512",
]


@pytest.fixture(scope="session")
def prepared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data folder with a short embedded text and its shards."""
    folder = tmp_path_factory.mktemp("doctor") / "data"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("podium.run.data.DATA", folder)
        patch.setattr("benchmarks.bert.demo_text.ARTICLES_PER_PART", 4)
        patch.setattr("benchmarks.bert.demo_text.EVALUATION_ARTICLES", 2)
        patch.setattr("podium.run.data.os.cpu_count", lambda: 1)
        with_data(load_system("laptop", settings=LAPTOP), lambda _: None)
    return folder


@pytest.fixture(scope="session")
def text_sha256(prepared_folder: Path) -> str:
    """Digest of the short text, with which it counts as complete and is not written again."""
    text = EmbeddedText.of(prepared_folder / "embedded" / "text")
    files = (*text.training, text.evaluation, text.vocabulary)
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def write_speed_of_a_sound_disk(folder: Path, most: int = BLOCK) -> Speed:
    """Write one block, and return a fixed speed that does not depend on the machine."""
    write_speed(folder, min(most, BLOCK))
    return Speed(10**9, 1.0)


@pytest.fixture
def data(prepared_folder: Path, text_sha256: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the data folder that a test may damage; it becomes the data folder of runs."""
    shutil.copytree(prepared_folder, tmp_path / "data")
    monkeypatch.setattr("podium.run.data.DATA", tmp_path / "data")
    monkeypatch.setattr("benchmarks.bert.demo_text.ARTICLES_PER_PART", 4)
    monkeypatch.setattr("benchmarks.bert.demo_text.EVALUATION_ARTICLES", 2)
    monkeypatch.setattr("benchmarks.bert.demo_text.TEXT_SHA256", text_sha256)
    monkeypatch.setattr("podium.doctor.filesystem.write_speed", write_speed_of_a_sound_disk)
    monkeypatch.setattr("podium.doctor.rules.has_licence", lambda folder: True)
    monkeypatch.setattr("podium.doctor.rules.read_tiny_samples", lambda: [samples_to_target(10_000)])
    return tmp_path / "data"


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path / "runs", tmp_path / "results", tmp_path / "data")


def samples_to_target(batch: int) -> SamplesToTarget:
    """Published samples to target at this batch size."""
    return SamplesToTarget("own", "Podium", "laptop", "adamw", batch, "open", 400, 300, 500, 10, 10)


def make_device(config: RunConfig) -> dict[str, Any]:
    gpu = {"name": "NVIDIA H200", "free_bytes": 150 * 10**9, "total_bytes": 150 * 10**9 + 2**29}
    names = ("precision", "attention", "kernels", "cuda_graph", "loader", "step")
    possible = [{"what": what, "found": "fine", "why_not": None} for what in names]
    gpus = [dict(gpu) for _ in range(config.launch.processes_per_node)] if config.launch.device == "cuda" else []
    return {"torch": "2.13.0+cpu", "cuda": None, "gpus": gpus, "possible": possible}


def make_ranks(config: RunConfig) -> dict[str, Any]:
    one = {"host": "one", "python": "3.11.7", "torch": "2.13.0+cpu", "device": "cpu", "matmul_flops": FAST}
    one |= {"missing_paths": [], "clock_seconds": [-1e-4, 1e-4], "clock_seconds_certain": 0.0}
    ranks = [one | {"rank": rank, "missing_paths": []} for rank in range(config.launch.ranks)]
    reduced = {"bytes": 2**21, "seconds": 1e-3, "bus_bandwidth": 2e10, "gradient_bytes": 2**21, "right": 1.0}
    return {"ranks": ranks, "backend": "gloo", "all_reduce": reduced}


@pytest.fixture
def make_context(places: Places, data: Path) -> Callable[..., DiagnosticContext]:
    """Make the input of the checks for a configuration with these settings and real, verified data."""

    def make(*settings: str, system: str = "laptop") -> DiagnosticContext:
        small = LAPTOP if system == "laptop" else [*DESCRIBED, "evaluation.samples=20"]
        config = load_system(system, settings=[*small, *settings])
        sound = {"busy": 0.0, "processors": 2.0, "memory": 16 * 2.0**30, "limit": 20_000.0}
        context = DiagnosticContext(
            config, places, None, None, make_device(config), "", make_ranks(config), "", machine=sound
        )
        prepared, fault = prepare_data(config, lambda _: None)
        return replace(context, prepared=prepared, data_fault=fault)

    return make
