"""Runs that are killed, stopped and hung, on a copy of the project: what they end in, and that nothing is lost."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from podium.config.run_folder import RunFolder
from podium.mllog.compliance import check_compliance
from tests.conftest import without_times

SETTINGS = ("target_accuracy=null", "evaluation.samples=16", "evaluation.interval_samples=120", "seed=5")
TWO = "launch.processes_per_node=2"
SAVING = ("max_samples=240", "checkpoint.every_samples=45", "checkpoint.keep=99")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds ranks by /proc"),
]


def start(home: Path, *settings: str, options: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "podium.cli", "run", "laptop", "--json", *options]
    if not options:
        command += [part for setting in (*SETTINGS, *settings) for part in ("--set", setting)]
    environment = os.environ | {"PYTHONPATH": str(home)}
    return subprocess.Popen(
        command, cwd=home, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(process: subprocess.Popen[str], code: int = 0) -> tuple[dict[str, Any], str]:
    """The JSON that it printed on standard output, and the text on standard error."""
    output, progress = process.communicate(timeout=240)
    assert process.returncode == code, progress
    assert "Traceback" not in progress
    return (json.loads(output) if output else {}), progress


def ranks(home: Path) -> dict[int, int]:
    """Process ids of the ranks that run in this home."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
            values = dict(
                pair.split(b"=", 1) for pair in (process / "environ").read_bytes().split(b"\0") if b"=" in pair
            )
        except OSError:
            continue
        if b"implementations.pytorch.train" in command and str(home).encode() in command and b"RANK" in values:
            found[int(values[b"RANK"])] = int(process.name)
    return found


def in_training(home: Path, process: subprocess.Popen[str], samples: int) -> Path:
    """The folder of a run that has just been trained on `samples` samples."""
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        folders = sorted((home / "runs" / "laptop").glob("*/run_0"))
        metrics = folders[-1] / "metrics.jsonl" if folders else None
        if metrics and not (folders[-1] / "summary.json").exists() and metrics.is_file():
            lines = metrics.read_text(encoding="utf-8").splitlines()
            if lines and lines[-1].endswith("}") and json.loads(lines[-1])["samples"] >= samples:
                return folders[-1]
        time.sleep(0.005)
    process.kill()
    raise AssertionError(process.communicate())


def results(home: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (home / "results").rglob("*.txt")}


def tensors(folder: RunFolder) -> dict[str, bytes]:
    """All tensors of all checkpoints, byte for byte: safetensors files without their headers, where the run stands."""
    files = folder.checkpoints.glob("*/*.safetensors")
    contents = {f"{file.parent.name}/{file.name}": file.read_bytes() for file in files}
    return {name: content[8 + int.from_bytes(content[:8], "little") :] for name, content in contents.items()}


@pytest.fixture(scope="module")
def expected(train: Callable[..., RunFolder]) -> RunFolder:
    """What a run of two processes ends in if nothing happens to it."""
    return train("indexed", 2, *SETTINGS, *SAVING)


def assert_same_run(folder: RunFolder, expected: RunFolder, restarts: int) -> None:
    """Every line, the weights and all else in the checkpoints, bit for bit; and marked."""
    assert without_times(folder.metrics) == without_times(expected.metrics)
    last = "batch_00000012/rank_0.safetensors"  # of 15
    mine, theirs = tensors(folder), tensors(expected)
    assert last in mine
    assert all(mine[name] == theirs[name] for name in mine if name in theirs)
    found, other = (json.loads(each.summary.read_text(encoding="utf-8")) for each in (folder, expected))
    for key in ("samples", "steps", "accuracy", "padding_share", "max_over_mean_tokens", "moved_sequences"):
        assert found[key] == other[key]
    assert (found["restarts"], other["restarts"]) == (restarts, 0)
    log = folder.restarted_result if folder.restarted_result.is_file() else folder.log
    assert not any(check_compliance(log).values())
    events, others = (
        [
            (event["key"], event["value"], {k: v for k, v in event["metadata"].items() if k not in ("file", "lineno")})
            for event in (json.loads(line.removeprefix(":::MLLOG ")) for line in path.read_text().splitlines())
        ]
        for path in (log, expected.log)
    )
    assert [event for event in events if event[0] != "podium_restarted"] == others
    restarted = [(value, metadata["epoch_num"]) for key, value, metadata in events if key == "podium_restarted"]
    assert restarted[-1][0] == restarts and restarted[-1][1] > 0, "it began anew in place of resuming"


@pytest.fixture(autouse=True)
def nothing_lives_on(home: Path) -> Any:
    yield
    assert ranks(home) == {}


