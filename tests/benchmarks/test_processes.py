"""Processes end with the one that started them."""

import os
import signal
import subprocess
import sys
import time

import pytest

from podium.config.loading import ROOT

PARENT = """
import subprocess, sys, time
child = "import time; from benchmarks.processes import end_with_parent; {end}; print(1, flush=True); time.sleep(30)"
process = subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE, start_new_session=True)
assert process.stdout.readline()
print(process.pid, flush=True)
time.sleep(30)
"""


def is_running(pid: int) -> bool:
    """Running, and not one that has ended and that nobody has asked for (a zombie)."""
    found = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return found.stdout.strip()[:1] not in ("", "Z")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has prctl")
@pytest.mark.parametrize("ends", [True, False])
def test_a_child_ends_when_its_parent_is_killed(ends: bool) -> None:
    """And one that has not asked for it goes on, so that it is this that ends it."""
    code = PARENT.format(end="end_with_parent()" if ends else "pass")
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert parent.stdout
    grandchild = int(parent.stdout.readline())
    try:
        assert is_running(grandchild)
        parent.kill()
        parent.wait()
        parent.stdout.close()
        deadline = time.monotonic() + (5 if ends else 0.3)
        while is_running(grandchild) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert is_running(grandchild) is not ends
    finally:
        if is_running(grandchild):
            os.kill(grandchild, signal.SIGKILL)


def test_a_child_whose_parent_has_died_already_ends_at_once() -> None:
    code = "import os; from benchmarks.processes import end_with_parent; end_with_parent({}); print('goes on')"
    for parent, output in (("os.getppid()", "goes on\n"), ("os.getppid() + 1", "")):
        done = subprocess.run(
            [sys.executable, "-c", code.format(parent)], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert (done.stdout, done.returncode) == (output, 0 if output else 1)
