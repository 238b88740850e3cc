"""Energy of the GPUs in the summary of a run that has ended."""

import json
import time
from pathlib import Path

import pytest

from podium.config.run_folder import RunFolder
from podium.config.schema import RunConfig
from podium.launch.gpu_power import METHOD, power_file
from podium.launch.page_cache import Cleared
from podium.mllog.read import read_log
from podium.run.collect import _with_energy
from podium.run.prepare import PreparedRun
from tests.podium.conftest import SUMMARY, WriteLog


@pytest.fixture
def on_gpu(open_config: RunConfig) -> RunConfig:
    return open_config.model_copy(update={"launch": open_config.launch.model_copy(update={"device": "cuda"})})


def sample_power(folder: RunFolder, log: Path, seconds: float) -> None:
    """A GPU at 100 W, until some seconds after the start of the run."""
    start = read_log(log).start_ms
    assert start is not None
    times = [start / 1e3 - 1 + number / 2 for number in range(int(2 * seconds) + 2)]
    stamps = [time.strftime("%Y/%m/%d %H:%M:%S", time.gmtime(when)) + f".{int(when % 1 * 1000):03d}" for when in times]
    power_file(folder, 0).write_text("".join(f"{stamp}, GPU-0, 100.00\n" for stamp in stamps), encoding="utf-8")


def test_energy_is_added_to_the_summary(
    on_gpu: RunConfig, open_config: RunConfig, run_folder: RunFolder, write_log: WriteLog
) -> None:
    log = write_log(open_config)
    sample_power(run_folder, log, 5)
    run_folder.summary.write_text(json.dumps(SUMMARY), encoding="utf-8")
    found = _with_energy(PreparedRun(on_gpu, run_folder, Cleared(False, "")), log, SUMMARY)
    seconds = read_log(log).seconds
    assert seconds is not None and found["energy_joules"] == pytest.approx(100 * seconds, rel=1e-2)  # a log of 1 ms
    assert (found["energy_gpus"], found["energy_method"]) == (1, METHOD)
    assert run_folder.read_summary() == found and found.items() >= SUMMARY.items()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_summary_stays_without_samples(
    on_gpu: RunConfig, open_config: RunConfig, run_folder: RunFolder, write_log: WriteLog, device: str
) -> None:
    log, config = write_log(open_config), on_gpu if device == "cuda" else open_config
    if device == "cpu":
        sample_power(run_folder, log, 5)
    assert _with_energy(PreparedRun(config, run_folder, Cleared(False, "")), log, SUMMARY) == SUMMARY
    assert not run_folder.summary.exists()
