"""Record of the machine that a measurement was made on."""

import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from podium.core import machine
from podium.core.machine import Machine, OtherLoad, gpu_models, processor_model, this_machine


def test_record_survives_json_and_bad_records_are_none() -> None:
    here = this_machine()
    assert here.cores > 0
    assert Machine.from_json(here.as_json()) == here
    for bad in (None, [], {}, {"host": "a", "processor": "b", "cores": "2"}, {"host": "a", "processor": "b"}):
        assert Machine.from_json(bad) is None


def test_names_from_a_file_are_short_and_printable() -> None:
    found = Machine.from_json({"host": "a\x1b[31m", "processor": "x" * 10_000, "cores": 2})
    assert found is not None
    assert found.host.isprintable() and len(found.processor) <= 200


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


def test_load_of_another_process_is_measured_and_that_of_a_child_which_has_ended_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On one processor, which the other process shares with this one."""
    one = min(os.sched_getaffinity(0))
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: {one})
    busy = f"import os, time\nos.sched_setaffinity(0, {{{one}}})\nprint(flush=True)\n"
    command = [sys.executable, "-c", f"{busy}while True: pass"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        load = OtherLoad()
        time.sleep(0.3)
        share = load.share()
        process.kill()
    assert share is not None and share > 0.8
    load = OtherLoad()
    subprocess.run([sys.executable, "-c", f"{busy}while time.process_time() < 0.6: pass"], check=True)
    child = load.share()
    assert child is not None and child < share - 0.2  # of other tests, which run meanwhile


def test_load_is_what_was_used_and_not_by_this_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stat_file = tmp_path / "stat"
    monkeypatch.setattr(machine, "STAT", stat_file)
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: {0})
    monkeypatch.setattr(machine.os, "sysconf", lambda _: 1)
    own = type("Usage", (), {"ru_utime": 0.0, "ru_stime": 0.0})
    monkeypatch.setattr(machine.resource, "getrusage", lambda _: own)
    assert OtherLoad().share() is None
    stat_file.write_text("cpu 9 9 9 9\ncpu0 10 5 5 80 0 0 0 0 7 7\ncpu1 0 0 0 0 0 0 0 0 0 0\n", encoding="ascii")
    load = OtherLoad()
    assert load.share() is None  # no time has passed
    stat_file.write_text("cpu0 15 10 10 150 10 5 0 0 99 99\n", encoding="ascii")
    assert load.share() == pytest.approx(0.2)  # 20 of 100 more, guests being counted as users already
    own.ru_utime = 4.0  # of this process, and of its children
    assert load.share() == pytest.approx(0.12)
    own.ru_utime = 400.0
    assert load.share() == 0
