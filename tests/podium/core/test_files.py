"""Atomic writes, bounded reads, folders and their permissions."""

import errno
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from podium.core.errors import UsageError, WorkError
from podium.core.files import (
    atomic_file,
    make_folder,
    open_regular,
    private_folder,
    read_bounded,
    remove_partial_files,
    require_disk_space,
    require_readable,
    sha256_of,
    user_cache_folder,
    write_atomically,
)


def test_written_files_have_the_content_and_leave_no_temporary_file(tmp_path: Path) -> None:
    write_atomically(tmp_path / "text", "zwölf\n")
    write_atomically(tmp_path / "bytes", b"\0\xff")
    assert (tmp_path / "text").read_bytes() == "zwölf\n".encode()
    assert (tmp_path / "bytes").read_bytes() == b"\0\xff"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bytes", "text"]


def test_existing_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("something much longer", encoding="utf-8")
    write_atomically(path, "new")
    assert path.read_text(encoding="utf-8") == "new"


def fail(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_failed_write_leaves_the_old_file_and_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = tmp_path / "file"
    path.write_text("old", encoding="utf-8")
    monkeypatch.setattr(*((os, "fsync") if step == "fsync" else (Path, "replace")), fail)
    with pytest.raises(WorkError, match=r"file: cannot be written \(No space left on device\); check that the folder"):
        write_atomically(path, "new")
    assert [(p.name, p.read_text(encoding="utf-8")) for p in tmp_path.iterdir()] == [("file", "old")]


def test_interrupted_write_leaves_no_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "file", "new")
    assert list(tmp_path.iterdir()) == []


def test_devices_and_pipes_are_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as reader:
        read = reader.submit(pipe.read_bytes)
        write_atomically(pipe, "text")
        assert read.result(10) == b"text"
    with pytest.raises(WorkError, match="is a device or a pipe"), atomic_file(pipe) as temporary:
        temporary.write_bytes(b"")
    assert pipe.is_fifo() and list(tmp_path.iterdir()) == [pipe]
    write_atomically(Path("/dev/null"), "text")
    assert Path("/dev/null").is_char_device()
    if Path("/dev/full").is_char_device():
        with pytest.raises(WorkError, match="the disk is full"):
            write_atomically(Path("/dev/full"), "text")


def test_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(WorkError, match=r"none/file: cannot be written \(No such file or directory\)"):
        write_atomically(tmp_path / "none" / "file", "new")


def test_only_partial_files_of_this_file_are_removed(tmp_path: Path) -> None:
    for name in (".a[1].0123.partial", ".a1.0123.partial", ".b.0123.partial", "a[1]"):
        (tmp_path / name).touch()
    remove_partial_files(tmp_path / "a[1]")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".a1.0123.partial", ".b.0123.partial", "a[1]"]


def test_folder_is_created_with_parents_or_an_error_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "a" / "b"
    assert make_folder(folder) == make_folder(folder) == folder
    assert folder.is_dir()
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UsageError, match=f"{path}: the folder cannot be created, since a file exists at this path"):
            make_folder(path)
    monkeypatch.setattr(Path, "mkdir", fail)
    with pytest.raises(WorkError, match=r"other: the folder cannot be created \(No space left on device\); check the"):
        make_folder(tmp_path / "other")


def test_disk_space_is_checked_with_a_probe_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_disk_space(tmp_path)
    with pytest.raises(WorkError, match=r"nothing: cannot be written \(No such file or directory\); check its"):
        require_disk_space(tmp_path / "nothing")
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(
        WorkError, match=rf"^{tmp_path}: the disk is full \(No space left on device\); free some space on it$"
    ):
        require_disk_space(tmp_path)
    assert not list(tmp_path.iterdir())


def test_private_folder_is_created_with_mode_0700(tmp_path: Path) -> None:
    folder = private_folder(tmp_path / "a" / "b")
    assert folder == tmp_path / "a" / "b"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770])
def test_folder_writable_by_others_is_not_private(tmp_path: Path, mode: int) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a").chmod(mode)
    assert private_folder(tmp_path / "a") is None


@pytest.mark.parametrize(("mode", "private"), [(0o777, False), (0o1777, True), (0o775, True)])
def test_folder_that_others_may_replace_is_not_private(tmp_path: Path, mode: int, private: bool) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True, mode=0o700)
    (tmp_path / "a" / "b").chmod(0o700)
    (tmp_path / "a").chmod(mode)
    assert (private_folder(tmp_path / "a" / "b") is not None) is private


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("given_away", ["a", "a/b"])
def test_another_users_folder_is_not_private(tmp_path: Path, given_away: str) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True, mode=0o700)
    (tmp_path / "a" / "b").chmod(0o700)
    os.chown(tmp_path / given_away, 12345, 12345)
    assert private_folder(tmp_path / "a" / "b") is None


def test_reads_are_bounded(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    assert read_bounded(tmp_path / "a", 5) == b"12345"
    with pytest.raises(OSError, match="it has more than 4 bytes"):
        read_bounded(tmp_path / "a", 4)


def test_only_regular_files_are_opened_and_pipes_do_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path, Path("\0"), tmp_path / ("a" * 10_000)):
        with pytest.raises(OSError, match=r"\[Errno"):
            open_regular(path)
        with pytest.raises(UsageError, match="text file"):
            require_readable([path], "text file")
        with pytest.raises(WorkError, match="cannot be read"):
            sha256_of(path)


def test_cache_folder_of_a_user_without_home_is_temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert user_cache_folder() == tmp_path / f"podium-{os.getuid()}"
