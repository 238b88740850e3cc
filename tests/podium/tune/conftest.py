"""Searches whose trainings are a quick script, started, monitored and ended like real ones."""

import multiprocessing
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest
import yaml

IMPLEMENTATION = """
import json, math, sys, time
from pathlib import Path
import yaml
folder = Path(sys.argv[1])
config = yaml.safe_load((folder / "config.yaml").read_text())
rate, seed = config["optimizer"]["learning_rate"], config["seed"]
if rate > {diverges}:
    sys.exit(3)
needed = 2 + 3 * abs(math.log10(rate / 1e-3)) + 0.1 * (seed % 5)
samples, interval = 0, config["evaluation"]["interval_samples"]
with (folder / "metrics.jsonl").open("w", buffering=1) as metrics:
    while samples < config["max_samples"]:
        samples += interval
        metrics.write(json.dumps({{"event": "step", "samples": samples}}) + "\\n")
        accuracy = min(0.95, 0.72 * samples / interval / needed)
        metrics.write(json.dumps({{"event": "evaluation", "samples": samples, "accuracy": accuracy}}) + "\\n")
        time.sleep({pause})
        if accuracy >= config["target_accuracy"]:
            break
(folder / "summary.json").write_text("{{}}")
"""
WORKER = """
import os, sys
from podium.launch import launch as launching
from podium.tune import worker
path, *sys.argv[1:] = arguments
for stream in (1, 2):
    os.dup2(os.open(output, os.O_WRONLY), stream)
launching.command = lambda config, folder, entry, options, node, private: [sys.executable, path, str(folder.path)]
sys.exit(worker.main())
"""
SPACE = {
    "system": "laptop",
    "trials": 3,
    "seed": 1,
    "settings": {"optimizer.algorithm": "adamw"},
    "space": {"optimizer.learning_rate": {"kind": "log", "low": 1e-5, "high": 1e-1}},
}
SETTINGS = ["evaluation.samples=20", "evaluation.interval_samples=32", "max_samples=320"]


class ForkedWorker:
    """Stand-in for subprocess.Popen that forks the worker from a process with all imports, to save time."""

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["podium.tune.worker"])

    def __init__(self, arguments: list[str], stdout: IO[bytes], **_: Any) -> None:
        output = f"/proc/{os.getpid()}/fd/{stdout.fileno()}"
        self.process = self.context.Process(target=exec, args=(WORKER, {"arguments": arguments, "output": output}))
        self.process.start()
        self.terminate, self.kill = self.process.terminate, self.process.kill

    @property
    def returncode(self) -> int | None:
        return self.process.exitcode

    def poll(self) -> int | None:
        return self.process.exitcode

    def wait(self, seconds: float | None = None) -> None:
        self.process.join(seconds)
        assert self.process.exitcode is not None


class FakeTrainings:
    """Replace the implementation by a script that needs 2 + 3·|log10(rate / 0.001)| + 0.1·(seed mod 5) evaluations.

    `use` sets the pause at each evaluation, and the learning rate above which the script fails.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.monkeypatch = folder, monkeypatch
        self.use()

    def use(self, pause: float = 0.0, diverges: float = 1e9) -> None:
        path = self.folder / "fake_implementation.py"
        path.write_text(IMPLEMENTATION.format(pause=pause, diverges=diverges), encoding="utf-8")
        self.monkeypatch.setattr("podium.tune.search.WORKER", [str(path)])
        forking = SimpleNamespace(**vars(subprocess) | {"Popen": ForkedWorker})
        self.monkeypatch.setattr("podium.tune.search.subprocess", forking)


@pytest.fixture
def trainings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeTrainings:
    monkeypatch.setattr("podium.tune.search.POLL_SECONDS", 0.1)
    return FakeTrainings(tmp_path, monkeypatch)


@pytest.fixture
def write_space(tmp_path: Path) -> "WriteSpace":
    return WriteSpace(tmp_path)


class WriteSpace:
    """Write a search's YAML with some keys changed, and return its path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, name: str = "rate", **changes: object) -> str:
        path = self.folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump({**SPACE, **changes}), encoding="utf-8")
        return str(path)
