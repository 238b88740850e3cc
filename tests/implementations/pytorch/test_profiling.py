"""Profile of a run's steps: a trace of the steps after the first ones, with the phases of a step."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from implementations.pytorch.profiling import StepProfiler
from podium.config.run_folder import WARM_STEPS, RunFolder
from podium.mllog.read import read_log

CPU = torch.device("cpu")


def events(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return list(json.load(file)["traceEvents"])


def train(steps: int, profiled: int, folder: Path) -> None:
    with StepProfiler(profiled, folder / "profile", 3, CPU) as profiler:
        for _ in profiler.steps(range(steps)):
            with profiler.range("forward"):
                torch.ones(4).sum()
            profiler.begin_synchronisation()
            profiler.end_synchronisation()


def test_trace_has_the_phases_of_the_profiled_steps(tmp_path: Path) -> None:
    train(WARM_STEPS + 5, 2, tmp_path)
    names = [event.get("name") for event in events(tmp_path / "profile" / "rank_3.json.gz")]
    assert (names.count("forward"), names.count("data_wait")) == (2, 2)
    table = (tmp_path / "profile" / "rank_3.txt").read_text(encoding="utf-8")
    assert table.startswith(f"2 steps after the first {WARM_STEPS}, ") and "aten::sum" in table
    assert sorted(path.name for path in (tmp_path / "profile").iterdir()) == ["rank_3.json.gz", "rank_3.txt"]


def test_the_time_of_starting_and_writing_is_no_part_of_a_step(tmp_path: Path) -> None:
    taken, pauses = 0, list[int]()
    with StepProfiler(2, tmp_path / "profile", 0, CPU, lambda: pauses.append(taken)) as profiler:
        for _ in profiler.steps(range(WARM_STEPS + 5)):
            taken += 1
    assert pauses == [WARM_STEPS, WARM_STEPS + 2]


def test_run_that_ends_early_leaves_a_shorter_profile(tmp_path: Path) -> None:
    train(WARM_STEPS + 1, 50, tmp_path)
    assert (tmp_path / "profile" / "rank_3.txt").read_text(encoding="utf-8").startswith("1 steps after")


def test_nothing_is_profiled_without_steps(tmp_path: Path) -> None:
    train(WARM_STEPS + 5, 0, tmp_path)
    train(WARM_STEPS, 3, tmp_path)  # the run ends before the profile begins
    assert not (tmp_path / "profile").exists()


@pytest.mark.slow
def test_training_is_profiled_and_its_log_is_marked(train: Callable[..., RunFolder]) -> None:
    settings = (f"max_samples={16 * (WARM_STEPS + 3)}", "evaluation.samples=16", "seed=1")
    folder = train("indexed", 2, *settings, code=1, options=("--profile", "2"))
    names = {event.get("name") for event in events(folder.profile / "rank_0.json.gz")}
    assert {"data_wait", "forward", "backward", "optimizer"} <= names
    assert not (folder.profile / "rank_1.txt").exists()
    assert any(event.key == "podium_profiled" and event.value == 2 for event in read_log(folder.log).events)
    steps = [json.loads(line) for line in folder.metrics.read_text(encoding="utf-8").splitlines()]
    work = [step["rank_work_ms"] for step in steps if step["event"] == "step"]
    assert len(work) == WARM_STEPS + 3
    assert all(len(times) == 2 and min(times) > 0 for times in work)
