"""Check of this machine's GPUs before a run."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from podium.config.load import load_system
from podium.core.errors import UsageError
from podium.launch.gpus import count_gpus, require_gpus
from podium.run import run_set
from podium.run.run_set import RunRequest, execute

ON_GPU = ["launch.device=cuda"]


def driver(count: int, code: int = 0) -> Callable[[str], Any]:
    """A stand-in of ctypes.CDLL for a machine with `count` GPUs, whose driver returns `code`."""

    def write_count(pointer: Any) -> int:
        pointer._obj.value = count
        return 0

    return lambda _: SimpleNamespace(cuInit=lambda _: code, cuDeviceGetCount=write_count)


def no_driver(name: str) -> Any:
    raise OSError(name)


@pytest.mark.parametrize(
    ("library", "message"),
    [
        (no_driver, "this machine has no GPU (the NVIDIA driver's libcuda.so.1 is not installed); see `nvidia-smi`"),
        (driver(4, code=100), "this machine has no GPU (the NVIDIA driver reports error 100 (cuInit)); see"),
        (driver(0), "this machine has no GPU; see"),
        (driver(1), "launch.processes_per_node is 2, but this machine has 1 GPU; see"),
    ],
)
def test_too_few_gpus_are_refused(monkeypatch: pytest.MonkeyPatch, library: Any, message: str) -> None:
    monkeypatch.setattr("ctypes.CDLL", library)
    with pytest.raises(UsageError) as error:
        require_gpus(load_system("laptop", settings=[*ON_GPU, "launch.processes_per_node=2"]))
    assert message in str(error.value) and error.value.exit_code == 2


def test_enough_gpus_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", driver(2))
    monkeypatch.setattr("importlib.metadata.version", lambda _: "2.13.0+cu130")
    assert count_gpus() == (2, "")
    require_gpus(load_system("laptop", settings=[*ON_GPU, "launch.processes_per_node=2"]))
    monkeypatch.setattr("importlib.metadata.version", lambda _: "2.13.0+cpu")
    with pytest.raises(UsageError, match=r"torch 2.13.0\+cpu is installed, which is built for CPUs"):
        require_gpus(load_system("laptop", settings=ON_GPU))


def test_a_system_of_cpus_needs_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", no_driver)
    require_gpus(load_system("laptop"))


def test_a_run_is_refused_before_anything_is_changed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("ctypes.CDLL", no_driver)
    monkeypatch.setattr(run_set, "RUNS", tmp_path / "runs")
    began = time.monotonic()
    with pytest.raises(UsageError, match="no GPU"):
        list(execute(RunRequest("laptop", ON_GPU), None))  # type: ignore[arg-type]
    assert time.monotonic() - began < 2
    assert not (tmp_path / "runs").exists()


IN_DOCKER = [*ON_GPU, "launch.launcher=docker", "launch.container.image=podium"]


def test_a_run_in_docker_is_refused_before_docker_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", driver(1))
    monkeypatch.setattr(run_set, "validate_mounts", lambda *_: None)
    monkeypatch.setattr(run_set, "exec_launcher", lambda *_: pytest.fail("docker was started"))
    message = "launch.processes_per_node is 2, but this machine has 1 GPU; see `nvidia-smi`, run on"
    with pytest.raises(UsageError, match=message):
        list(execute(RunRequest("laptop", [*IN_DOCKER, "launch.processes_per_node=2"]), None))  # type: ignore[arg-type]


def test_of_a_run_in_docker_all_gpus_count_and_this_pytorch_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr("importlib.metadata.version", lambda _: "2.13.0+cpu")
    monkeypatch.setattr(
        "podium.launch.gpus.count_gpus", lambda: (1 if os.environ.get("CUDA_VISIBLE_DEVICES") else 2, "")
    )
    require_gpus(load_system("laptop", settings=[*IN_DOCKER, "launch.processes_per_node=2"]))
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"


def test_of_a_slurm_job_no_gpu_is_needed_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", no_driver)
    require_gpus(load_system("laptop", settings=[*ON_GPU, "launch.launcher=slurm"]))
