"""Runs that are found in the given folders."""

import os
from pathlib import Path

import pytest

from podium.core.errors import UsageError
from podium.report.find import find_runs
from tests.podium.report.conftest import MakeRun

OLDER, NEWER = "2026-11-20_10-00-00_000001", "2026-11-21_09-00-00"


def runs(tmp_path: Path, *paths: Path) -> list[tuple[str, list[str]]]:
    return [("/".join(path.parts[-2:]), [run.name for run in some]) for path, some in find_runs(paths).sets.items()]


def test_folder_of_a_run_a_set_or_a_system(make_run: MakeRun, tmp_path: Path) -> None:
    for number in (0, 2, 10):
        make_run(number, set_name=NEWER)
    run = make_run(0, set_name=OLDER)
    system = tmp_path / "runs/mine"
    (system / "tune").mkdir()
    (system / NEWER / "replaced_results").mkdir()
    assert runs(tmp_path, run) == [(f"mine/{OLDER}", ["run_0"])]
    assert runs(tmp_path, system / NEWER) == [(f"mine/{NEWER}", ["run_0", "run_2", "run_10"])]
    assert runs(tmp_path, system) == [(f"mine/{NEWER}", ["run_0", "run_2", "run_10"])]
    assert "has 2 sets of runs; the newest is reported" in find_runs([system]).notes[0]
    assert not find_runs([system / NEWER]).notes


def test_runs_are_grouped_by_set_without_duplicates(make_run: MakeRun, tmp_path: Path) -> None:
    first, second, other = make_run(0), make_run(1), make_run(0, set_name=OLDER)
    assert runs(tmp_path, second, other, first, second.parent) == [
        (f"mine/{second.parent.name}", ["run_0", "run_1"]),
        (f"mine/{OLDER}", ["run_0"]),
    ]


def test_run_without_metrics_is_found_and_empty_folder_is_not(make_run: MakeRun) -> None:
    run = make_run(0, metrics=None)
    (run.parent / "run_1").mkdir()
    assert find_runs([run.parent]).sets == {run.parent: [run]}


def test_newest_set_with_a_run_is_used(make_run: MakeRun, tmp_path: Path) -> None:
    make_run(0, set_name=OLDER)
    (tmp_path / "runs/mine" / NEWER / "run_0").mkdir(parents=True)
    assert runs(tmp_path, tmp_path / "runs/mine") == [(f"mine/{OLDER}", ["run_0"])]


def test_a_system_with_only_a_sweep_names_it(make_run: MakeRun) -> None:
    system = make_run(0, set_name="sweep").parents[1]
    (system / "sweep").rename(system / "moved")
    (system / "sweep").mkdir()
    (system / "moved").rename(system / "sweep" / "indexed_0123abcd")
    (system / "sweep" / "indexed_0123abcd" / "set.json").write_text("{}")
    with pytest.raises(UsageError, match=rf"besides those of a sweep; give {system / 'sweep'}$"):
        find_runs([system])


def test_trial_of_tune_is_found(make_run: MakeRun) -> None:
    run = make_run(0)
    trial = run.parent / "trials" / "trial_0003"
    run.rename(trial.parent.parent / "kept")
    trial.mkdir(parents=True)
    (trial / "metrics.jsonl").write_text("")
    assert find_runs([trial]).sets == {trial.parent: [trial]}


@pytest.mark.parametrize(
    ("name", "inside", "message"),
    [
        ("predict_2026-11-21_10-00-00_1", ["config.yaml", "summary.json"], "is a result of `podium predict`"),
        ("bench_2026-11-21_10-00-00_1", ["config.yaml", "summary.json"], "is a result of `podium bench`"),
        ("tune", ["tuning.svg"], "is the folder of `podium tune`"),
        ("nothing", [], "has no run; give runs/SYSTEM"),
    ],
)
def test_folders_of_other_commands_are_named_in_the_error(
    tmp_path: Path, name: str, inside: list[str], message: str
) -> None:
    folder = tmp_path / name
    folder.mkdir()
    for file in inside:
        (folder / file).write_text("{}")
    with pytest.raises(UsageError, match=message):
        find_runs([folder])


def test_missing_folder_file_and_folder_of_systems_are_errors(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run(0)
    with pytest.raises(UsageError, match="there is no such folder"):
        find_runs([tmp_path / "absent"])
    with pytest.raises(UsageError, match="is a file; give the folder"):
        find_runs([run / "metrics.jsonl"])
    with pytest.raises(UsageError, match="has folders of systems; give one of them: mine"):
        find_runs([tmp_path / "runs"])


def test_sets_of_a_sweep_are_in_the_order_in_which_they_began(make_run: MakeRun, tmp_path: Path) -> None:
    first, second = (make_run(0, set_name=name).parent for name in ("packed", "indexed"))
    for seconds, folder in enumerate((first, second)):
        (folder / "set.json").write_text("{}")
        for config in folder.glob("*/config.yaml"):
            os.utime(config, (1_000 + seconds, 1_000 + seconds))
    assert runs(tmp_path, first.parent) != []
    assert list(find_runs([first.parent]).sets) == [first, second]
