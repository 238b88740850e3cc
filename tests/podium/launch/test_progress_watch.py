"""Detection of stopped processes: the message, no process is left, and no healthy process is ended.

Ranks are small processes in new sessions, like those of torchrun, that write heartbeats.
"""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from podium.config.run_folder import RunFolder
from podium.config.schema import RunConfig
from podium.core import clock
from podium.core.errors import Interrupted, PodiumError, StoppedAfterSaving, WorkError
from podium.core.process_tree import STOPPED, DescendantProcesses, read_process
from podium.launch import launch as launch_module
from podium.launch.launch import launch
from podium.launch.progress_watch import (
    HEARTBEATS,
    RECORD,
    Heartbeats,
    ProgressWatch,
    make_heartbeats,
    read_heartbeats,
)

TIMEOUT = 0.4
TORCHRUN = """
import subprocess
def term(*_):
    for child in children:
        child.terminate()
    for child in children:
        child.wait()
    sys.exit(1)
signal.signal(signal.SIGTERM, term)
children = []
for rank in range({ranks}):
    own = os.environ | {{"RANK": str(rank), "LOCAL_RANK": str(rank)}}
    command = [sys.executable, "-c", {rank!r}, str(folder)]
    children.append(subprocess.Popen(command, env=own, start_new_session=True))
while any(child.poll() is None for child in children):
    if any(child.poll() for child in children):
        term()
    time.sleep(0.02)
sys.exit(max(child.returncode for child in children))
"""
# A rank that writes its process id after its first heartbeat, and ends once the file `end` exists.
RANK = """
import json, os, sys, time
from pathlib import Path
from podium.launch.progress_watch import Heartbeats
folder, rank, beats = Path(sys.argv[1]), os.environ["RANK"], Heartbeats()
count = 0
while not (folder / "end").exists():
    count += {training}
    if count:
        beats.beat(count, 7, "forward")
    if not (folder / f"rank_{{rank}}").exists():
        (folder / f"partial_{{rank}}").write_text(str(os.getpid()))
        (folder / f"partial_{{rank}}").rename(folder / f"rank_{{rank}}")
    time.sleep(0.02)
beats.close()
(folder / "summary.json").write_text('{{"reached_target": true}}')
"""


@pytest.fixture
def config(open_config: RunConfig) -> RunConfig:
    changes = {"timeout_seconds": TIMEOUT, "processes_per_node": 2}
    return open_config.model_copy(update={"launch": open_config.launch.model_copy(update=changes)})


def until(condition: Callable[[], Any], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Run:
    """Run with two fake ranks, and a callback once both train."""

    def __init__(self, config: RunConfig, folder: RunFolder) -> None:
        self.config, self.folder = config, folder
        self.torchrun = 0
        self.ranks: list[int] = []

    def started(self) -> bool:
        """Whether both ranks have begun; records their process ids."""
        files = [self.folder.path / f"rank_{rank}" for rank in range(2)]
        if all(file.exists() for file in files) and not self.ranks:
            self.ranks = [int(file.read_text()) for file in files]
            parent = read_process(self.ranks[0])
            self.torchrun = parent.parent if parent else 0
        return bool(self.ranks)

    def stop(self, *pids: int) -> None:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        until(lambda: all((one := read_process(pid)) and one.state == STOPPED for pid in pids))

    def __call__(self, then: Callable[[], None]) -> None:
        """Launch the run and call `then` once, from a tick."""
        done: list[bool] = []

        def tick() -> None:
            if self.started() and not done:
                done.append(True)
                then()

        launch(self.config, self.folder, "train", [], tick)

    def left(self) -> list[int]:
        found = [read_process(pid) for pid in (self.torchrun, *self.ranks)]
        return [process.pid for process in found if process and not process.ended]


@pytest.fixture
def run(config: RunConfig, run_folder: RunFolder, as_implementation: Any) -> Iterator[Run]:
    as_implementation(TORCHRUN.format(ranks=2, rank=RANK.format(training=1)))
    run = Run(config, run_folder)
    yield run
    left = run.left()
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert run.ranks, "the ranks have not begun"
    assert left == []


def test_all_ranks_stopped_are_named_and_killed(run: Run) -> None:
    with pytest.raises(WorkError) as caught:
        run(lambda: run.stop(*run.ranks))
    text = re.sub(r"for 0\.4\d* seconds", "for 0.4 seconds", str(caught.value))
    for rank, pid in enumerate(run.ranks):
        assert f"rank {rank} (process {pid} on " in text
    assert "in batch 7 after forward" in text
    assert (
        " have made no progress for 0.4 seconds (launch.timeout_seconds is 0.4): "
        "they are stopped (state T, as by SIGSTOP)" in text
    )


def test_one_stopped_rank_is_killed_after_twice_the_timeout(run: Run) -> None:
    with pytest.raises(WorkError, match=r"^rank 1 \(process \d+ on .*\) has made no progress for .*: it is stopped"):
        run(lambda: run.stop(run.ranks[1]))


def test_failure_reported_by_a_rank_is_kept(run: Run) -> None:
    def stop() -> None:
        run.folder.write_failure(WorkError("rank 1 sends no heartbeats"), final=False)
        run.stop(run.ranks[1])

    with pytest.raises(WorkError, match=r"^rank 1 sends no heartbeats$"):
        run(stop)


def test_stop_during_start_up_is_detected(run: Run, as_implementation: Any) -> None:
    as_implementation(TORCHRUN.format(ranks=2, rank=RANK.format(training=0)))
    with pytest.raises(WorkError, match=r"rank 0 \(process \d+ on [^,]*\), rank 1 .* have made no progress"):
        run(lambda: run.stop(*run.ranks))


def test_long_phase_without_heartbeats_is_no_stall(run: Run, as_implementation: Any) -> None:
    """Start-up, compilation or a checkpoint may take longer than the timeout."""
    as_implementation(TORCHRUN.format(ranks=2, rank=RANK.format(training=0)))
    run(lambda: threading.Timer(4 * TIMEOUT, (run.folder.path / "end").touch).start())
    assert run.folder.read_summary()


def test_stopped_torchrun_is_detected(run: Run) -> None:
    with pytest.raises(
        WorkError, match=r"^torchrun \(process \d+ on [^)]*\) has made no progress for .*: it is stopped"
    ):
        run(lambda: run.stop(run.torchrun))


def test_run_that_saves_while_torchrun_is_stopped_is_saved(run: Run) -> None:
    def stop() -> None:
        run.stop(run.torchrun)
        run.folder.write_failure(StoppedAfterSaving("saved after 32 samples"))

    with pytest.raises(StoppedAfterSaving, match=r"^saved after 32 samples$"):
        run(stop)


def test_run_that_ends_while_torchrun_is_stopped_counts(run: Run) -> None:
    def stop() -> None:
        run.stop(run.torchrun)
        (run.folder.path / "end").touch()

    run(stop)
    assert run.folder.read_summary()


@pytest.mark.parametrize("stopped", ["rank", "torchrun", "all"])
def test_interruption_leaves_no_stopped_process(run: Run, stopped: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_module, "GRACE_SECONDS", 1.0)

    def interrupt() -> None:
        chosen = {"rank": [run.ranks[1]], "torchrun": [run.torchrun], "all": [*run.ranks, run.torchrun]}[stopped]
        run.stop(*chosen)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted):
        run(interrupt)


