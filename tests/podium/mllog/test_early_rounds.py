"""Logs of rounds 0.7 and 1.0: another target, and lines without event_type."""

import json
from pathlib import Path
from typing import Any

import pytest

from podium.mllog.benchmarks import published_ms
from podium.mllog.read import read_log
from podium.mllog.run import Run

EARLY_UNTIL_MS = int(published_ms("v0.7") or 0)


def early(folder: Path, start_ms: int, accuracy: float) -> Run:
    """Read a log without event_type and namespace, with submission lines last and at time 0."""
    path = folder / "result_0.txt"
    lines: list[tuple[int, str, Any, dict[str, Any]]] = [
        (start_ms - 9_000, "global_batch_size", 448, {}),
        (start_ms - 9_000, "train_samples", 3_630_144, {}),
        (start_ms, "run_start", None, {}),
        (start_ms + 50_000, "eval_start", None, {"epoch_num": 6}),
        (start_ms + 60_000, "eval_stop", None, {"epoch_num": 6}),
        (start_ms + 60_001, "eval_accuracy", accuracy, {"epoch_num": 6}),
        (start_ms + 60_500, "run_stop", None, {"status": "success"}),
        (0, "submission_benchmark", "bert", {}),
        (0, "submission_org", "A", {}),
    ]
    with path.open("w", encoding="utf-8") as file:
        for time_ms, key, value, metadata in lines:
            event = {"time_ms": time_ms, "key": key, "value": value, "metadata": {"lineno": 1, **metadata}}
            print(":::MLLOG " + json.dumps(event), file=file)
    return read_log(path).run("d")


@pytest.mark.parametrize(("start_ms", "target"), [(EARLY_UNTIL_MS - 1, 0.712), (EARLY_UNTIL_MS, 0.72)])
def test_target_depends_on_the_date_of_the_run(tmp_path: Path, start_ms: int, target: float) -> None:
    run = early(tmp_path, start_ms, target)
    assert [one.value for one in run.targets] == [target]
    assert (run.seconds, run.samples, run.converged) == (60.5, 3_630_144, True)
    assert run.closing_seconds == pytest.approx(0.499)
    run = early(tmp_path, start_ms, target - 1e-9)
    assert run.converged and run.samples is None and run.closing_seconds is None


def test_lines_without_event_type_are_events(tmp_path: Path) -> None:
    run = early(tmp_path, 1_594_000_000_000, 0.7125)
    assert (run.benchmark, run.org, run.global_batch_size, run.evaluating_seconds) == ("bert", "A", 448, 10.0)
    kinds = {anomaly.kind for anomaly in run.anomalies}
    assert kinds == {"event", "time", "epoch_num"}
