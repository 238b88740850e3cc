"""Discovery of results in folders, and of their round by names, clone URLs and dates."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from podium.comparison.discover import discover_results
from podium.core.errors import UsageError
from podium.mllog.rounds import find_round, parse_round, round_from_dates
from tests.podium.comparison.conftest import log_text, write_system


def discovered(path: Path) -> list[tuple[str, str | None, str, int]]:
    """Return the package, round, system and number of logs of each result."""
    return [
        (package_results.package.name, package_results.round, result.system, len(result.logs))
        for package_results in discover_results(path)
        for result in package_results.results
    ]


BOTH = [("ORG", "v2.0", "SYS", 10), ("ORG", "v2.1", "SYS", 10), ("OTHER", "v2.1", "FAST", 10)]


def test_results_in_a_folder_of_rounds_a_round_or_a_submitter(rounds: Path) -> None:
    assert discovered(rounds) == BOTH
    assert discovered(rounds / "training_results_v2.1") == BOTH[1:]
    assert discovered(rounds / "training_results_v2.1" / "ORG") == BOTH[1:2]


def test_results_of_a_submitter_below_a_division_folder(tmp_path: Path) -> None:
    write_system(tmp_path / "v2.0" / "closed" / "ORG")
    assert discovered(tmp_path / "v2.0") == BOTH[:1] == discovered(tmp_path)


@pytest.mark.parametrize("part", ["results", "results/SYS", "results/SYS/bert"])
def test_parts_of_a_package_keep_its_description(rounds: Path, part: str) -> None:
    write_system(rounds / "training_results_v2.0" / "ORG", "MORE", 10.0)
    path = rounds / "training_results_v2.0" / "ORG" / part
    (package_results,) = discover_results(path)
    assert package_results.package.system("SYS") is not None
    assert [result.system for result in package_results.results] == (["MORE", "SYS"] if part == "results" else ["SYS"])


def test_one_log_of_a_package_keeps_its_description(rounds: Path) -> None:
    log = rounds / "training_results_v2.0" / "ORG" / "results" / "SYS" / "bert" / "result_3.txt"
    (package_results,) = discover_results(log)
    assert package_results.results[0].logs == (log,) and package_results.package.system("SYS") is not None


def test_a_log_outside_of_a_package(tmp_path: Path) -> None:
    path = tmp_path / "any" / "where" / "my.log"
    path.parent.mkdir(parents=True)
    path.write_text(log_text(), encoding="utf-8")
    assert discovered(path) == [("where", None, "any", 1)]


def test_results_in_the_current_folder(rounds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(rounds / "training_results_v2.1")
    assert discovered(Path()) == BOTH[1:]
    monkeypatch.chdir(rounds / "training_results_v2.1" / "ORG" / "results")
    assert discovered(Path()) == BOTH[1:2] == discovered(Path("SYS")) == discovered(Path("SYS/bert"))


def test_rounds_are_not_taken_from_folders_before_dot_dot(
    rounds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (rounds / "training_results_v2.1").rename(tmp_path / "clone")
    monkeypatch.chdir(rounds / "training_results_v2.0")
    assert [found[1] for found in discovered(Path("../../clone"))] == [None, None]
    monkeypatch.chdir(rounds / "training_results_v2.0" / "ORG" / "results" / "SYS" / "bert")
    assert discovered(Path("../bert")) == BOTH[:1] == discovered(Path(".."))


def test_results_as_podium_writes_them(tmp_path: Path) -> None:
    folder = tmp_path / "results" / "laptop" / "bert"
    folder.mkdir(parents=True)
    (folder / "result_0.txt").write_text(log_text(), encoding="utf-8")
    for path in (tmp_path, tmp_path / "results", tmp_path / "results" / "laptop", folder):
        assert [system for _, _, system, _ in discovered(path)] == ["laptop"], path
    (tmp_path / "results").rename(tmp_path / "kept")
    for path in (tmp_path / "kept", tmp_path / "kept" / "laptop", tmp_path / "kept" / "laptop" / "bert"):
        assert [system for _, _, system, _ in discovered(path)] == ["laptop"], path


def test_all_benchmarks_of_a_package_are_found(rounds: Path) -> None:
    org = rounds / "training_results_v2.0" / "ORG"
    for benchmark in ("resnet", "not_in_the_table"):
        write_system(org, benchmark=benchmark, system="OTHER")
    (package_results,) = discover_results(rounds / "training_results_v2.0")
    assert sorted(result.benchmark for result in package_results.results) == ["bert", "not_in_the_table", "resnet"]
    (only,) = discover_results(org / "results" / "OTHER" / "resnet")
    assert [result.benchmark for result in only.results] == ["resnet"]


def test_folders_named_after_a_benchmark_are_results_without_a_package(tmp_path: Path) -> None:
    for name in ("LLAMA31_8B", "bert_large", "other"):
        folder = tmp_path / "kept" / "SYS" / name
        folder.mkdir(parents=True)
        (folder / "result_0.txt").write_text(log_text(), encoding="utf-8")
    (package_results,) = discover_results(tmp_path / "kept")
    assert sorted(result.benchmark for result in package_results.results) == ["LLAMA31_8B", "bert_large"]


def test_hidden_folders_and_links_are_not_followed(rounds: Path, tmp_path: Path) -> None:
    (rounds / "again").symlink_to(rounds)
    (rounds / "training_results_v2.1").rename(rounds / ".git")
    assert discovered(rounds) == BOTH[:1]
    (tmp_path / "v3.0").symlink_to(rounds / ".git")
    own = [(package, "v3.0", system, logs) for package, _, system, logs in BOTH[1:]]
    assert discovered(tmp_path / "v3.0") == own, "a link in the command line is followed"


def test_paths_without_results_are_errors(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no such file or folder"):
        discover_results(tmp_path / "missing")
    with pytest.raises(UsageError, match="contains no results; name a clone"):
        discover_results(tmp_path)
    (tmp_path / "broken").symlink_to(tmp_path / "missing")
    with pytest.raises(UsageError, match="missing: there is no such file or folder"):
        discover_results(tmp_path / "broken")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("training_results_v2.1", "v2.1"),
        ("training_results_v4.0-main", "v4.0"),
        ("published-bert-v2.0", "v2.0"),
        ("v5.0", "v5.0"),
        ("V3.1", "v3.1"),
        ("0.7", "v0.7"),
        ("2.1.0", "v2.1"),
        ("round 1.1", "v1.1"),
        ("mlperf v1.0 and v1.1", "v1.1"),
        ("v2.2", None),
        ("2.13.0", None),
        ("python3.1", None),
        ("ngc22.04", None),
        ("v2.10", None),
        ("podium", None),
        ("", None),
    ],
)
def test_rounds_in_names(name: str, found: str | None) -> None:
    assert parse_round(name) == found


def test_the_nearest_folder_determines_the_round(tmp_path: Path) -> None:
    top = tmp_path / "v2.0" / "training_results_v2.1"
    assert find_round(top / "ORG", top) == "v2.1"
    assert find_round(top / "closed" / "ORG", top) == "v2.1"
    assert find_round(tmp_path / "a" / "ORG", tmp_path / "a" / "ORG") is None


def test_the_clone_url_determines_the_round(tmp_path: Path) -> None:
    (tmp_path / "here" / ".git").mkdir(parents=True)
    config = tmp_path / "here" / ".git" / "config"
    config.write_text('[remote "origin"]\n\turl = https://host/mlcommons/training_results_v3.0.git\n', encoding="utf-8")
    assert find_round(tmp_path / "here" / "ORG", tmp_path / "here") == "v3.0"
    config.write_bytes(b"\xff training_results_v9.9")
    assert find_round(tmp_path / "here" / "ORG", tmp_path / "here") is None


def at(day: str) -> float:
    return datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp() * 1e3


@pytest.mark.parametrize(
    ("days", "found"),
    [
        (["2022-05-10"], "v2.0"),
        (["2022-09-30"], "v2.1"),
        (["2022-05-10"] * 4 + ["2022-09-30"] * 5, "v2.1"),
        (["2022-09-30"] * 9 + ["2035-01-01"], "v2.1"),
        (["2026-11-20"], None),
        ([], None),
    ],
)
def test_rounds_from_dates_of_runs(days: list[str], found: str | None) -> None:
    assert round_from_dates([at(day) for day in days]) == found
