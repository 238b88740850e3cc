"""Files that are held as long as any process lives that holds them."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.errors import UsageError, WorkError
from podium.config import holding
from podium.config.holding import alone_with, held_with_others, is_held, require_nobody


def test_one_alone_or_many_together(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with alone_with(path, "taken"):
        with pytest.raises(UsageError, match=r"^taken$"), alone_with(path, "taken"):
            pass
        with pytest.raises(UsageError, match=r"^taken$"):
            require_nobody(path, "taken")
    require_nobody(path, "taken")
    with held_with_others(path), held_with_others(path):
        pass
    with held_with_others(path), pytest.raises(UsageError, match=r"^still held$"):
        require_nobody(path, "still held")
    require_nobody(path, "taken")


@contextmanager
def child_of_a_holder(path: Path, passes: bool) -> Iterator[int]:
    """The process id of a process that goes on after the one was killed that holds the file and started it."""
    program = (
        "import os, signal, subprocess, sys\n"
        "from pathlib import Path\n"
        "from podium.config.holding import held_with_others\n"
        "with held_with_others(Path(sys.argv[1])) as lock:\n"
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
        require_nobody(path, "held")
    with child_of_a_holder(path, passes=False):
        require_nobody(path, "held")


def test_a_file_system_without_locks_refuses_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(holding.fcntl, "flock", refuse)
    with alone_with(tmp_path / "lock", "taken"), held_with_others(tmp_path / "lock"):
        pass


def test_what_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(
        WorkError, match=rf"^{tmp_path}: cannot be written \(Is a directory\); see who may write there$"
    ):
        require_nobody(tmp_path, "taken")


def test_whether_a_file_is_held_is_seen_without_holding_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert is_held(path) is None and not path.exists()
    with held_with_others(path):
        assert is_held(path) is True
    assert is_held(path) is False
    require_nobody(path, "taken")
