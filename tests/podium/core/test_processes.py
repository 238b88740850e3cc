"""The process pool leaves no process and no partial file after a failure, and child processes end with their parent."""

import multiprocessing
import os
import pty
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from podium.core.files import write_atomically
from podium.core.paths import CODE_FOLDER
from podium.core.processes import STOP_SIGNALS, WorkerDied, run_jobs, run_jobs_in_processes, starting_workers


@pytest.mark.parametrize("processes", [1, 2, 9])
def test_each_job_runs_once(tmp_path: Path, processes: int) -> None:
    jobs = {tmp_path / str(number): (tmp_path / str(number), str(number)) for number in range(5)}
    finished = dict(run_jobs(write_atomically, jobs, processes))
    assert sorted(finished) == sorted(jobs) == sorted(tmp_path.iterdir())
    assert [file.read_text() for file in jobs] == ["0", "1", "2", "3", "4"]
    assert multiprocessing.active_children() == []


def test_each_result_comes_with_its_file(tmp_path: Path) -> None:
    jobs = {tmp_path / str(number): (2, number) for number in range(5)}
    assert dict(run_jobs_in_processes(pow, jobs, 2)) == {tmp_path / str(number): 2**number for number in range(5)}


def test_no_jobs_start_no_process() -> None:
    assert list(run_jobs_in_processes(os.abort, {}, 3)) == []


def test_exception_of_a_job_is_raised(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        list(run_jobs_in_processes(int, {tmp_path / "a": ("1",), tmp_path / "b": ("x",)}, 1))
    assert multiprocessing.active_children() == []


def test_dead_worker_is_reported_with_its_file(tmp_path: Path) -> None:
    good, bad, never = tmp_path / "good", tmp_path / "bad", tmp_path / "never"
    half, other = tmp_path / ".bad.0123abcd.partial", tmp_path / ".other.0123abcd.partial"
    half.touch()
    other.touch()
    finished = []
    with pytest.raises(WorkerDied, match=r"bad: the worker process that made it died; .* enough memory") as caught:
        jobs = {good: (0,), bad: (signal.SIGKILL,), never: (0,)}
        for file, _ in run_jobs_in_processes(signal.raise_signal, jobs, 1):
            finished.append(file)
    assert (caught.value.file, caught.value.exit_code, finished) == (bad, 1, [good])
    assert list(tmp_path.iterdir()) == [other]
    assert multiprocessing.active_children() == []


def test_closing_the_generator_terminates_workers(tmp_path: Path) -> None:
    start = time.monotonic()
    with closing(run_jobs_in_processes(time.sleep, {tmp_path / "a": (0,), tmp_path / "b": (60,)}, 2)) as finished:
        assert next(finished) == (tmp_path / "a", None)
    assert time.monotonic() - start < 30
    assert multiprocessing.active_children() == []


def test_unrelated_child_processes_are_not_terminated(tmp_path: Path) -> None:
    other = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,))
    other.start()
    try:
        with closing(run_jobs_in_processes(time.sleep, {tmp_path / "a": (0,), tmp_path / "b": (60,)}, 1)) as finished:
            assert next(finished) == (tmp_path / "a", None)
        assert other.is_alive()
    finally:
        other.kill()
        other.join()


PARENT = """
import subprocess, sys, time
child = "import time; from podium.core.processes import end_with_parent; {end}; print(1, flush=True); time.sleep(30)"
process = subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE, start_new_session=True)
assert process.stdout.readline()
print(process.pid, flush=True)
time.sleep(30)
"""


def is_running(pid: int) -> bool:
    """Whether the process is running: it exists and is not a zombie."""
    found = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return found.stdout.strip()[:1] not in ("", "Z")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has prctl")
@pytest.mark.parametrize("ends", [True, False])
def test_child_ends_when_its_parent_is_killed(ends: bool) -> None:
    """Control: a child without `end_with_parent` keeps running."""
    code = PARENT.format(end="end_with_parent()" if ends else "pass")
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=CODE_FOLDER, stdout=subprocess.PIPE, text=True)
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


POOL = """
import os, time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from podium.core.processes import watch_parent
if __name__ == "__main__":
    pool = ProcessPoolExecutor(1, get_context("forkserver"), watch_parent)
    print(pool.submit(os.getpid).result(), flush=True)
    time.sleep(30)
"""


def test_worker_of_a_fork_server_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    (tmp_path / "pool.py").write_text(POOL, encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(CODE_FOLDER)}
    with subprocess.Popen([sys.executable, tmp_path / "pool.py"], env=environment, stdout=subprocess.PIPE) as parent:
        assert parent.stdout
        worker = int(parent.stdout.readline())
        assert is_running(worker)
        parent.kill()
        deadline = time.monotonic() + 20
        while is_running(worker):
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_child_of_a_dead_parent_ends_at_once() -> None:
    code = "import os; from podium.core.processes import end_with_parent; end_with_parent({}); print('running')"
    for parent, output in (("os.getppid()", "running\n"), ("os.getppid() + 1", "")):
        done = subprocess.run(
            [sys.executable, "-c", code.format(parent)], cwd=CODE_FOLDER, capture_output=True, text=True, check=False
        )
        assert (done.stdout, done.returncode) == (output, 0 if output else 1)


CLOSED = """\
import os, signal, sys, time
from podium.core.processes import discard_closed_terminal_output
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
open(sys.argv[1], "w").close()
signal.sigwait({signal.SIGHUP})
discard_closed_terminal_output()
print("discarded", flush=True)
print("discarded", file=sys.stderr, flush=True)
open(sys.argv[1], "w").write("kept")
"""


def test_output_to_a_closed_terminal_is_discarded(tmp_path: Path) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", CLOSED, str(tmp_path / "kept")])
    while not (tmp_path / "kept").exists() and os.waitpid(pid, os.WNOHANG) == (0, 0):
        time.sleep(0.02)
    os.close(terminal)
    assert os.waitpid(pid, 0)[1] == 0
    assert (tmp_path / "kept").read_text(encoding="utf-8") == "kept"


def test_no_worker_of_a_pool_receives_a_stop_signal() -> None:
    """From its first instruction on: the mask is inherited, and the caller's is as before."""
    code = (
        "import signal, subprocess\n"
        "from multiprocessing import resource_tracker\n"
        "from podium.core.processes import starting_workers\n"
        "with starting_workers():\n"
        "    worker = subprocess.Popen(['sleep', '30'])\n"
        "for pid in resource_tracker._resource_tracker._pid, worker.pid:\n"
        "    print(open(f'/proc/{pid}/status').read())\n"
        "worker.kill()\n"
        "assert not signal.pthread_sigmask(signal.SIG_BLOCK, [])\n"
    )
    status = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    tracker, worker = (int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigBlk"))
    assert tracker & 1 << signal.SIGHUP - 1 and tracker & 1 << signal.SIGQUIT - 1
    assert all(worker & 1 << number - 1 for number in STOP_SIGNALS)


def test_a_stop_while_workers_start_is_handled_afterwards() -> None:
    received = list[str]()
    before = signal.signal(signal.SIGTERM, lambda *_: received.append("handled"))
    try:
        with starting_workers():
            signal.raise_signal(signal.SIGTERM)
            assert received == []
        assert received == ["handled"]
        signal.raise_signal(signal.SIGTERM)
        assert len(received) == 2
    finally:
        signal.signal(signal.SIGTERM, before)
