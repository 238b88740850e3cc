"""MLPerf's JSON of a system, and the comparison of a description with a machine.

Values are detected from files of the kernel, a stand-in for nvidia-smi, and on this machine.
"""

import ast
import inspect
import json
import os
from pathlib import Path
from typing import Any

import pytest

from podium.cli import submit
from podium.config.load import load_system, system_names, write_resolved
from podium.config.run_folder import RunFolder
from podium.core.errors import Interrupted
from podium.doctor.devices import memory_bytes
from podium.submission.describe import (
    COMPARISONS,
    Detected,
    as_json,
    compare,
    detect,
    differing_fields,
    fill_description,
    gpu_fields,
    nodes_of_runs,
    os_name,
    processor_fields,
    same_text,
    stated,
    system_json,
)


def official_fields() -> list[str]:
    """Return the list of fields in the official checker's source."""
    from mlperf_logging.system_desc_checker import system_desc_checker

    tree = ast.parse(inspect.getsource(system_desc_checker))
    lists = (node for node in ast.walk(tree) if isinstance(node, ast.Assign))
    (value,) = (node.value for node in lists if getattr(node.targets[0], "id", "") == "required_fields")
    return list(ast.literal_eval(value))


@pytest.mark.parametrize("system", system_names())
def test_the_json_has_the_official_fields_in_order_as_text(system: str) -> None:
    described = json.loads(system_json(stated(load_system(system))))
    assert list(described) == official_fields() and len(described) == 33
    assert all(isinstance(value, str) for value in described.values())


def test_the_official_checker_accepts_the_json(tmp_path: Path, official: Any) -> None:
    (tmp_path / "systems").mkdir()
    (tmp_path / "systems" / "laptop.json").write_text(system_json(stated(load_system("laptop"))), encoding="utf-8")
    found = official("system_desc_checker", tmp_path / "systems", "training", "5.0.0", of="laptop.json")
    assert "System description checker passed for laptop" in found


@pytest.mark.parametrize(
    ("name", "text", "found", "same"),
    [
        ("host_processor_model_name", "AMD EPYC 7742", "AMD EPYC 7742 64-Core Processor", True),
        ("host_processor_model_name", "AMD EPYC 7742", "AMD EPYC 7763 64-Core Processor", False),
        ("host_processor_model_name", "Intel Xeon Platinum 8480C", "Intel(R) Xeon(R) Platinum 8480C", True),
        ("host_processor_core_count", "64", "64", True),
        ("host_processor_core_count", "64.0", "64", True),
        ("host_processor_core_count", "64", "6", False),
        ("host_processor_vcpu_count", "128", "256", False),
        ("host_processor_frequency", "2.25GHz", "2250 MHz", True),
        ("host_processor_frequency", "2.25 GHz", "3.40 GHz", False),
        ("host_processor_caches", "L3 32MiB, L2 1 MiB", "L1d 48 KiB, L1i 32 KiB, L2 1 MiB, L3 32 MiB", True),
        ("host_processor_caches", "L3 256 MiB", "L1d 48 KiB, L1i 32 KiB, L2 1 MiB, L3 32 MiB", False),
        ("host_memory_capacity", "2 TB", "2015 GB", True),
        ("host_memory_capacity", "2 TB", "1007 GB", False),
        ("host_memory_capacity", "512GiB", "503 GB", True),
        ("host_memory_capacity", "2,048 GB", "2015 GB", True),
        ("accelerator_memory_capacity", "80 GB", "79 GB", True),
        ("accelerator_memory_capacity", "80 GB", "40 GB", False),
        ("accelerator_model_name", "NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB", True),
        ("accelerator_model_name", "NVIDIA H200", "NVIDIA A100-SXM4-80GB", False),
        ("accelerator_frequency", "1.41GHz", "1410 MHz", True),
        ("framework", "PyTorch 2.13.0", "PyTorch 2.13.0", True),
        ("framework", "PyTorch, NVIDIA NGC container", "PyTorch 2.13.0", True),
        ("framework", "PyTorch 2.1", "PyTorch 2.13.0", False),
        ("framework", "TensorFlow 2.13.0", "PyTorch 2.13.0", False),
        ("operating_system", "Ubuntu 20.04.5 LTS", "Ubuntu 20.04.6 LTS", False),
        ("operating_system", "Ubuntu 20.04.6", "Ubuntu 20.04.6 LTS", True),
        ("operating_system", "Linux", "Debian GNU/Linux 12 (bookworm)", True),
    ],
)
def test_equivalent_values_are_the_same(name: str, text: str, found: str, same: bool) -> None:
    assert COMPARISONS.get(name, same_text)(text, found) is same


