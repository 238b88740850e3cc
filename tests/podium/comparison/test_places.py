"""Where results are found."""

from pathlib import Path

import pytest

from benchmarks.errors import UsageError
from podium.comparison.places import places
from tests.podium.comparison.conftest import log_text, write_system


def told(path: Path) -> list[tuple[str, str | None, str, int]]:
    """Package, round, system and number of logs of each result."""
    return [
        (place.package.name, place.round, result.system, len(result.logs))
        for place in places(path)
        for result in place.results
    ]


BOTH = [("ORG", "v2.0", "SYS", 10), ("ORG", "v2.1", "SYS", 10), ("OTHER", "v2.1", "FAST", 10)]


def test_a_folder_of_rounds_a_round_a_submitter(rounds: Path) -> None:
    assert told(rounds) == BOTH
    assert told(rounds / "training_results_v2.1") == BOTH[1:]
    assert told(rounds / "training_results_v2.1" / "ORG") == BOTH[1:2]


def test_a_submitter_below_its_division(tmp_path: Path) -> None:
    write_system(tmp_path / "v2.0" / "closed" / "ORG")
    assert told(tmp_path / "v2.0") == BOTH[:1] == told(tmp_path)


@pytest.mark.parametrize("part", ["results", "results/SYS", "results/SYS/bert"])
def test_parts_of_a_package_keep_its_description(rounds: Path, part: str) -> None:
    write_system(rounds / "training_results_v2.0" / "ORG", "MORE", 10.0)
    path = rounds / "training_results_v2.0" / "ORG" / part
    (place,) = places(path)
    assert place.package.system("SYS") is not None
    assert [result.system for result in place.results] == (["MORE", "SYS"] if part == "results" else ["SYS"])


def test_one_log(rounds: Path) -> None:
    log = rounds / "training_results_v2.0" / "ORG" / "results" / "SYS" / "bert" / "result_3.txt"
    (place,) = places(log)
    assert place.results[0].logs == (log,) and place.package.system("SYS") is not None


def test_a_log_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "any" / "where" / "my.log"
    path.parent.mkdir(parents=True)
    path.write_text(log_text(), encoding="utf-8")
    assert told(path) == [("where", None, "any", 1)]


def test_the_current_folder(rounds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(rounds / "training_results_v2.1")
    assert told(Path()) == BOTH[1:]
    monkeypatch.chdir(rounds / "training_results_v2.1" / "ORG" / "results")
    assert told(Path()) == BOTH[1:2] == told(Path("SYS")) == told(Path("SYS/bert"))


def test_a_way_back_is_no_name(rounds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (rounds / "training_results_v2.1").rename(tmp_path / "clone")
    monkeypatch.chdir(rounds / "training_results_v2.0")
    assert [found[1] for found in told(Path("../../clone"))] == [None, None]
    monkeypatch.chdir(rounds / "training_results_v2.0" / "ORG" / "results" / "SYS" / "bert")
    assert told(Path("../bert")) == BOTH[:1] == told(Path(".."))


def test_results_as_podium_leaves_them(tmp_path: Path) -> None:
    folder = tmp_path / "results" / "laptop" / "bert"
    folder.mkdir(parents=True)
    (folder / "result_0.txt").write_text(log_text(), encoding="utf-8")
    for path in (tmp_path, tmp_path / "results", tmp_path / "results" / "laptop", folder):
        assert [system for _, _, system, _ in told(path)] == ["laptop"], path
    (tmp_path / "results").rename(tmp_path / "kept")
    for path in (tmp_path / "kept", tmp_path / "kept" / "laptop", tmp_path / "kept" / "laptop" / "bert"):
        assert [system for _, _, system, _ in told(path)] == ["laptop"], path


def test_other_benchmarks_are_counted_and_left_out(rounds: Path) -> None:
    write_system(rounds / "training_results_v2.0" / "ORG", benchmark="resnet", system="OTHER")
    (place,) = places(rounds / "training_results_v2.0")
    assert place.others == 1 and [result.benchmark for result in place.results] == ["bert"]
    with pytest.raises(UsageError, match="holds no results of BERT"):
        places(rounds / "training_results_v2.0" / "ORG" / "results" / "OTHER")


def test_hidden_folders_and_links_are_not_followed(rounds: Path, tmp_path: Path) -> None:
    (rounds / "again").symlink_to(rounds)
    (rounds / "training_results_v2.1").rename(rounds / ".git")
    assert told(rounds) == BOTH[:1]
    (tmp_path / "v3.0").symlink_to(rounds / ".git")
    own = [(package, "v3.0", system, logs) for package, _, system, logs in BOTH[1:]]
    assert told(tmp_path / "v3.0") == own, "a link that is given is followed"


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no such file or folder"):
        places(tmp_path / "missing")
    with pytest.raises(UsageError, match="holds no results of BERT"):
        places(tmp_path)
    (tmp_path / "broken").symlink_to(tmp_path / "missing")
    with pytest.raises(UsageError, match="missing: there is no such file or folder"):
        places(tmp_path / "broken")