IGNORES_SIGTERM = """
import os, signal, sys, time
from pathlib import Path
signal.signal(signal.SIGTERM, signal.SIG_IGN)
rank, folder = os.environ["RANK"], Path(sys.argv[1])
(folder / f"partial_{rank}").write_text(str(os.getpid()))
(folder / f"partial_{rank}").rename(folder / f"rank_{rank}")
while True:
    time.sleep(60)
"""


def test_ranks_that_ignore_sigterm_are_killed(
    run: Run, as_implementation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch_module, "GRACE_SECONDS", 0.3)
    as_implementation(TORCHRUN.format(ranks=2, rank=IGNORES_SIGTERM))
    with pytest.raises(Interrupted):
        run(lambda: os.kill(os.getpid(), signal.SIGTERM))


def test_ranks_of_a_killed_torchrun_are_killed(
    run: Run, as_implementation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch_module, "GRACE_SECONDS", 0.3)
    as_implementation(TORCHRUN.format(ranks=2, rank=IGNORES_SIGTERM))
    with pytest.raises(WorkError, match="torchrun was killed by SIGKILL"):
        run(lambda: os.kill(run.torchrun, signal.SIGKILL))


def test_run_that_saves_after_torchrun_was_killed_is_aborted(run: Run) -> None:
    def kill() -> None:
        run.folder.write_failure(StoppedAfterSaving("saved after 32 samples"))
        os.kill(run.torchrun, signal.SIGKILL)

    with pytest.raises(WorkError, match=r"^torchrun was killed by SIGKILL, .* \(saved after 32 samples\)$"):
        run(kill)


class Suspension:
    """Set the launcher's clock forward, as if it had been suspended for an hour."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch, self._real = monkeypatch, time.monotonic

    def __call__(self) -> None:
        self._patch.setattr(clock.time, "monotonic", lambda: self._real() + 3600)


def test_suspended_and_continued_group_is_no_stall(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher is continued first: its last check was an hour ago, and the ranks are still stopped."""
    suspension = Suspension(monkeypatch)

    def suspend() -> None:
        run.stop(*run.ranks)
        suspension()
        threading.Timer(0.2, resume).start()

    def resume() -> None:
        for pid in run.ranks:
            os.kill(pid, signal.SIGCONT)
        (run.folder.path / "end").touch()

    changed = run.config.launch.model_copy(update={"timeout_seconds": 3.0})
    run.config = run.config.model_copy(update={"launch": changed})
    run(suspend)
    assert run.folder.read_summary()


