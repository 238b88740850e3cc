"""What a machine tells of itself: from files of the kernel, a stand-in for nvidia-smi, and this very machine."""

import os
from pathlib import Path

import pytest

from podium.submission.detecting import detect, gpu_fields, os_name, processor_fields, total_memory

CPUINFO = "\n\n".join(
    f"processor\t: {n}\nmodel name\t: AMD EPYC 7742 64-Core Processor\nphysical id\t: {n // 4}\ncore id\t\t: {n % 2}"
    for n in range(8)
)
"""Two sockets of two cores with two threads each."""
GPU = {"name": "NVIDIA H200", "free_bytes": 149 * 10**9, "total_bytes": 150_754_820_096}


@pytest.fixture
def cpus(tmp_path: Path) -> Path:
    for number, (level, kind, size) in enumerate(
        [("1", "Data", "48K"), ("1", "Instruction", "32K"), ("2", "Unified", "1024K"), ("3", "Unified", "33792K")]
    ):
        folder = tmp_path / "cpu0" / "cache" / f"index{number}"
        folder.mkdir(parents=True)
        for name, text in (("level", level), ("type", kind), ("size", size)):
            (folder / name).write_text(f"{text}\n", encoding="ascii")
    (tmp_path / "cpu0" / "cpufreq").mkdir()
    (tmp_path / "cpu0" / "cpufreq" / "cpuinfo_max_freq").write_text("3400000\n", encoding="ascii")
    (tmp_path / "cpuinfo").write_text(CPUINFO + "\n", encoding="ascii")
    return tmp_path


def test_processors(cpus: Path) -> None:
    assert processor_fields(cpus / "cpuinfo", cpus) == {
        "host_processor_model_name": "AMD EPYC 7742 64-Core Processor",
        "host_processors_per_node": "2",
        "host_processor_core_count": "2",
        "host_processor_frequency": "3.40 GHz",
        "host_processor_caches": "L1d 48 KiB, L1i 32 KiB, L2 1 MiB, L3 33 MiB",
    }


def test_what_the_kernel_does_not_tell_is_left_out(tmp_path: Path) -> None:
    assert processor_fields(tmp_path / "none", tmp_path) == {}
    arm = tmp_path / "cpuinfo"
    arm.write_text("processor\t: 0\nBogoMIPS\t: 50.00\n\nprocessor\t: 1\nBogoMIPS\t: 50.00\n", encoding="ascii")
    assert processor_fields(arm, tmp_path) == {}


def test_memory_and_system(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("MemTotal:       2113370624 kB\nMemFree: 1 kB\n", encoding="ascii")
    assert total_memory(path) == 2113370624 * 1024
    path.write_text('NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 24.04.1 LTS"\n', encoding="ascii")
    assert os_name(path) == "Ubuntu 24.04.1 LTS"


def test_gpus() -> None:
    assert gpu_fields([GPU] * 8) == {
        "accelerators_per_node": "8",
        "accelerator_model_name": "NVIDIA H200",
        "accelerator_memory_capacity": "140 GB",
    }
    assert gpu_fields([]) == {"accelerators_per_node": "0"}
    assert gpu_fields([GPU, GPU | {"name": "NVIDIA A30"}]) == {"accelerators_per_node": "2"}


@pytest.mark.parametrize(
    ("script", "driver", "clock"),
    [
        ("echo '550.54.15, 1980'; echo '550.54.15, 1980'", "550.54.15", "1980 MHz"),
        ("echo '550.54.15, [N/A]'", None, None),
        ("echo 'No devices were found'; exit 6", None, None),
        ("exit 0", None, None),
    ],
)
def test_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, driver: str | None, clock: str | None
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f'#!/bin/sh\ncase "$*" in *driver_version,clocks.max.sm*) ;; *) exit 9;; esac\n{script}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    device = {"torch": "2.12.0+cu130", "cuda": "13.0", "cudnn": "9.10.2", "nccl": "2.27.3", "gpus": [GPU]}
    found = detect(device)
    assert found.fields["framework"] == "PyTorch 2.12.0"
    assert found.fields.get("accelerator_frequency") == clock
    assert found.software.get("cuda_driver") == driver
    assert found.software["cuda"] == "13.0" and found.software["nccl"] == "2.27.3"


def test_this_machine_without_its_framework() -> None:
    found = detect(None)
    assert found.fields["host_processor_vcpu_count"] == str(os.cpu_count())
    assert "framework" not in found.fields and "accelerators_per_node" not in found.fields
    assert found.fields["host_memory_capacity"].endswith(" GB")
    assert set(found.software) >= {"kernel", "python"}


def test_libraries_of_a_gpu_are_not_told_of_a_machine_without_one() -> None:
    device = {"torch": "2.13.0", "cuda": "13.0", "cudnn": "9.1.0", "nccl": None, "gpus": []}
    assert set(detect(device).software) <= {"kernel", "python", "cuda_driver"}
