"""Which accelerators of a machine can be used, by stand-ins for nvidia-smi and the kernel's devices."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from podium.doctor.accelerators import (
    MIB,
    NvidiaGpu,
    check_accelerators,
    check_described,
    nvidia_gpus,
    other_accelerators,
)
from podium.doctor.context import DiagnosticContext
from podium.doctor.diagnose import CHECKS, CHECKS_HERE

AMD, GAUDI, TPU, NVIDIA, NETWORK = (
    ("0x1002", "0x120000"),
    ("0x1da3", "0x120000"),
    ("0x1ae0", "0xff0000"),
    ("0x10de", "0x030200"),
    ("0x1ae0", "0x020000"),
)


def add_devices(pci: Path, *devices: tuple[str, str]) -> Path:
    for number, (vendor, device_class) in enumerate(devices):
        folder = pci / f"0000:{number:02x}:00.0"
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(f"{vendor}\n")
        (folder / "class").write_text(f"{device_class}\n")
    return pci


def test_other_accelerators_are_counted_and_networks_are_not(tmp_path: Path) -> None:
    pci = add_devices(tmp_path / "pci", AMD, AMD, GAUDI, TPU, NVIDIA, NETWORK)
    assert other_accelerators(pci) == ["2× AMD GPU", "1× Intel Gaudi", "1× Google TPU"]
    assert other_accelerators(add_devices(tmp_path / "other", NVIDIA, NETWORK)) == []
    assert other_accelerators(tmp_path / "missing") == []


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("echo 'NVIDIA H200, 143771'; echo 'NVIDIA H200, 143771'", [NvidiaGpu("NVIDIA H200", 143_771 * MIB)] * 2),
        ("echo 'NVIDIA H200, [N/A]'", []),
        ("echo 'NVIDIA H200, 143771'; exit 6", []),
        ("printf '\\033[31mNVIDIA, 1\\n'", [NvidiaGpu("[31mNVIDIA", MIB)]),
        ("echo 'no commas here'", []),
    ],
)
def test_gpus_are_those_of_nvidia_smi(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, found: list[NvidiaGpu]
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert nvidia_gpus() == found


def test_without_a_driver_there_are_no_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert nvidia_gpus() == []


def test_an_amd_gpu_is_an_error_for_cuda_and_a_note_on_a_cpu(make_context: Callable[..., DiagnosticContext]) -> None:
    amd = replace(make_context(), other_accelerators=("8× AMD GPU",))
    (found,) = check_accelerators(amd)
    assert found.severity == "note" and "8× AMD GPU not supported" in found.message
    cuda = replace(amd, config=amd.config.model_copy(update={"launch": _on_cuda(amd)}))
    (found,) = check_accelerators(cuda)
    assert found.severity == "error" and "ROCm is not supported" in found.advice


def test_a_rocm_build_of_pytorch_is_an_error(make_context: Callable[..., DiagnosticContext]) -> None:
    context = make_context()
    (found,) = check_accelerators(context)
    assert found.severity == "ok"
    (found,) = check_accelerators(replace(context, device={**(context.device or {}), "torch": "2.9.0+rocm6.4"}))
    assert found.severity == "error" and "ROCm" in found.message


def test_a_described_accelerator_that_is_not_supported_is_an_error(
    make_context: Callable[..., DiagnosticContext],
) -> None:
    context = make_context("description.accelerator_model_name=AMD Instinct MI300X")
    assert not [*check_described(context)]
    cuda = replace(context, config=context.config.model_copy(update={"launch": _on_cuda(context)}))
    (found,) = check_described(cuda)
    assert found.severity == "error" and "MI300X" in found.message and "does not run on AMD GPUs" in found.advice
    assert check_described in CHECKS and check_described in CHECKS_HERE


@pytest.mark.parametrize(("name", "known"), [("NVIDIA H20", False), ("NVIDIA H200", True), ("", True)])
def test_a_described_gpu_that_the_table_lacks_is_a_warning(
    make_context: Callable[..., DiagnosticContext], name: str, known: bool
) -> None:
    context = make_context(f"description.accelerator_model_name={name}")
    cuda = replace(context, config=context.config.model_copy(update={"launch": _on_cuda(context)}))
    found = [*check_described(cuda)]
    assert [one.severity for one in found] == ([] if known else ["warning"])
    assert known or (
        "'NVIDIA H20' is no GPU that Podium knows" in found[0].message and "by its memory" in found[0].advice
    )


def _on_cuda(context: DiagnosticContext) -> object:
    return context.config.launch.model_copy(update={"device": "cuda"})