DETECTED = Detected(
    {
        "host_processor_model_name": "AMD EPYC 9654",
        "host_processors_per_node": "2",
        "framework": "PyTorch 2.12.0",
        "accelerators_per_node": "8",
        "accelerator_model_name": "NVIDIA H200",
    },
    {"cuda": "13.0", "kernel": "6.1", "nccl": "2.27.3"},
)


def verdicts(system: Any, detected: Detected = DETECTED) -> dict[str, str]:
    return {one.name: one.verdict for one in compare(load_system(str(system)), detected)}


def test_every_field_has_its_verdict(write_system: Any) -> None:
    system = write_system({"description.other_software_stack": "cuda_version 13.0.1, NCCL: 2.19.4"})
    found = verdicts(system)
    assert len(found) == 33 + 3
    assert found["host_processors_per_node"] == "differs" and found["framework"] == "differs"
    assert found["host_processor_model_name"] == found["host_processor_caches"] == "not stated"
    assert found["cooling"] == found["submitter"] == found["sw_notes"] == "not detected"
    assert found["number_of_nodes"] == "same"
    assert found["other_software_stack: cuda"] == "same"
    assert found["other_software_stack: nccl"] == "differs"
    assert found["other_software_stack: kernel"] == "not stated"


def test_the_cuda_drivers_version_is_not_taken_for_cudas(write_system: Any) -> None:
    system = write_system({"description.other_software_stack": "cuda_driver_version 520.61.03"})
    found = verdicts(system, Detected({}, {"cuda": "13.0", "cuda_driver": "520.61.03"}))
    assert found["other_software_stack: cuda"] == "not stated"
    assert found["other_software_stack: cuda_driver"] == "same"


def test_unused_gpus_are_not_part_of_the_system(write_system: Any) -> None:
    assert verdicts(write_system())["accelerators_per_node"] == "same"
    on_gpu = {"launch.device": "cuda", "launch.processes_per_node": 8, "bert.precision": "bf16"}
    assert verdicts(write_system(on_gpu))["accelerators_per_node"] == "differs"


def test_only_fields_not_stated_are_filled_and_all_are_listed(write_system: Any) -> None:
    config = load_system(str(write_system({"description.other_software_stack": "driver 1"})))
    fields = compare(config, DETECTED)
    description, taken = fill_description(config, fields)
    before = stated(config)
    assert {key for key in before if before[key] != description[key]} == set(taken)
    assert set(taken) == {"host_processor_model_name", "other_software_stack"}
    assert description["other_software_stack"] == "driver 1, cuda_version 13.0, kernel_version 6.1, nccl_version 2.27.3"
    assert description["framework"] == "PyTorch 2.13.0"  # contradicted, not filled
    again = load_system(str(write_system({f"description.{key}": description[key] for key in taken})))
    assert all(one.verdict in ("same", "not detected") for one in compare(again, DETECTED) if one.name in taken)
    assert [one.name for one in differing_fields(fields)] == ["host_processors_per_node", "framework"]
    assert as_json(description, fields, taken)["filled"] == taken


