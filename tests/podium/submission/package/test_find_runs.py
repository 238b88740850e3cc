"""What `submit package` can name: a system, a set of its runs, its folder under results/; in older layouts too."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from podium.core.errors import UsageError
from podium.submission.package.find_runs import Place, find_place, logs_folder, runs_folder
from tests.podium.submission.conftest import MadeSet


def test_a_name_and_a_file_are_a_system_whatever_folders_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "laptop").mkdir()
    for asked in ("laptop", "mine.yaml", "no_such_system"):
        assert find_place(asked) == Place(asked)
    for asked in ("runs/laptop/nowhere", "results/nowhere"):
        with pytest.raises(UsageError, match=f"^{asked}: there is no such folder; name a set"):
            find_place(asked)


@pytest.mark.parametrize("older", [False, True])
def test_a_set_and_its_copies_under_results(make_set: Any, older: bool) -> None:
    made: MadeSet = make_set()
    copies = made.results / "mine" / "bert"
    if older:
        made.make_older()
    assert find_place(str(copies)) == find_place(str(copies.parent)) == Place("mine", copies)
    assert find_place(str(made.set_folder)) == Place("mine", copies if older else made.set_folder)
    logs = logs_folder(find_place(str(made.set_folder)), "mine", None)
    if not older:
        assert runs_folder(logs, "mine", None) == made.runs / "mine"
    assert runs_folder(logs, "mine", made.runs.parent / "elsewhere") == made.runs.parent / "elsewhere" / "mine"


def test_a_copy_of_a_set_is_of_the_system_that_it_says(make_set: Any, tmp_path: Path) -> None:
    made: MadeSet = make_set()
    copy = shutil.copytree(made.set_folder, tmp_path / "backup" / "set")
    (copy / "set.json").write_text((copy / "set.json").read_text().replace('"mine"', '"laptop"'))
    assert find_place(str(copy)) == Place("laptop", copy)
    (copy / "set.json").unlink()
    with pytest.raises(UsageError, match=r"set\.json: is missing; put back the file"):
        find_place(str(copy))


def test_results_may_be_a_folder_of_systems_or_of_logs(make_set: Any, tmp_path: Path) -> None:
    made: MadeSet = make_set()
    place = Place(str(made.system))
    assert logs_folder(place, "mine", made.results) == made.results / "mine" / "bert"
    assert logs_folder(place, "mine", made.set_folder) == made.set_folder


def test_a_set_of_the_layout_before_finds_its_logs_where_a_later_one_put_them(make_set: Any) -> None:
    made: MadeSet = make_set()
    made.make_older()
    later = made.runs / "mine" / "zz_later"
    shutil.copytree(made.folder(0), later / "run_0")
    config = later / "run_0" / "config.yaml"
    config.write_text(config.read_text(encoding="utf-8").replace("seed: 1000", "seed: 7"), encoding="utf-8")
    shutil.move(made.results / "mine" / "bert", later / "replaced_results")
    assert find_place(str(made.set_folder)) == Place("mine", later / "replaced_results")
    assert find_place(str(later / "replaced_results")) == Place("mine", later / "replaced_results")
    assert runs_folder(later / "replaced_results", "mine", None) == made.runs / "mine"
    with pytest.raises(
        UsageError, match=r"zz_later: is a set of an older version of Podium.* no folder has them; name"
    ):
        find_place(str(later))


def test_other_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is no set of runs; name a system, a set \(runs/SYSTEM/DATE_TIME\) or"):
        find_place(str(tmp_path))
