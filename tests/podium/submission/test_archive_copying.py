"""Copies of a package: regular files within limits only, and a finding for each entry that is not copied."""

import os
import socket
from pathlib import Path, PurePosixPath

import pytest

from podium.core.errors import UsageError
from podium.core.text import printable
from podium.submission.archive import Limits, Tally, copy_file, copy_tree, is_within


def tree(root: Path) -> dict[str, bytes | None]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes() if path.is_file() else None for path in root.rglob("*")
    }


def copied(source: Path, target: Path, **limits: int) -> tuple[dict[str, bytes | None], Tally]:
    tally = Tally(Limits(**limits))
    copy_tree(source, target, tally)
    return tree(target), tally


def rules(tally: Tally) -> set[tuple[str, str]]:
    return {(finding.path, finding.rule) for finding in tally.findings}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "source"
    (root / "a" / "b").mkdir(parents=True)
    (root / "a" / "b" / "one.txt").write_bytes(b"one\r\n\xff")
    (root / "two.txt").write_bytes(b"2" * (3 << 20))
    (root / "empty").mkdir()
    return root


def test_a_tree_is_copied_without_the_top_git_folder(source: Path, tmp_path: Path) -> None:
    before = tree(source)
    (source / ".git").mkdir()
    (source / ".git" / "config").write_text("x")
    (source / "a" / ".git").mkdir()
    found, tally = copied(source, tmp_path / "copy")
    assert found == before | {"a/.git": None}
    assert tally.findings == [] and tally.whole
    assert tally.total_bytes == 7 - 1 + (3 << 20)


