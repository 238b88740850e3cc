"""MLPerf's JSON of a system, and when a description and a machine say the same."""

import ast
import inspect
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.errors import Interrupted
from podium import submit_cli
from podium.config import load_system, system_names
from podium.submission.describing import (
    WAYS,
    as_json,
    compare,
    differing,
    filled,
    same_text,
    stated,
    system_json,
)
from podium.submission.detecting import Detected


def official_fields() -> list[str]:
    """The list in the official checker's own source."""
    from mlperf_logging.system_desc_checker import system_desc_checker

    tree = ast.parse(inspect.getsource(system_desc_checker))
    lists = (node for node in ast.walk(tree) if isinstance(node, ast.Assign))
    (value,) = (node.value for node in lists if getattr(node.targets[0], "id", "") == "required_fields")
    return list(ast.literal_eval(value))


@pytest.mark.parametrize("system", system_names())
def test_the_json_has_the_official_fields_in_their_order_all_as_text(system: str) -> None:
    described = json.loads(system_json(stated(load_system(system))))
    assert list(described) == official_fields() and len(described) == 33
    assert all(isinstance(value, str) for value in described.values())


def test_the_official_checker_takes_it(tmp_path: Path, official: Any) -> None:
    (tmp_path / "systems").mkdir()
    (tmp_path / "systems" / "laptop.json").write_text(system_json(stated(load_system("laptop"))), encoding="utf-8")
    told = official("system_desc_checker", tmp_path / "systems", "training", "5.0.0", of="laptop.json")
    assert "System description checker passed for laptop" in told


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
def test_what_says_the_same(name: str, text: str, found: str, same: bool) -> None:
    assert WAYS.get(name, same_text)(text, found) is same


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
    assert found["cooling"] == found["submitter"] == found["sw_notes"] == "cannot be told"
    assert found["number_of_nodes"] == "same"
    assert found["other_software_stack: cuda"] == "same"
    assert found["other_software_stack: nccl"] == "differs"
    assert found["other_software_stack: kernel"] == "not stated"


def test_a_cuda_drivers_version_is_not_cudas(write_system: Any) -> None:
    system = write_system({"description.other_software_stack": "cuda_driver_version 520.61.03"})
    told = verdicts(system, Detected({}, {"cuda": "13.0", "cuda_driver": "520.61.03"}))
    assert told["other_software_stack: cuda"] == "not stated"
    assert told["other_software_stack: cuda_driver"] == "same"


def test_a_gpu_that_is_not_used_is_not_described(write_system: Any) -> None:
    assert verdicts(write_system())["accelerators_per_node"] == "same"
    on_gpu = {"launch.device": "cuda", "launch.processes_per_node": 8, "bert.precision": "bf16"}
    assert verdicts(write_system(on_gpu))["accelerators_per_node"] == "differs"


def test_only_what_is_not_stated_is_filled_and_all_of_it_is_told(write_system: Any) -> None:
    config = load_system(str(write_system({"description.other_software_stack": "driver 1"})))
    fields = compare(config, DETECTED)
    description, taken = filled(config, fields)
    before = stated(config)
    assert {key for key in before if before[key] != description[key]} == set(taken)
    assert set(taken) == {"host_processor_model_name", "other_software_stack"}
    assert description["other_software_stack"] == "driver 1, cuda_version 13.0, kernel_version 6.1, nccl_version 2.27.3"
    assert description["framework"] == "PyTorch 2.13.0"  # contradicted, not filled
    again = load_system(str(write_system({f"description.{key}": description[key] for key in taken})))
    assert all(one.verdict in ("same", "cannot be told") for one in compare(again, DETECTED) if one.name in taken)
    assert [one.name for one in differing(fields)] == ["host_processors_per_node", "framework"]
    assert as_json(description, fields, taken)["filled"] == taken


def test_an_interruption_ends_describe(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise Interrupted("interrupted")

    monkeypatch.setattr("podium.asking.ask", interrupt)
    with pytest.raises(Interrupted):
        submit_cli.describe("laptop", None, False, False, True)
