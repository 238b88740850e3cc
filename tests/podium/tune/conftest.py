"""A search whose trainings are made by a script: quick, but started, watched and ended as real ones are."""

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
path, *sys.argv[1:] = words
for stream in (1, 2):
    os.dup2(os.open(said, os.O_WRONLY), stream)
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
    """A worker as subprocess.Popen would start it, but forked from a process that has imported what it needs."""

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["podium.tune.worker"])

    def __init__(self, words: list[str], stdout: IO[bytes], **_: Any) -> None:
        said = f"/proc/{os.getpid()}/fd/{stdout.fileno()}"
        self.process = self.context.Process(target=exec, args=(WORKER, {"words": words, "said": said}))
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
    """Replaces the implementation by a script that needs 2 + 3·|log10(rate / 0.001)| evaluations, a tenth more or less
    by the seed; how long it waits at each, and from which rate on it breaks off."""

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
    monkeypatch.setattr("podium.tune.search.LOOK_SECONDS", 0.1)
    return FakeTrainings(tmp_path, monkeypatch)


@pytest.fixture
def write_space(tmp_path: Path) -> "WriteSpace":
    return WriteSpace(tmp_path)


class WriteSpace:
    """Writes a search's YAML with some keys changed, and returns its path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, name: str = "rate", **changes: object) -> str:
        path = self.folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump({**SPACE, **changes}), encoding="utf-8")
        return str(path)