def test_links_are_reported_by_their_target_and_not_followed(source: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    (source / "out").symlink_to(secret)
    (source / "a" / "up").symlink_to("../..")
    (source / "a" / "in").symlink_to("../two.txt")
    (source / "a" / "loop").symlink_to(".")
    (source / "itself").symlink_to("itself")
    (source / "folder").symlink_to("a")
    found, tally = copied(source, tmp_path / "copy")
    assert {path for path in found if found[path] is not None} == {"two.txt", "a/b/one.txt"}
    outside, inside = {("out", "link_outside"), ("a/up", "link_outside")}, {"a/in", "a/loop", "itself", "folder"}
    assert rules(tally) == outside | {(path, "link_inside") for path in inside}
    assert all("symbolic link" in finding.message and finding.severity == "error" for finding in tally.findings)


def test_a_file_replaced_by_a_link_is_not_followed(source: Path, tmp_path: Path) -> None:
    (source / "link").symlink_to(source / "two.txt")
    tally = Tally(Limits())
    copy_file(source / "link", tmp_path / "copy", tally, PurePosixPath("link"))
    assert rules(tally) == {("link", "unreadable")} and not (tmp_path / "copy").exists()


@pytest.mark.parametrize(
    ("place", "goal", "inside"),
    [
        ("a/b", "c", True),
        ("a/b", "../c", True),
        ("a/b", "../../c", False),
        ("a/b", "../x/../../a/b", False),
        ("b", "..", False),
        ("b", "/b", False),
        ("b", ".", True),
        ("a/b/c", "../../c", True),
    ],
)
def test_link_targets_inside_and_outside_are_distinguished(place: str, goal: str, inside: bool) -> None:
    assert is_within(PurePosixPath(place), goal) is inside


def test_pipes_and_sockets_are_not_opened(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(source / "pipe")
    monkeypatch.chdir(source)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("socket")
        _, tally = copied(source, tmp_path / "copy")
    assert rules(tally) == {("pipe", "special_file"), ("socket", "special_file")}
    copy_file(source / "pipe", tmp_path / "x", tally, PurePosixPath("pipe"))
    assert not (tmp_path / "x").exists()
    assert len(tally.findings) == 3


@pytest.mark.parametrize(
    "name", ["new\nline", "\x1b[31mred", "\udcff", "right‮left", "tab\t", "back\\slash", "\u2028", "\x9b31m"]
)
def test_unprintable_names_are_refused_and_escaped(source: Path, tmp_path: Path, name: str) -> None:
    (source / name).write_text("x")
    found, tally = copied(source, tmp_path / "copy")
    assert name not in found
    ((path, rule),) = rules(tally)
    assert rule == "bad_name"
    assert path.isascii() and path.isprintable()


@pytest.mark.parametrize("name", ["[red]markup", "sp ace", "Ünïcode", ".hidden", "-rf", "日本"])
def test_other_names_are_copied(source: Path, tmp_path: Path, name: str) -> None:
    (source / name).write_text("x")
    found, tally = copied(source, tmp_path / "copy")
    assert found[name] == b"x" and tally.findings == []


def test_a_large_file_is_left_out_and_the_rest_is_copied(source: Path, tmp_path: Path) -> None:
    with (source / "large").open("wb") as file:
        file.truncate(Limits().file_bytes + 1)
    found, tally = copied(source, tmp_path / "copy")
    assert "large" not in found and "two.txt" in found and tally.whole
    assert rules(tally) == {("large", "large_file")}
    assert "50.0 MiB" in tally.findings[0].message


@pytest.mark.parametrize("limits", [{"files": 5}, {"total_bytes": 3 << 20}])
def test_copying_stops_beyond_the_limits_only(source: Path, tmp_path: Path, limits: dict[str, int]) -> None:
    (source / "a" / "b" / "one.txt").write_bytes(b"")
    _, tally = copied(source, tmp_path / "copy", **limits)
    assert tally.whole and tally.findings == []
    (source / "z").write_bytes(b"x")
    _, tally = copied(source, tmp_path / "other", **limits)
    assert not tally.whole
    assert [finding.rule for finding in tally.findings] == ["too_many_" + ("files" if "files" in limits else "bytes")]
    assert "nothing of the package was checked" in tally.findings[0].message


def test_copying_a_huge_folder_stops_at_the_limit(tmp_path: Path) -> None:
    root = tmp_path / "source"
    root.mkdir()
    for number in range(1000):
        (root / str(number)).touch()
    found, tally = copied(root, tmp_path / "copy", files=100)
    assert len(found) == 100 and not tally.whole and len(tally.findings) == 1


def test_nesting_of_folders_is_limited(tmp_path: Path) -> None:
    root = tmp_path / "source"
    (root / "/".join("d" * 60)).mkdir(parents=True)
    _, tally = copied(root, tmp_path / "copy")
    assert [finding.rule for finding in tally.findings] == ["bad_name"]
    assert "40 folders deep" in tally.findings[0].message


def test_unreadable_entries_are_errors(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, scanned = os.open, os.scandir

    def refusing_open(path: Path, flags: int, *more: int) -> int:
        if flags & os.O_ACCMODE == os.O_RDONLY and Path(path).name == "two.txt":
            raise PermissionError(13, "Permission denied")
        return opened(path, flags, *more)

    def refusing_scan(path: Path):  # type: ignore[no-untyped-def]
        if Path(path).name == "b":
            raise PermissionError(13, "Permission denied")
        return scanned(path)

    monkeypatch.setattr(os, "open", refusing_open)
    monkeypatch.setattr(os, "scandir", refusing_scan)
    tally = Tally(Limits())
    copy_tree(source, tmp_path / "copy", tally)
    monkeypatch.undo()
    assert rules(tally) == {("two.txt", "unreadable"), ("a/b", "unreadable")}
    with pytest.raises(UsageError, match="cannot be read"):
        copy_tree(tmp_path / "nowhere", tmp_path / "other", Tally(Limits()))


def test_printable_escapes_terminal_codes() -> None:
    assert printable("a\x1b[31mb\nc\x9b\udc80\u202ed é日") == "a\\x1b[31mb\\nc\\x9b\\udc80\\u202ed é日"
