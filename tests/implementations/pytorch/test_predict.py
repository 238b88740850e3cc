"""The process behind `podium predict`: configuration in, prediction or a sentence out; no torch."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from podium.config import load_system, write_resolved

ROOT = Path(__file__).resolve().parents[3]
COSTS = ROOT / "systems" / "costs" / "laptop.json"


def run(folder: Path, system: str, *words: str) -> subprocess.CompletedProcess[str]:
    write_resolved(load_system(system), folder / "config.yaml")
    command = [sys.executable, "-m", "implementations.pytorch.predict", str(folder / "config.yaml"), str(folder)]
    return subprocess.run([*command, *words], cwd=ROOT, capture_output=True, text=True, check=False)


def summary(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return found


def test_a_laptop(tmp_path: Path) -> None:
    assert run(tmp_path, "laptop", "--costs", str(COSTS)).returncode == 0
    found = summary(tmp_path)
    assert found["low"] < found["seconds"] < found["high"]
    assert set(found["split"]) == {"compute", "imbalance", "communication", "optimizer", "evaluation", "data"}
    assert sum(found["split"].values()) == pytest.approx(found["seconds"])
    assert found["samples_to_target"] == 10_240
    assert found["step_milliseconds"] > 1
    assert found["unsure"]
    assert (found["scale"], found["published"]) == ([], [])


def test_a_gpu_with_its_curve(tmp_path: Path) -> None:
    assert run(tmp_path, "h200_1x", "--scale", "64,8,8").returncode == 0
    found = summary(tmp_path)
    assert [row["gpus"] for row in found["scale"]] == [8, 64]
    for row in found["scale"]:
        assert sum(row["split"].values()) == pytest.approx(row["seconds"])
        assert row["low"] < row["seconds"] < row["high"]
        assert row["global_batch_size"] % row["gpus"] == 0
    assert found["published"]
    assert (found["ranks"], found["processor"], found["balancing"]) == (1, "h200", "indexed")


@pytest.mark.parametrize("scale", ["8,many", "0", "", "8,,64", "1000000"])
def test_numbers_that_are_none_are_refused(tmp_path: Path, scale: str) -> None:
    ended = run(tmp_path, "h200_1x", f"--scale={scale}")
    assert ended.returncode == 2
    failure = json.loads((tmp_path / "failure.json").read_text(encoding="utf-8"))
    assert failure["exit_code"] == 2
    assert f"--scale: found {scale}, allowed are numbers of GPUs" in failure["message"]
    assert not (tmp_path / "summary.json").exists()


def test_no_costs_is_a_sentence(tmp_path: Path) -> None:
    ended = run(tmp_path, "laptop")
    assert ended.returncode == 2
    assert "podium bench laptop" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_neither_torch_nor_a_gpu_is_needed() -> None:
    check = "import sys, implementations.pytorch.predict; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], cwd=ROOT, check=False).returncode == 0
