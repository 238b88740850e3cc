"""The main job as a user does it, on a copy of the project: real processes, the real embedded text, short runs."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.bert.rules import RULESETS
from podium.config.run_folder import RunFolder
from podium.mllog.compliance import check_compliance

Train = Callable[..., RunFolder]
SHORT = (
    "target_accuracy=null",
    "max_samples=96",
    "evaluation.samples=64",
    "evaluation.interval_samples=80",
    "launch.threads_per_process=1",
)
ENDLESS = ("max_samples=100000", "evaluation.samples=4", "evaluation.interval_samples=16")
KEYS = {
    "result_file",
    "reached_target",
    "seconds",
    "samples",
    "sequences_per_second",
    "useful_tflops",
    "share_of_peak",
    "padding_share",
    "max_over_mean_tokens",
    "phases_ms",
}
FIRST_AND_LAST = (RULESETS[0], RULESETS[-1])
PHASES = {"data_wait", "forward", "backward", "synchronisation", "optimizer", "evaluation"}

pytestmark = pytest.mark.slow


def start(home: Path, *arguments: str, settings: tuple[str, ...] = SHORT) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "podium.cli", "run", "laptop", *arguments]
    for setting in settings:
        command += ["--set", setting]
    return subprocess.Popen(
        command,
        cwd=home,
        env=os.environ | {"PYTHONPATH": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(home: Path, *arguments: str, settings: tuple[str, ...] = SHORT) -> dict[str, Any]:
    process = start(home, "--json", *arguments, settings=settings)
    output, progress = process.communicate(timeout=180)
    assert process.returncode == 0, progress
    found: dict[str, Any] = json.loads(output)
    return found


def lines_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def metrics(found: dict[str, Any]) -> list[dict[str, Any]]:
    return lines_of(Path(found["run_folder"]) / "metrics.jsonl")


def statuses(home: Path) -> list[str]:
    """Statuses of `run_stop` in the log of the newest set."""
    text = max((home / "runs" / "laptop").glob("*/result_0.txt")).read_text(encoding="utf-8")
    events = [json.loads(line.removeprefix(":::MLLOG ")) for line in text.splitlines()]
    return [event["metadata"]["status"] for event in events if event["key"] == "run_stop"]


@pytest.fixture(scope="module")
def reached(home: Path) -> dict[str, Any]:
    """A run that reaches its target half way."""
    found = run(home, "--recipe", "indexed", settings=(*SHORT, "seed=5", "target_accuracy=1.0e-6"))
    assert statuses(home) == ["success"]
    return found


def test_a_run_leaves_a_compliant_result_and_its_time_by_phase(reached: dict[str, Any]) -> None:
    assert set(reached) >= KEYS
    assert set(reached["phases_ms"]) == PHASES
    assert reached["compliance"] == dict.fromkeys(reached["compliance"], True)
    assert set(reached["compliance"]) >= {"1.1.0", "5.0.0"}
    assert reached["reached_target"] and reached["samples"] == 80
    assert reached["padding_share"] < 0.05
    assert Path(reached["result_file"]).read_bytes() == Path(reached["published"]).read_bytes()
    spent = sum(reached["phases_ms"].values()) * reached["steps"] / 1000
    assert spent == pytest.approx(reached["seconds"], rel=0.1)


def test_a_target_that_is_missed_is_an_aborted_run_with_the_same_numbers_up_to_there(
    train: Train, reached: dict[str, Any]
) -> None:
    """The seed is the same, and all else but the target."""
    missed = train("indexed", 1, *SHORT, "seed=5", "target_accuracy=0.99", code=1)
    assert '"status": "aborted"' in missed.log.read_text(encoding="utf-8")
    all_lines = lines_of(missed.metrics)
    lines = metrics(reached)
    assert len(lines) == 6  # five steps and an evaluation
    assert lines == all_lines[:6]
    assert len(all_lines) == 8


HALF = (
    "precision=fp16",
    "target_accuracy=null",
    "global_batch_size=4",
    "evaluation.samples=4",
    "seed=3",
    "phases=[{max_sequence_length: 64}]",  # few tokens, since most CPUs have no fp16 arithmetic
)


def test_steps_that_overflow_count_neither_as_steps_nor_as_samples(train: Train) -> None:
    folder = train("indexed", 1, *HALF, "max_samples=40", "loss_scaling.initial=1.0e7")
    lines, found = lines_of(folder.metrics), json.loads(folder.summary.read_text(encoding="utf-8"))
    skipped, taken = ([line for line in lines if line["event"] == event] for event in ("skipped", "step"))
    assert len(skipped) > 2
    assert len(skipped) + len(taken) == 10
    assert found["steps"] == len(taken)
    assert found["samples"] == 4 * len(taken)
    assert [line["step"] for line in taken] == list(range(1, len(taken) + 1))
    assert [line["samples"] for line in taken] == [4 * number for number in range(1, len(taken) + 1)]
    assert taken[0]["learning_rate"] == 0 < taken[1]["learning_rate"] < taken[2]["learning_rate"]
    assert f'"key": "train_samples", "value": {found["samples"]}' in folder.log.read_text(encoding="utf-8")
    assert not any(check_compliance(folder.log, FIRST_AND_LAST).values())


def test_nothing_but_overflow_is_a_sentence(train: Train) -> None:
    failure = train("indexed", 1, *HALF, "max_samples=8", "loss_scaling.initial=1.0e30", code=1).read_failure()
    assert str(failure).startswith("loss_scaling.initial: with 1e+30 all 2 steps overflowed in fp16; lower it")


@pytest.mark.parametrize(("interval", "expected"), [(10, [16, 32, 48, 64]), (24, [32, 48, 64])])
def test_an_evaluation_comes_after_the_step_that_reaches_a_multiple_of_the_interval(
    train: Train, interval: int, expected: list[int]
) -> None:
    """A step is of 16 samples; where it is more than the interval, every one is followed by an evaluation."""
    settings = (SHORT[0], "max_samples=64", "evaluation.samples=16", f"evaluation.interval_samples={interval}")
    folder = train("indexed", 1, *settings, "seed=3")
    evaluated = [line["samples"] for line in lines_of(folder.metrics) if line["event"] == "evaluation"]
    assert evaluated == expected
    assert not any(check_compliance(folder.log, FIRST_AND_LAST).values())


@contextmanager
def in_training(home: Path, processes: int) -> Iterator[subprocess.Popen[str]]:
    """A run of `processes` processes in the middle of its training."""
    process = start(home, settings=(*SHORT, *ENDLESS, f"launch.processes_per_node={processes}"))
    before = set((home / "runs").rglob("metrics.jsonl"))
    try:
        for _ in range(2400):
            fresh = set((home / "runs").rglob("metrics.jsonl")) - before
            if any("evaluation" in path.read_text() for path in fresh):
                break
            time.sleep(0.1)
        else:
            pytest.fail("the run did not get as far as an evaluation in four minutes")
        yield process
    finally:
        process.kill()


def workers(home: Path) -> list[int]:
    """Process ids of the ranks that run in this home."""
    found = subprocess.run(
        ["pgrep", "-f", f"implementations.pytorch.train {home}"], capture_output=True, text=True, check=False
    )
    pids = [int(pid) for pid in found.stdout.split()]
    return [pid for pid in pids if "torch.distributed.run" not in Path(f"/proc/{pid}/cmdline").read_text()]


needs_pgrep = pytest.mark.skipif(
    shutil.which("pgrep") is None or not Path("/proc/self/cmdline").exists(), reason="finds ranks with pgrep and /proc"
)


@needs_pgrep
def test_a_killed_rank_is_named_and_the_run_is_aborted(home: Path) -> None:
    with in_training(home, processes=2) as run:
        ranks = workers(home)
        assert len(ranks) == 2
        os.kill(ranks[1], signal.SIGKILL)
        _, output = run.communicate(timeout=60)
    assert run.returncode == 1
    assert "was killed by SIGKILL" in output and "status in its log is aborted" in output and "Traceback" not in output
    assert statuses(home) == ["aborted"]
    assert workers(home) == []


@pytest.mark.exhaustive
@needs_pgrep
def test_control_c_ends_every_process_and_the_run_is_aborted(home: Path) -> None:
    """With other processes in place of training podium/launch/test_processes.py shows it always."""
    with in_training(home, processes=1) as run:
        run.send_signal(signal.SIGINT)
        _, output = run.communicate(timeout=60)
    assert run.returncode == 1
    assert "interrupted" in output and "status in its log is aborted" in output and "Traceback" not in output
    assert statuses(home) == ["aborted"]
    assert workers(home) == []


def test_a_damaged_shard_is_a_sentence_and_leaves_the_results_alone(home: Path) -> None:
    results = home / "results" / "laptop" / "bert" / "result_0.txt"
    before = results.read_bytes() if results.is_file() else None
    (shard,) = (home / "data").rglob("eval.txt.h5")
    whole = shard.read_bytes()
    middle = len(whole) // 2
    shard.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    try:
        process = start(home)
        _, output = process.communicate(timeout=60)
    finally:
        shard.write_bytes(whole)
    assert process.returncode == 1
    assert str(shard) in output and "Traceback" not in output
    assert (results.read_bytes() if results.is_file() else None) == before
