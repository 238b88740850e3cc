"""Locks on files and folders, which end with the processes that hold them."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from podium.core import locks
from podium.core.errors import UsageError, WorkError
from podium.core.locks import assert_unlocked, exclusive_lock, folder_lock, is_locked, shared_lock


def test_locks_are_exclusive_or_shared(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with exclusive_lock(path, "taken"):
        with pytest.raises(UsageError, match=r"^taken$"), exclusive_lock(path, "taken"):
            pass
        with pytest.raises(UsageError, match=r"^taken$"):
            assert_unlocked(path, "taken")
    assert_unlocked(path, "taken")
    with shared_lock(path), shared_lock(path):
        pass
    with shared_lock(path), pytest.raises(UsageError, match=r"^still held$"):
        assert_unlocked(path, "still held")
    assert_unlocked(path, "taken")


@contextmanager
def child_of_killed_holder(path: Path, passes: bool) -> Iterator[int]:
    """Yield the ID of a process whose parent had a shared lock and was killed; `passes`: it inherited the lock."""
    program = (
        "import os, signal, subprocess, sys\n"
        "from pathlib import Path\n"
        "from podium.core.locks import shared_lock\n"
        "with shared_lock(Path(sys.argv[1])) as lock:\n"
        f"    options = dict(pass_fds=(lock,)) if {passes} else {{}}\n"
        "    child = subprocess.Popen(['sleep', '60'], stdout=subprocess.DEVNULL, **options)\n"
        "    print(child.pid, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == -signal.SIGKILL
    child = int(done.stdout)
    try:
        yield child
    finally:
        os.kill(child, signal.SIGKILL)


def test_child_that_inherited_the_descriptor_keeps_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with child_of_killed_holder(path, passes=True), pytest.raises(UsageError, match="held"):
        assert_unlocked(path, "held")
    with child_of_killed_holder(path, passes=False):
        assert_unlocked(path, "held")


def test_file_system_without_locks_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(locks.fcntl, "flock", refuse)
    with exclusive_lock(tmp_path / "lock", "taken"), shared_lock(tmp_path / "lock"):
        pass


def test_unwritable_lock_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "lock"
    message = rf"^{path}: cannot be written \(No such file or directory\); check its permissions$"
    with pytest.raises(WorkError, match=message):
        assert_unlocked(path, "taken")


def test_folder_lock_is_exclusive(tmp_path: Path) -> None:
    refused = pytest.raises(UsageError, match="another `podium tune` is using this folder")
    with folder_lock(tmp_path, "podium tune"), refused, folder_lock(tmp_path, "podium tune"):
        pass
    with folder_lock(tmp_path, "podium tune"):
        pass


def test_folder_at_the_path_of_a_lock_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(WorkError, match=rf"^{tmp_path}: cannot be written \(Is a directory\); check its permissions$"):
        assert_unlocked(tmp_path, "taken")


def test_is_locked_takes_no_lock_and_creates_no_file(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert is_locked(path) is None and not path.exists()
    with shared_lock(path):
        assert is_locked(path) is True
    assert is_locked(path) is False
    assert_unlocked(path, "taken")
