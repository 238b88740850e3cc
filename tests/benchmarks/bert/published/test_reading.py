"""Published results: equal to the shared data, and scored as by MLPerf."""

import json
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from benchmarks.bert.published.reading import PublishedRun, read_runs, read_samples, read_scores, read_tiny_samples

SHARED = Path(__file__).resolve().parents[5] / "shared" / "data"
RUNS = {run.name: run for run in read_runs()}


def shared(name: str) -> list[dict[str, Any]]:
    path = SHARED / name
    if not path.is_file():
        pytest.skip(f"{path} is not here")
    rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return rows


def test_runs_equal_the_published_logs() -> None:
    rows = [row for row in shared("published_bert_scores_v2.0_v2.1.json") if "A100" in row["accelerator_model_name"]]
    assert len(rows) == len(RUNS) == 75
    for row in rows:
        run = RUNS[f"{row['round'][1:]} {row['submitter']} {row['system']}"]
        assert run.seconds == tuple(row["run_times_s"])
        assert run.samples == tuple(row["train_samples_to_converge"])
        assert (run.nodes, run.gpus_per_node) == (row["number_of_nodes"], row["accelerators_per_node"])
        assert run.global_batch_size == row["global_batch_size"]
        assert run.score_seconds == pytest.approx(60 * row["score_minutes"], rel=1e-6)
        assert run.gpu == ("a100_pcie" if "pcie" in row["accelerator_model_name"].lower() else "a100_sxm")
        assert (run.adapters is None) == (run.nodes == 1)


def test_samples_equal_the_published_logs() -> None:
    by_name = {
        (row["round"], row["system"], row["submitter"]): row
        for row in shared("published_bert_hyperparameters_to_v2.1.json")
    }
    for point in read_samples():
        row = by_name[point.round, point.system, point.submitter]
        assert (point.mean, point.least, point.greatest) == tuple(
            row[f"samples_to_converge_{key}"] for key in ("mean", "min", "max")
        )
        assert point.global_batch_size == row["global_batch_size"]
        assert point.round in ("1.0", "1.1")
        assert row["republished_from"] is None
    for score in read_scores():
        row = by_name[score.round, score.system, score.submitter]
        assert score.score_seconds == pytest.approx(60 * row["unscaled_minutes"], abs=1e-3)
        assert score.mean_samples == row["samples_to_converge_mean"]
        assert row["accelerators"].startswith(f"{score.gpus}x")
    for run in RUNS.values():
        row = by_name[
            run.round,
            run.system,
            "SUPERMICRO" if run.submitter == "Supermicro" and run.round == "2.0" else run.submitter,
        ]
        assert run.accumulation_steps == row["gradient_accumulation_steps"]
        assert run.republished_from == row["republished_from"]


def test_score_excludes_the_fastest_and_the_slowest_run() -> None:
    run = RUNS["2.0 NVIDIA dgxa100_n512_ngc22.04_pytorch"]
    assert run.score_seconds == pytest.approx(mean(sorted(run.seconds)[1:-1]))
    assert run.score_seconds == pytest.approx(0.206 * 60, abs=0.03)


def test_failed_run_counts_as_the_slowest() -> None:
    run = RUNS["2.0 Baidu XMan4.0_1_node_8_A100_PaddlePaddle"]
    assert run.not_converged == 1
    assert run.score_seconds == pytest.approx(995.9, abs=0.1)
    assert 1208.79 not in [seconds for seconds, _ in run.converged]
    assert len(run.converged) == 9
    assert run.sequences_per_second == pytest.approx(2477, rel=0.015)


def test_republished_runs_are_marked() -> None:
    republished = {name for name, run in RUNS.items() if run.republished_from}
    seconds = [run.seconds for name, run in RUNS.items() if name not in republished]
    assert len(republished) == 7
    assert len(set(seconds)) == len(seconds)
    for name in republished:
        before, system = str(RUNS[name].republished_from).split("/")
        assert RUNS[f"{before} {RUNS[name].submitter} {system}"].seconds == RUNS[name].seconds


def test_the_tiny_bert_has_ten_runs() -> None:
    adamw, lamb = read_tiny_samples()
    assert (adamw.optimizer, adamw.global_batch_size, adamw.mean) == ("adamw", 16, 10_240)
    assert (lamb.optimizer, lamb.global_batch_size) == ("lamb", 16)
    assert all(point.least < point.mean < point.greatest for point in (adamw, lamb))


def test_file_with_other_keys_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "runs.json"
    row = {name: None for name in PublishedRun.__dataclass_fields__} | {"colour": "red"}
    path.write_text(json.dumps({"runs": [row]}), encoding="utf-8")
    with pytest.raises(ValueError, match=r"runs\[0\].*colour"):
        read_runs(path)
