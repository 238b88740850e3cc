"""Energy of a run's GPUs from samples of nvidia-smi, of which a script with the same options takes the place."""

import calendar
import os
import time
from pathlib import Path

import pytest

from podium.config.run_folder import RunFolder
from podium.config.schema import RunConfig
from podium.launch import gpu_power
from podium.launch.gpu_power import integrate, power_command, power_file, read_power, run_energy, sampled_power

# Prints the power of the GPUs of --id at once and every 50 ms: 100 W for the first, 200 W for the second.
NVIDIA_SMI = """#!/usr/bin/env python3
import datetime, sys, time
gpus = next(option[5:] for option in sys.argv if option.startswith("--id=")).split(",")
assert "--query-gpu=timestamp,uuid,power.draw" in sys.argv and "--format=csv,noheader,nounits" in sys.argv
while True:
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y/%m/%d %H:%M:%S.%f")[:-3]
    for number, gpu in enumerate(gpus):
        print(f"{now}, GPU-{gpu}, {100 * (number + 1)}.00", flush=True)
    time.sleep(0.05)
"""


@pytest.fixture
def config(open_config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    """Two GPUs on one node."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    launch = open_config.launch.model_copy(update={"device": "cuda", "processes_per_node": 2})
    return open_config.model_copy(update={"launch": launch})


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(NVIDIA_SMI, encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")


def test_energy_of_a_run(config: RunConfig, run_folder: RunFolder, nvidia_smi: None) -> None:
    with sampled_power(config, run_folder, 0):
        deadline = time.monotonic() + 10
        while len(read_power(power_file(run_folder, 0)).get("GPU-1", ())) < 3 and time.monotonic() < deadline:
            time.sleep(0.02)
    (first, *_, last) = read_power(power_file(run_folder, 0))["GPU-0"]
    energy = run_energy(config, run_folder, first[0], last[0])
    assert energy and energy.gpus == 2
    assert energy.joules == pytest.approx(300 * (last[0] - first[0]), rel=1e-6)
    assert time.time() - last[0] < 60  # UTC, whatever the time zone here


def test_nothing_is_sampled_without_nvidia_smi(
    config: RunConfig, run_folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with sampled_power(config, run_folder, 0):
        assert not power_file(run_folder, 0).exists()
    assert run_energy(config, run_folder, 0.0, 1.0) is None


def test_gpus_are_those_of_the_ranks(config: RunConfig, open_config: RunConfig, nvidia_smi: None) -> None:
    def ids(**environment: str) -> str | None:
        argv = power_command(config, os.environ | environment)
        return argv[1] if argv else None

    assert ids() == "--id=0,1"
    assert ids(CUDA_VISIBLE_DEVICES="GPU-a, GPU-b,GPU-c") == "--id=GPU-a,GPU-b"
    assert ids(CUDA_VISIBLE_DEVICES="MIG-1,MIG-2") is None
    assert power_command(open_config) is None  # a run on the CPU


def test_power_is_integrated_between_start_and_stop() -> None:
    samples = [(0.0, 100.0), (2.0, 200.0), (4.0, 0.0)]
    assert integrate(samples, 1.0, 3.0) == pytest.approx(175 + 150)
    assert integrate(samples, 3.0, 6.0) == pytest.approx(50)  # a second after the last sample: as that
    assert integrate(samples, 2.5, 2.75) == pytest.approx(0.25 * 137.5)


@pytest.mark.parametrize(
    ("samples", "start", "stop"),
    [
        ([], 0.0, 1.0),
        ([(0.0, 1.0), (20.0, 1.0)], 0.0, 20.0),  # a gap, as of a run that was resumed
        ([(0.0, 1.0), (1.0, 1.0)], 0.0, 30.0),
        ([(30.0, 1.0), (31.0, 1.0)], 0.0, 31.0),
        ([(1.0, 1.0), (0.0, 1.0)], 0.0, 1.0),  # the clock was set back
        ([(0.0, 1.0), (1.0, 1.0)], 1.0, 0.0),
    ],
)
def test_energy_is_unknown_where_samples_are_missing(
    samples: list[tuple[float, float]], start: float, stop: float
) -> None:
    assert integrate(samples, start, stop) is None


def test_lines_of_another_form_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "power_0.csv"
    good = "2026/11/24 02:00:01.500, GPU-0, 99.5\n"
    path.write_text(good + "2026/11/24 02:00:02.500, GPU-0, [N/A]\nNo devices\n2026/13/24 02:00:02, GPU-0, 3\n,,,\n")
    assert read_power(path) == {"GPU-0": [(calendar.timegm((2026, 11, 24, 2, 0, 1)) + 0.5, 99.5)]}


def test_energy_needs_all_gpus_of_all_nodes(config: RunConfig, run_folder: RunFolder) -> None:
    lines = [f"2026/11/24 02:00:0{second}.000, GPU-{gpu}, 100" for second in range(4) for gpu in (0, 1)]
    power_file(run_folder, 0).write_text("\n".join(lines), encoding="utf-8")
    start = calendar.timegm((2026, 11, 24, 2, 0, 0))
    found = run_energy(config, run_folder, start, start + 3)
    assert found and found.as_json() == {
        "energy_joules": pytest.approx(600.0),
        "energy_gpus": 2,
        "energy_method": gpu_power.METHOD,
    }
    two = config.model_copy(update={"launch": config.launch.model_copy(update={"nodes": 2})})
    assert run_energy(two, run_folder, start, start + 3) is None
