"""Runs, results and trees of logs for the tests of comparison."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from podium.comparison.result import Result
from podium.mllog.run import Evaluation, Run
from podium.planning.accelerators import find_accelerator

START = 1_650_000_000_000.0  # ms; in April 2022, before round v2.0 was published


def make_run(seconds: float = 1000.0, samples: float | None = 2_400_000.0, **changes: Any) -> Run:
    """Return a run that reached the target in the last of its four evaluations."""
    accuracies = (0.4, 0.6, 0.7, 0.73)
    run = Run(
        digest=f"{seconds}-{samples}",
        round="v2.0",
        start_ms=START,
        stop_ms=START + seconds * 1e3,
        status="success",
        init_seconds=60.0,
        setup_seconds=None,
        evaluating_seconds=None,
        evaluations=evaluations_at(
            (seconds * n / 4, None if samples is None else samples * n / 4, accuracy)
            for n, accuracy in enumerate(accuracies, 1)
        ),
        samples=samples,
        trained=samples,
        progress=samples,
        train_samples=samples,
        eval_samples=10_000.0,
        global_batch_size=448.0,
        hyperparameters={},
        tensors=398,
        seeds=(int(seconds * 1000),),
        benchmark="bert",
        folder=None,
        division="closed",
        org="ORG",
        platform="SYS",
        anomalies=(),
    )
    return replace(run, **changes)


def evaluations_at(points: Iterable[tuple[float, float | None, float]]) -> tuple[Evaluation, ...]:
    """Return evaluations from (seconds after START, samples, accuracy)."""
    return tuple(
        Evaluation(START + seconds * 1e3, samples, accuracy, n, 0.72 <= accuracy < 1)
        for n, (seconds, samples, accuracy) in enumerate(points, 1)
    )


def make_result(runs: Sequence[Run] | None = None, **changes: Any) -> Result:
    """Return a result of ten runs on 8 A100s in round v2.0; every second run took 10% more samples and time."""
    if runs is None:
        runs = [make_run(1000.0 + n + (n % 2) * 100, 2_400_000.0 * (1 + (n % 2) / 10)) for n in range(10)]
    result = Result(
        benchmark="bert",
        round="v2.0",
        submitter="ORG",
        system="SYS",
        division="closed",
        source="results/SYS/bert",
        runs=tuple(runs),
        description={"division": "closed"},
        nodes=1,
        accelerators=8,
        accelerator="NVIDIA A100-SXM4-80GB",
        kind=find_accelerator("NVIDIA A100-SXM4-80GB"),
    )
    return replace(result, **changes)


def event(key: str, value: Any = None, ms: float = 0.0, **metadata: Any) -> str:
    """Return a log line of an event `ms` after START."""
    ends = {"start": "INTERVAL_START", "stop": "INTERVAL_END"}
    kind = ends.get(key.rpartition("_")[2], "POINT_IN_TIME")
    fields = {"namespace": "", "time_ms": int(START + ms), "event_type": kind, "key": key, "value": value}
    return ":::MLLOG " + json.dumps({**fields, "metadata": metadata}) + "\n"


def log_text(seconds: float = 1000.0, batch: int = 448, evaluating: bool = True, **values: Any) -> str:
    """Return a log of four evaluations of 0.1 s each, a quarter of the run apart."""
    submission = {"submission_benchmark": "bert", "submission_division": "closed", "submission_org": "ORG", **values}
    lines = [event("init_start", ms=-60_000), *(event(key, value, -59_000) for key, value in submission.items())]
    lines += [event("global_batch_size", batch, -50_000), event("seed", int(seconds * 1000), -50_000)]
    lines += [event("run_start"), event("block_start", ms=1_000)]
    for n, accuracy in enumerate((0.4, 0.6, 0.7, 0.73), 1):
        ms = seconds * 250 * n
        if evaluating:
            lines.append(event("eval_start", ms=ms - 100))
        lines.append(event("eval_accuracy", accuracy, ms, epoch_num=batch * 1000 * n))
        if evaluating:
            lines.append(event("eval_stop", ms=ms))
    end = seconds * 1e3
    return "".join([*lines, event("run_stop", ms=end, status="success"), event("train_samples", batch * 4000, end)])


DESCRIPTION = {
    "submitter": "Org Inc.",
    "division": "closed",
    "system_name": "SYS",
    "number_of_nodes": "2",
    "accelerators_per_node": "4",
    "accelerator_model_name": "NVIDIA A100-SXM4-80GB",
    "framework": "PyTorch",
}


def write_system(
    org: Path,
    system: str = "SYS",
    first: float = 1000.0,
    description: Any = None,
    benchmark: str = "bert",
) -> Path:
    """Write systems/SYSTEM.json and ten logs of `first`, `first` + 1, … seconds; return the logs' folder."""
    (org / "systems").mkdir(parents=True, exist_ok=True)
    fields = DESCRIPTION if description is None else description
    (org / "systems" / f"{system}.json").write_text(json.dumps(fields), encoding="utf-8")
    folder = org / "results" / system / benchmark
    folder.mkdir(parents=True)
    for number in range(10):
        (folder / f"result_{number}.txt").write_text(log_text(first + number), encoding="utf-8")
    return folder


@pytest.fixture
def rounds(tmp_path: Path) -> Path:
    """A folder of two rounds: v2.0 with ORG's SYS, v2.1 with the same runs and a faster system of OTHER."""
    write_system(tmp_path / "rounds" / "training_results_v2.0" / "ORG")
    write_system(tmp_path / "rounds" / "training_results_v2.1" / "ORG")
    write_system(tmp_path / "rounds" / "training_results_v2.1" / "OTHER", "FAST", 500.0)
    return tmp_path / "rounds"
