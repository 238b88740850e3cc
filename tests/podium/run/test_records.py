"""Records of runs: their order, seeds and summaries."""

import json
from pathlib import Path

from podium.config.run_folder import RunFolder
from podium.run.records import RunRecord, newest_by_seed, runs_of_all_systems, runs_of_set, runs_of_system


def make(folder: Path, config: str | None = None, **summary: object) -> RunRecord:
    folder.mkdir(parents=True)
    if config is not None:
        (folder / "config.yaml").write_text(config, encoding="utf-8")
    (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    return RunRecord(RunFolder(folder))


def test_runs_are_ordered_by_set_and_number(tmp_path: Path) -> None:
    for name in ("mine/2/run_10", "mine/2/run_9", "mine/1/run_0", "other/3/run_0", "mine/2/replaced_results"):
        make(tmp_path / name)
    (tmp_path / "mine/2/run_7").touch()
    assert [run.name for run in runs_of_set(tmp_path / "mine/2")] == ["mine/2/run_9", "mine/2/run_10"]
    assert [run.name for run in runs_of_system(tmp_path / "mine")] == ["mine/1/run_0", "mine/2/run_9", "mine/2/run_10"]
    assert [run.system for run in runs_of_all_systems(tmp_path)] == ["mine"] * 3 + ["other"]
    assert runs_of_set(tmp_path / "absent") == []


def test_newest_run_of_each_seed(tmp_path: Path) -> None:
    first = make(tmp_path / "1/run_0", "seed: 7\n")
    same, last = make(tmp_path / "2/run_9", "seed: 8\n"), make(tmp_path / "2/run_10", "bert:\n  seed: 1\nseed: 8\n")
    none = [make(tmp_path / "2/run_11", "seed: null\n"), make(tmp_path / "2/run_12")]
    assert [run.seed for run in (first, same, last, *none)] == [7, 8, 8, None, None]
    assert newest_by_seed(runs_of_system(tmp_path)) == {7: first, 8: last}


def test_summary_values_are_numbers_or_none(tmp_path: Path) -> None:
    run = make(tmp_path / "run_0", seconds=2, samples=True, accuracy="0.7")
    assert [run.summary_number(key) for key in ("seconds", "samples", "accuracy", "absent")] == [2.0, None, None, None]
    run.folder.summary.write_text("[" * 100_000, encoding="utf-8")
    assert run.summary_number("seconds") is None
