"""Record of the machine that a measurement was made on."""

import stat
from pathlib import Path

import pytest

from podium.core.machine import Machine, gpu_models, processor_model, this_machine


def test_record_survives_json_and_bad_records_are_none() -> None:
    machine = this_machine()
    assert machine.cores > 0
    assert Machine.from_json(machine.as_json()) == machine
    for bad in (None, [], {}, {"host": "a", "processor": "b", "cores": "2"}, {"host": "a", "processor": "b"}):
        assert Machine.from_json(bad) is None


def test_names_from_a_file_are_short_and_printable() -> None:
    machine = Machine.from_json({"host": "a\x1b[31m", "processor": "x" * 10_000, "cores": 2})
    assert machine is not None
    assert machine.host.isprintable() and len(machine.processor) <= 200


def test_same_model_needs_a_known_processor() -> None:
    known = Machine("a", "EPYC", 2)
    assert known.same_model(Machine("b", "EPYC", 2))
    assert not known.same_model(Machine("a", "EPYC", 4))
    assert not Machine("a", "", 2).same_model(Machine("a", "", 2))


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("processor\t: 0\nmodel name\t: AMD  EPYC 7742\n\nprocessor : 1\nmodel name : other\n", "AMD EPYC 7742"),
        ("processor : 0\nBogoMIPS : 50\n", ""),
    ],
)
def test_processor_model_of_cpuinfo(text: str, model: str, tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(text, encoding="utf-8")
    assert processor_model(tmp_path / "cpuinfo") == model
    assert processor_model(tmp_path / "none") == ""


def test_gpu_models_are_those_of_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpu_models() == []
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho NVIDIA H200\necho NVIDIA H200\n", encoding="utf-8")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    assert gpu_models() == ["NVIDIA H200"] * 2
    program.write_text("#!/bin/sh\necho failed\nexit 9\n", encoding="utf-8")
    assert gpu_models() == []
