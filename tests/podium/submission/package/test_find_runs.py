"""Arguments of `submit package`: a system, a set of its runs, or its folder in results/, also in older layouts."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from podium.core.errors import UsageError
from podium.submission.package.find_runs import RunLocation, locate_runs, logs_folder, runs_folder
from tests.podium.submission.conftest import MadeSet


def test_a_name_or_file_is_a_system_even_beside_a_folder_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "laptop").mkdir()
    for name in ("laptop", "mine.yaml", "no_such_system"):
        assert locate_runs(name) == RunLocation(name)
    for name in ("runs/laptop/nowhere", "results/nowhere"):
        with pytest.raises(UsageError, match=f"^{name}: no such folder; name a set"):
            locate_runs(name)


@pytest.mark.parametrize("older", [False, True])
def test_a_set_and_its_copies_in_results_are_located(make_set: Any, older: bool) -> None:
    made: MadeSet = make_set()
    copies = made.results / "mine" / "bert"
    if older:
        made.remove_set_record()
    assert locate_runs(str(copies)) == locate_runs(str(copies.parent)) == RunLocation("mine", copies)
    assert locate_runs(str(made.set_folder)) == RunLocation("mine", copies if older else made.set_folder)
    logs = logs_folder(locate_runs(str(made.set_folder)), "mine", None)
    if not older:
        assert runs_folder(logs, "mine", None) == made.runs / "mine"
    assert runs_folder(logs, "mine", made.runs.parent / "elsewhere") == made.runs.parent / "elsewhere" / "mine"


def test_a_copied_set_has_the_system_of_its_record(make_set: Any, tmp_path: Path) -> None:
    made: MadeSet = make_set()
    copy = shutil.copytree(made.set_folder, tmp_path / "backup" / "set")
    (copy / "set.json").write_text((copy / "set.json").read_text().replace('"mine"', '"laptop"'))
    assert locate_runs(str(copy)) == RunLocation("laptop", copy)
    (copy / "set.json").unlink()
    with pytest.raises(UsageError, match=r"set\.json: is missing; restore the file"):
        locate_runs(str(copy))


def test_results_may_be_a_folder_of_systems_or_of_logs(make_set: Any, tmp_path: Path) -> None:
    made: MadeSet = make_set()
    place = RunLocation(str(made.system))
    assert logs_folder(place, "mine", made.results) == made.results / "mine" / "bert"
    assert logs_folder(place, "mine", made.set_folder) == made.set_folder


def test_logs_of_an_older_set_are_found_where_a_later_set_moved_them(make_set: Any) -> None:
    made: MadeSet = make_set()
    made.remove_set_record()
    later = made.runs / "mine" / "zz_later"
    shutil.copytree(made.folder(0), later / "run_0")
    config = later / "run_0" / "config.yaml"
    config.write_text(config.read_text(encoding="utf-8").replace("seed: 1000", "seed: 7"), encoding="utf-8")
    shutil.move(made.results / "mine" / "bert", later / "replaced_results")
    assert locate_runs(str(made.set_folder)) == RunLocation("mine", later / "replaced_results")
    assert locate_runs(str(later / "replaced_results")) == RunLocation("mine", later / "replaced_results")
    assert runs_folder(later / "replaced_results", "mine", None) == made.runs / "mine"
    with pytest.raises(UsageError, match=r"zz_later: is a set of an older version of Podium.* were not found; name"):
        locate_runs(str(later))


def test_folders_without_runs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is not a set of runs; name a system, a set \(runs/SYSTEM/DATE_TIME\) or"):
        locate_runs(str(tmp_path))
