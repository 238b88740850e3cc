"""Every recipe from the command to a compliant result on several processes; the same losses of the same samples."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("benchmarks", "implementations", "podium", "systems")
SHORT = ("target_accuracy=null", "max_samples=96", "evaluation.samples=32", "evaluation.interval_samples=48")
EXACT = ("dropout=0", "precision=fp32", "seed=11", "attention_widths=null")
ALIKE = ("shards=shared", "phases=[]", "clipping.when=after", "gradient_wire=fp32")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project, so that the user's own results stay as they are."""
    home = tmp_path_factory.mktemp("podium")
    for part in PARTS:
        shutil.copytree(ROOT / part, home / part, ignore=shutil.ignore_patterns("__pycache__"))
    return home


def run(home: Path, recipe: str, ranks: int, *settings: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "podium.cli", "run", "laptop", "--json", "--recipe", recipe]
    for setting in (*SHORT, f"launch.processes_per_node={ranks}", *settings):
        command += ["--set", setting]
    process = subprocess.run(
        command, cwd=home, env=os.environ | {"PYTHONPATH": str(home)}, capture_output=True, text=True, timeout=300
    )
    assert process.returncode == 0, process.stderr
    found: dict[str, Any] = json.loads(process.stdout)
    assert all(found["compliance"].values())
    assert found["samples"] == 96
    return found


def steps(found: dict[str, Any]) -> list[dict[str, Any]]:
    lines = (Path(found["run_folder"]) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [line for line in map(json.loads, lines) if line["event"] == "step"]


@pytest.fixture(scope="module")
def losses(home: Path) -> list[float]:
    """Of `indexed` on two processes."""
    return [line["loss"] for line in steps(run(home, "indexed", 2, *EXACT))]


@pytest.mark.parametrize(
    ("recipe", "ranks"),
    [("indexed", 4), ("random", 2), ("padded", 2), ("packed", 4), ("exchanged", 4), ("academic", 2)],
)
def test_recipes_follow_the_same_losses_where_the_samples_are_the_same(
    home: Path, losses: list[float], recipe: str, ranks: int
) -> None:
    found = run(home, recipe, ranks, *EXACT, *ALIKE)
    assert [line["loss"] for line in steps(found)] == pytest.approx(losses, rel=1e-4)
    pads = recipe in ("padded", "academic")
    assert found["padding_share"] > 0.3 if pads else found["padding_share"] < 0.3
    assert ("exchange" in found) is (recipe == "exchanged")


def test_the_exchange_passes_on_samples_that_each_rank_read_of_its_part(home: Path) -> None:
    found = run(home, "exchanged", 2, "exchange_steps=2")
    assert found["exchange"]["pieces"] == 3
    assert found["exchange"]["samples"] == 48
    assert found["exchange"]["sent_bytes"] > 0
    assert found["max_over_mean_tokens"] < 1.25


def test_presorted_draws_the_counts_that_are_asked_for(home: Path) -> None:
    found = run(home, "presorted", 2, "strata_counts=[3, 2, 1, 2]")
    assert found["max_over_mean_tokens"] < 1.2
    assert len({line["tokens"] for line in steps(found)}) == 6


def test_academic_trains_on_short_samples_first(home: Path) -> None:
    found = run(home, "academic", 2, "phases=[{max_sequence_length: 128, samples: 40}, {max_sequence_length: 512}]")
    assert [line["slots"] // 16 for line in steps(found)] == [128] * 3 + [512] * 3
    assert all(line["tokens"] <= 128 * 16 for line in steps(found)[:3])


def test_a_target_found_beside_training_counts_the_samples_that_reached_it(home: Path) -> None:
    """The steps taken until it was known are thrown away; the log says what the evaluated weights were trained on."""
    settings = ("target_accuracy=1.0e-6", "evaluation.overlap=training", "evaluation.samples=640", "max_samples=480")
    command = [sys.executable, "-m", "podium.cli", "run", "laptop", "--json", "--set", "launch.processes_per_node=2"]
    for setting in (*SHORT, *settings):
        command += ["--set", setting]
    process = subprocess.run(
        command, cwd=home, env=os.environ | {"PYTHONPATH": str(home)}, capture_output=True, text=True, timeout=300
    )
    assert process.returncode == 0, process.stderr
    found = json.loads(process.stdout)
    assert all(found["compliance"].values())
    assert found["reached_target"]
    assert found["samples"] % 48 == 0  # of an evaluation, and 16 a step
    assert found["evaluation"]["steps_thrown_away"] > 0
    assert found["evaluation"]["seconds_beside_training"] > 0
    lines = Path(found["result_file"]).read_text(encoding="utf-8").splitlines()
    events = [json.loads(line.removeprefix(":::MLLOG ")) for line in lines]
    samples = {event["key"]: event["metadata"].get("epoch_num", event["value"]) for event in events}
    assert samples["train_samples"] == samples["run_stop"] == samples["eval_accuracy"] == found["samples"]
    assert samples["block_stop"] == found["samples"] + 16 * found["evaluation"]["steps_thrown_away"]
    trained = steps(found)
    assert len(trained) == found["steps"] + found["evaluation"]["steps_thrown_away"]