def test_an_interruption_ends_describe(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise Interrupted("interrupted")

    monkeypatch.setattr("podium.run.implementation.call_entry_point", interrupt)
    with pytest.raises(Interrupted):
        submit.describe("laptop", None, False, False, True)


# Two sockets of two cores with two threads each.
CPUINFO = "\n\n".join(
    f"processor\t: {n}\nmodel name\t: AMD EPYC 7742 64-Core Processor\nphysical id\t: {n // 4}\ncore id\t\t: {n % 2}"
    for n in range(8)
)
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


def test_processors_are_read_from_proc_and_sys(cpus: Path) -> None:
    assert processor_fields(cpus / "cpuinfo", cpus) == {
        "host_processor_model_name": "AMD EPYC 7742 64-Core Processor",
        "host_processors_per_node": "2",
        "host_processor_core_count": "2",
        "host_processor_frequency": "3.40 GHz",
        "host_processor_caches": "L1d 48 KiB, L1i 32 KiB, L2 1 MiB, L3 33 MiB",
    }


def test_values_that_the_kernel_does_not_report_are_left_out(tmp_path: Path) -> None:
    assert processor_fields(tmp_path / "none", tmp_path) == {}
    arm = tmp_path / "cpuinfo"
    arm.write_text("processor\t: 0\nBogoMIPS\t: 50.00\n\nprocessor\t: 1\nBogoMIPS\t: 50.00\n", encoding="ascii")
    assert processor_fields(arm, tmp_path) == {}


def test_memory_and_operating_system_are_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("MemTotal:       2113370624 kB\nMemFree: 1 kB\n", encoding="ascii")
    assert memory_bytes(path, "MemTotal") == 2113370624 * 1024
    path.write_text('NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 24.04.1 LTS"\n', encoding="ascii")
    assert os_name(path) == "Ubuntu 24.04.1 LTS"


def test_gpus_are_described_only_where_alike() -> None:
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
def test_driver_and_clock_are_read_from_nvidia_smi(
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


def test_this_machine_is_detected_without_a_framework() -> None:
    found = detect(None)
    assert found.fields["host_processor_vcpu_count"] == str(os.cpu_count())
    assert "framework" not in found.fields and "accelerators_per_node" not in found.fields
    assert found.fields["host_memory_capacity"].endswith(" GB")
    assert set(found.software) >= {"kernel", "python"}


def test_gpu_libraries_are_left_out_without_a_gpu() -> None:
    device = {"torch": "2.13.0", "cuda": "13.0", "cudnn": "9.1.0", "nccl": None, "gpus": []}
    assert set(detect(device).software) <= {"kernel", "python", "cuda_driver"}


ON_GPUS = {
    "launch.device": "cuda",
    "launch.processes_per_node": 8,
    "bert.precision": "bf16",
    "description.accelerators_per_node": "8",
    "description.accelerator_model_name": "NVIDIA H200",
    "description.host_processor_model_name": "AMD EPYC 9654",
    "description.host_processors_per_node": "2",
}
ELSEWHERE = "not checked: this machine is not one of its nodes"


@pytest.mark.parametrize(
    ("launcher", "number", "model", "is_node"),
    [
        ("torchrun", "8", "NVIDIA H200", True),
        ("torchrun", "4", "NVIDIA H200", True),
        ("torchrun", "0", "", False),
        ("torchrun", "8", "NVIDIA B200", False),
        ("slurm", "8", "NVIDIA H200", True),
        ("slurm", "4", "NVIDIA H200", False),
    ],
)
def test_host_fields_are_not_checked_on_a_machine_with_other_accelerators(
    write_system: Any, launcher: str, number: str, model: str, is_node: bool
) -> None:
    """A machine without GPUs was compared as a node of a cluster, and reported to be the same."""
    here = {"accelerators_per_node": number} | ({"accelerator_model_name": model} if model else {})
    detected = Detected(
        {key: value for key, value in DETECTED.fields.items() if "accelerator" not in key} | here, DETECTED.software
    )
    config = load_system(str(write_system(ON_GPUS | {"launch.launcher": launcher})))
    fields = compare(config, detected)
    found = {one.name: one.verdict for one in fields}
    assert found["host_processor_model_name"] == found["host_processors_per_node"] == ("same" if is_node else ELSEWHERE)
    assert found["accelerators_per_node"] == ("same" if number == "8" else "differs")
    assert found["cooling"] == "not detected" and found["number_of_nodes"] == "same"
    filled = fill_description(config, fields)[1]
    assert bool(filled) is is_node


SEVERAL = {"launch.nodes": 8, "launch.rendezvous": "node0:29500", "description.number_of_nodes": "8"}


def test_what_needs_all_nodes_is_not_checked_on_one(write_system: Any) -> None:
    """One machine was compared with the stated number of nodes, and reported to be the same."""
    config = load_system(str(write_system({**SEVERAL, "description.host_networking_topology": "fat tree"})))
    found = {one.name: one for one in compare(config, DETECTED)}
    for name in ("number_of_nodes", "host_networking_topology"):
        assert (found[name].verdict, found[name].detected) == ("not checked: needs all nodes", "")
    assert found["host_processors_per_node"].verdict == "differs"
    assert {one.name: one.verdict for one in compare(config, DETECTED, ran_on_nodes=8)}["number_of_nodes"] == "same"
    other = load_system(str(write_system({**SEVERAL, "description.number_of_nodes": "4"})))
    assert {one.name: one.verdict for one in compare(other, DETECTED)}["number_of_nodes"] == "differs"


def test_nodes_of_a_finished_run_are_known(write_system: Any, tmp_path: Path) -> None:
    config = load_system(str(write_system(SEVERAL)))
    assert nodes_of_runs(config, tmp_path / "runs") is None
    folder = RunFolder(tmp_path / "runs" / config.system / "2026-11-24_00-00-00" / "run_0")
    folder.path.mkdir(parents=True)
    write_resolved(config.model_copy(update={"seed": 1}), folder.config)
    assert nodes_of_runs(config, tmp_path / "runs") is None  # it did not finish
    folder.summary.write_text('{"seconds": 1.0}', encoding="utf-8")
    assert nodes_of_runs(config, tmp_path / "runs") == 8
