"""Files that are held as long as any process lives that holds them."""

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


def test_one_alone_or_many_together(tmp_path: Path) -> None:
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
def child_of_a_holder(path: Path, passes: bool) -> Iterator[int]:
    """The process id of a process that goes on after the one was killed that holds the file and started it."""
    program = (
        "import os, signal, subprocess, sys\n"
        "from pathlib import Path\n"
        "from podium.core.locks import folder_lock; from podium.core.locks import shared_lock\n"
        "with shared_lock(Path(sys.argv[1])) as lock:\n"
        f"    words = dict(pass_fds=(lock,)) if {passes} else {{}}\n"
        "    child = subprocess.Popen(['sleep', '60'], stdout=subprocess.DEVNULL, **words)\n"
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


def test_what_is_held_outlives_the_one_that_was_killed_in_whom_it_passed_it_on_to(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with child_of_a_holder(path, passes=True), pytest.raises(UsageError, match="held"):
        assert_unlocked(path, "held")
    with child_of_a_holder(path, passes=False):
        assert_unlocked(path, "held")


def test_a_file_system_without_locks_refuses_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(locks.fcntl, "flock", refuse)
    with exclusive_lock(tmp_path / "lock", "taken"), shared_lock(tmp_path / "lock"):
        pass


def test_what_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "lock"
    message = rf"^{path}: cannot be written \(No such file or directory\); see who may write there$"
    with pytest.raises(WorkError, match=message):
        assert_unlocked(path, "taken")


def test_a_folder_is_locked_for_one_command(tmp_path: Path) -> None:
    refused = pytest.raises(UsageError, match="another `podium tune` is at work")
    with folder_lock(tmp_path, "podium tune"), refused, folder_lock(tmp_path, "podium tune"):
        pass
    with folder_lock(tmp_path, "podium tune"):
        pass


def test_a_folder_in_the_place_of_a_lock_file_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(
        WorkError, match=rf"^{tmp_path}: cannot be written \(Is a directory\); see who may write there$"
    ):
        assert_unlocked(tmp_path, "taken")


def test_whether_a_file_is_held_is_seen_without_holding_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert is_locked(path) is None and not path.exists()
    with shared_lock(path):
        assert is_locked(path) is True
    assert is_locked(path) is False
    assert_unlocked(path, "taken")
