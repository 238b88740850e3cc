"""What is meant by the folders that are named."""

from pathlib import Path

import pytest

from podium.core.errors import UsageError
from podium.report.find import find
from tests.podium.report.conftest import MakeRun

OLDER, NEWER = "2026-11-20_10-00-00_000001", "2026-11-21_09-00-00"


def runs(tmp_path: Path, *paths: Path) -> list[tuple[str, list[str]]]:
    return [("/".join(path.parts[-2:]), [run.name for run in some]) for path, some in find(paths).sets.items()]


def test_a_run_a_set_and_a_system(make_run: MakeRun, tmp_path: Path) -> None:
    for number in (0, 2, 10):
        make_run(number, set_name=NEWER)
    run = make_run(0, set_name=OLDER)
    system = tmp_path / "runs/mine"
    (system / "tune").mkdir()
    (system / NEWER / "replaced_results").mkdir()
    assert runs(tmp_path, run) == [(f"mine/{OLDER}", ["run_0"])]
    assert runs(tmp_path, system / NEWER) == [(f"mine/{NEWER}", ["run_0", "run_2", "run_10"])]
    assert runs(tmp_path, system) == [(f"mine/{NEWER}", ["run_0", "run_2", "run_10"])]
    assert "of its 2 sets of runs the newest is told" in find([system]).notes[0]
    assert not find([system / NEWER]).notes


def test_runs_of_one_set_stand_together_and_once(make_run: MakeRun, tmp_path: Path) -> None:
    first, second, other = make_run(0), make_run(1), make_run(0, set_name=OLDER)
    assert runs(tmp_path, second, other, first, second.parent) == [
        (f"mine/{second.parent.name}", ["run_0", "run_1"]),
        (f"mine/{OLDER}", ["run_0"]),
    ]


def test_a_run_that_left_no_metrics_is_one_and_an_empty_folder_is_none(make_run: MakeRun) -> None:
    run = make_run(0, metrics=None)
    (run.parent / "run_1").mkdir()
    assert find([run.parent]).sets == {run.parent: [run]}


def test_the_newest_set_that_holds_a_run_is_meant(make_run: MakeRun, tmp_path: Path) -> None:
    make_run(0, set_name=OLDER)
    (tmp_path / "runs/mine" / NEWER / "run_0").mkdir(parents=True)
    assert runs(tmp_path, tmp_path / "runs/mine") == [(f"mine/{OLDER}", ["run_0"])]


def test_a_trial_of_tune_can_be_named(make_run: MakeRun) -> None:
    run = make_run(0)
    trial = run.parent / "trials" / "trial_0003"
    run.rename(trial.parent.parent / "kept")
    trial.mkdir(parents=True)
    (trial / "metrics.jsonl").write_text("")
    assert find([trial]).sets == {trial.parent: [trial]}


@pytest.mark.parametrize(
    ("name", "inside", "words"),
    [
        ("predict_2026-11-21_10-00-00_1", ["config.yaml", "summary.json"], "is what `podium predict` left"),
        ("bench_2026-11-21_10-00-00_1", ["config.yaml", "summary.json"], "is what `podium bench` left"),
        ("tune", ["tuning.svg"], "is what `podium tune` works in"),
        ("nothing", [], "holds no run; name runs/SYSTEM"),
    ],
)
def test_folders_that_are_no_runs_are_called_what_they_are(
    tmp_path: Path, name: str, inside: list[str], words: str
) -> None:
    folder = tmp_path / name
    folder.mkdir()
    for file in inside:
        (folder / file).write_text("{}")
    with pytest.raises(UsageError, match=words):
        find([folder])


def test_what_is_no_folder_and_what_holds_systems(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run(0)
    with pytest.raises(UsageError, match="there is no such folder"):
        find([tmp_path / "absent"])
    with pytest.raises(UsageError, match="is a file; name the folder"):
        find([run / "metrics.jsonl"])
    with pytest.raises(UsageError, match="holds folders of systems; name one of them: mine"):
        find([tmp_path / "runs"])