def test_clock_stands_still_while_its_process_is_stopped(tmp_path: Path) -> None:
    """Measured in another process, which reads the clock every few milliseconds."""
    script = (
        "import sys, time\nfrom podium.core.clock import AwakeClock\nawake, real = AwakeClock(0.05), time.monotonic\n"
        "begun = real()\n"
        "while real() < begun + 1.2:\n    awake.seconds(); print(flush=True); time.sleep(0.005)\n"
        "print(awake.seconds(), real() - begun)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stdout.readline()
        process.send_signal(signal.SIGSTOP)
        threading.Timer(1.3, process.send_signal, [signal.SIGCONT]).start()
        awake, passed = map(float, process.communicate(timeout=20)[0].split())
    assert passed > 1.2
    assert awake < passed - 1.0


def test_processes_not_started_by_the_launch_are_not_ended(run: Run) -> None:
    """An older child of the launcher, and a grandchild that it adopts when the process between them dies."""
    before = subprocess.Popen(["sleep", "60"])
    script = (
        "import subprocess, sys; sys.stdin.read()\n"
        "print(subprocess.Popen(['sleep', '60'], stdout=subprocess.DEVNULL).pid, flush=True)"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    orphans: list[int] = []

    def orphan() -> None:
        orphans.append(int(parent.communicate()[0]))
        os.kill(os.getpid(), signal.SIGINT)

    try:
        with pytest.raises(Interrupted):
            run(orphan)
        assert before.poll() is None
        adopted = read_process(orphans[0])
        assert adopted and adopted.state == "S" and adopted.parent == os.getpid()
    finally:
        before.kill()
        before.wait()
        for pid in orphans:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def test_orphans_are_adopted_only_during_the_run(run: Run) -> None:
    import ctypes

    from podium.core.process_tree import PR_GET_CHILD_SUBREAPER
    from podium.core.processes import prctl

    def adopts() -> int:
        answer = ctypes.c_int(-1)
        assert prctl is not None and prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(answer), 0, 0, 0) == 0
        return answer.value

    during: list[int] = []

    def record() -> None:
        during.append(adopts())
        (run.folder.path / "end").touch()

    assert adopts() == 0
    run(record)
    assert (during, adopts()) == ([1], 0)


def test_stall_is_reported_on_a_full_disk(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise WorkError("the disk is full")

    monkeypatch.setattr(RunFolder, "write_failure", full)
    with pytest.raises(PodiumError, match="have made no progress"):
        run(lambda: run.stop(*run.ranks))


def test_heartbeats_are_written_into_the_ranks_record(tmp_path: Path) -> None:
    path = tmp_path / "heartbeats"
    make_heartbeats(path, 3)
    assert read_heartbeats(path) == {}
    beats = Heartbeats({HEARTBEATS: str(path), "LOCAL_RANK": "2"})
    beats.beat(5, 7, "a phase with a name of more than 32 letters")
    (found,) = read_heartbeats(path).items()
    assert found[0] == os.getpid()
    assert (found[1].count, found[1].batch, found[1].phase) == (5, 7, "a phase with a name of more than")
    assert path.read_bytes()[: 2 * RECORD.size] == bytes(2 * RECORD.size)
    beats.close()
    beats.beat(6, 7, "late")
    assert read_heartbeats(path) == {}
    Heartbeats({}).beat(1, 1, "forward")  # a rank that no launcher watches
    Heartbeats({HEARTBEATS: str(tmp_path / "gone"), "LOCAL_RANK": "0"}).beat(1, 1, "forward")
    assert read_heartbeats(tmp_path / "gone") == {}


def test_frozen_rank_is_detected_by_its_heartbeats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A frozen process is not in state T, but sends no heartbeats and uses no processor time."""
    path, now = tmp_path / "heartbeats", [0.0]
    make_heartbeats(path, 1)
    monkeypatch.setattr(clock.time, "monotonic", lambda: now[0])
    child = subprocess.Popen(["sleep", "60"], env=os.environ | {"RANK": "0"})
    try:
        until(lambda: (found := read_process(child.pid)) and found.state == "S")
        watch = ProgressWatch(DescendantProcesses(os.getpid(), ("NONE", "none")), path, 4.0)
        checks: dict[float, Any] = {}
        for tick in range(1, 40):
            now[0] = tick / 2
            if now[0] == 8.0:  # until now it may have been in any long phase
                path.write_bytes(RECORD.pack(child.pid, 3, 12, b"backward"))
            checks[now[0]] = watch.check()
        stalled = {second: found for second, found in checks.items() if found}
        assert min(stalled) == 12.0
        assert f"rank 0 (process {child.pid} on " in stalled[12.0].message
        assert (
            "in batch 12 after backward) has made no progress for 4 seconds (launch.timeout_seconds is 4): "
            "it is in state S" in (stalled[12.0].message)
        )
        assert [process.pid for process in stalled[12.0].ranks] == [child.pid]
    finally:
        child.kill()
        child.wait()