def killed(home: Path, process: subprocess.Popen[str], rank: int, samples: int) -> None:
    """Kill a rank of a run that has been trained on `samples` samples."""
    in_training(home, process, samples)
    os.kill(ranks(home)[rank], signal.SIGKILL)


def stopped(home: Path, process: subprocess.Popen[str], rank: int, samples: int) -> str:
    """Stop a rank without ending it; return what the other reports before the run restarts."""
    folder = RunFolder(in_training(home, process, samples))
    rank_id = ranks(home)[rank]
    os.kill(rank_id, signal.SIGSTOP)
    try:
        deadline = time.monotonic() + 60
        while not (failure := folder.read_failure()) and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        os.kill(rank_id, signal.SIGCONT)  # so that torchrun need not wait half a minute for it
    assert f"rank {rank} (process {rank_id} on " in str(failure)
    return str(failure)


def test_a_run_resumes_after_a_rank_hung(home: Path, expected: RunFolder) -> None:
    """As if nothing had been; the rank is named, and the other ends as abruptly as if it had been killed."""
    before = results(home)
    process = start(home, *SAVING, TWO, "launch.max_restarts=1", "launch.timeout_seconds=3")
    message = stopped(home, process, rank=1, samples=112)
    assert "sends no heartbeat: no rank has made progress for 3 seconds" in message
    assert "and 1 rank waits for it" in message
    found, _ = finish(process)
    folder = RunFolder(Path(found["run_folder"]))
    assert found["restarts"] == 1
    assert found["result_file"] == str(folder.restarted_result)
    assert all(found["compliance"].values())
    assert results(home) == before
    assert_same_run(folder, expected, restarts=1)


@pytest.mark.exhaustive
def test_a_run_resumes_after_ranks_were_killed_and_it_was_stopped(home: Path, expected: RunFolder) -> None:
    """Stopped by SIGTERM and resumed by hand, as two nodes always are (launch/test_clusters.py)."""
    process = start(home, *SAVING, TWO, "launch.max_restarts=2")
    killed(home, process, rank=0, samples=60)
    killed(home, process, rank=1, samples=120)
    folder = RunFolder(in_training(home, process, 160))
    process.send_signal(signal.SIGTERM)
    _, message = finish(process, code=143)
    assert f"`podium run laptop --resume {folder.path.relative_to(home)}`" in " ".join(message.split())
    found, _ = finish(start(home, options=("--resume", str(folder.path))))
    assert (found["run_folder"], found["restarts"]) == (str(folder.path), 3)
    assert_same_run(folder, expected, restarts=3)


@pytest.mark.exhaustive
def test_a_rank_that_hangs_ends_a_run_that_is_not_to_begin_again(home: Path) -> None:
    process = start(home, "max_samples=100000", TWO, "launch.timeout_seconds=4")
    message = stopped(home, process, rank=1, samples=100)
    _, printed = finish(process, code=1)
    assert message in " ".join(printed.split())


def test_a_loss_that_is_no_number_ends_all_ranks_at_once_with_its_samples(
    train: Callable[..., RunFolder], start_training: Callable[..., None]
) -> None:
    """Also when torchrun starts them again: it would come to the same end."""
    settings = ("optimizer.learning_rate=1.0e+30", "optimizer.warmup_steps=0", "clipping=null", "precision=fp32")
    folder = train("indexed", 2, *SETTINGS, *SAVING, *settings, code=1)
    message = str(folder.read_failure(final_only=True))
    assert "the loss of step 2 is nan on samples" in message
    assert f"and 12 more, all of which are in {folder.not_finite}" in message
    batch = json.loads(folder.not_finite.read_text(encoding="utf-8"))
    assert [sample["rank"] for sample in batch["samples"]] == [0] * 8 + [1] * 8
    assert all(Path(sample["shard"]).is_file() for sample in batch["samples"])
    metrics = folder.metrics.read_bytes()
    start_training(folder, 2, code=1)
    assert str(folder.read_failure(final_only=True)) == message
    assert (folder.metrics.read_bytes(), folder.restarts) == (metrics, 0)


def test_weights_that_the_last_step_has_spoiled_are_no_result(train: Callable[..., RunFolder]) -> None:
    """No step comes after it, whose loss would show that; the evaluation does."""
    settings = ("optimizer.learning_rate=1.0e+38", "optimizer.warmup_steps=0", "clipping=null", "precision=fp32")
    folder = train("indexed", 1, *SETTINGS, "max_samples=16", *settings, code=1)
    text = str(folder.read_failure(final_only=True))
    assert text.startswith("the evaluation after step 1 has a loss of nan: the weights are not finite")
    assert folder.read_summary() is None
