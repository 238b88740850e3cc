"""Package trees: what is found, and that no link leads out of them."""

import json
import os
from pathlib import Path

import pytest

from podium.core.errors import UsageError, WorkError
from podium.mllog.results_tree import SystemFile, find_packages


@pytest.fixture
def org(tmp_path: Path) -> Path:
    """A package with two systems with results, and a third without."""
    root = tmp_path / "round" / "ORG"
    (root / "systems").mkdir(parents=True)
    for system in ("a", "b", "c"):
        (root / "systems" / f"{system}.json").write_text(json.dumps({"system_name": system}), encoding="utf-8")
    for system in ("a", "b"):
        folder = root / "results" / system / "bert"
        folder.mkdir(parents=True)
        for number in range(11):
            (folder / f"result_{number}.txt").touch()
    return root


def names(paths: tuple[Path, ...]) -> list[str]:
    return [path.name for path in paths]


def test_packages_of_an_organisation_and_of_a_round(org: Path) -> None:
    (package,) = find_packages(org)
    assert find_packages(org.parent) == [package]
    assert (package.root, package.name) == (org, "ORG")
    assert [(result.system, result.benchmark, len(result.logs)) for result in package.results] == [
        ("a", "bert", 11),
        ("b", "bert", 11),
    ]
    assert [(system.name, system.fields, system.problem) for system in package.systems] == [
        (name, {"system_name": name}, None) for name in ("a", "b", "c")
    ]
    assert package.system("b") == package.systems[1] and package.system("x") is None


def test_part_of_a_package_is_a_package(org: Path) -> None:
    for path in (
        org / "results" / "b",
        org / "results" / "b" / "bert",
        org / "results" / "b" / "bert" / "result_3.txt",
    ):
        (package,) = find_packages(path)
        (result,) = package.results
        assert (result.system, result.benchmark, package.systems) == ("b", "bert", ())
        assert len(result.logs) == (1 if path.suffix else 11)
    (package,) = find_packages(org / "results")
    assert [(result.system, result.benchmark, len(result.logs)) for result in package.results] == [
        ("a", "bert", 11),
        ("b", "bert", 11),
    ]


def test_logs_are_sorted_by_number_and_separate_from_other_files(org: Path) -> None:
    folder = org / "results" / "a" / "bert"
    for name in ("result_220520_9.txt", "result_220520_10.txt", "results_1.txt", "result_1.log", "scaling.json"):
        (folder / name).touch()
    (folder / "result_x.txt").mkdir()
    result = find_packages(org)[0].results[0]
    assert names(result.logs) == [f"result_{i}.txt" for i in range(11)] + [
        "result_220520_9.txt",
        "result_220520_10.txt",
    ]
    assert names(result.others) == ["result_1.log", "result_x.txt", "results_1.txt", "scaling.json"]


def test_links_and_special_files_are_not_followed_or_opened(org: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "bert").mkdir(parents=True)
    (outside / "bert" / "result_0.txt").write_text("secret")
    folder = org / "results" / "a" / "bert"
    (folder / "result_77.txt").symlink_to(outside / "bert" / "result_0.txt")
    os.mkfifo(folder / "result_78.txt")
    (org / "results" / "linked").symlink_to(outside)
    (org / "systems" / "d.json").symlink_to(outside / "bert" / "result_0.txt")
    os.mkfifo(org / "systems" / "e.json")
    (package,) = find_packages(org)
    assert [result.system for result in package.results] == ["a", "b"]
    assert names(package.results[0].others) == ["result_77.txt", "result_78.txt"]
    assert [system.name for system in package.systems] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is not valid JSON"),
        (b"[]", "is not a JSON object"),
        (b"\xef\xbb\xbf{}", "byte order mark"),
        (b'{"a": "\xff"}', "is not UTF-8 at byte 7"),
        (b"[" * 5_000, "deep"),
        (b'{"a": "' + b"x" * (1 << 20) + b'"}', "larger than 1,048,576 bytes"),
    ],
)
def test_unreadable_system_description_has_a_problem(org: Path, content: bytes, problem: str) -> None:
    (org / "systems" / "b.json").write_bytes(content)
    system = find_packages(org)[0].system("b")
    assert system is not None and system.fields is None and problem in (system.problem or "")


def test_system_description_with_duplicate_keys_is_read(org: Path) -> None:
    path = org / "systems" / "b.json"
    path.write_text('{"a": "1", "a": "2"}')
    assert find_packages(org)[0].system("b") == SystemFile(path, "b", {"a": "2"}, "has the key 'a' 2 times")


def test_folder_without_results_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"has no results; give a folder with systems/ and results/"):
        find_packages(tmp_path)
    with pytest.raises(UsageError, match="there is no such file or folder"):
        find_packages(tmp_path / "nothing")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every folder")
def test_unreadable_folder_is_an_error(org: Path) -> None:
    (org / "results").chmod(0)
    try:
        with pytest.raises(WorkError, match="cannot be read"):
            find_packages(org)
    finally:
        (org / "results").chmod(0o755)
