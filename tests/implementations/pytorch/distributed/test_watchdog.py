"""The watchdog names the ranks that stall a run; SIGTERM sets a flag, and ends a process that does not stop."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from implementations.pytorch.distributed import watchdog
from implementations.pytorch.distributed.process_group import Processes
from implementations.pytorch.distributed.watchdog import (
    Heartbeat,
    StopRequest,
    Watchdog,
    connect_status_store,
    describe_stall,
)
from implementations.pytorch.phase_clock import PhaseClock
from podium.config.run_folder import RunFolder
from podium.launch.timeouts import VARIABLE, saving_seconds

ROOT = Path(__file__).resolve().parents[4]


def wait_until_requested(request: StopRequest) -> bool:
    deadline = time.monotonic() + 5
    while not request.requested and time.monotonic() < deadline:
        time.sleep(0.005)
    return request.requested


def test_sigterm_sets_the_flag_and_the_process_continues() -> None:
    handler, threads = signal.getsignal(signal.SIGTERM), threading.active_count()
    with StopRequest() as request:
        assert not request.requested
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        assert wait_until_requested(request)
    assert signal.getsignal(signal.SIGTERM) is handler
    assert signal.set_wakeup_fd(-1) == -1
    assert threading.active_count() == threads


def test_other_signals_do_not_set_the_flag() -> None:
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        with StopRequest() as request:
            os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(0.1)
            assert not request.requested
            os.kill(os.getpid(), signal.SIGTERM)
            assert wait_until_requested(request)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_grace_period_is_that_of_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "15")
    assert StopRequest()._grace_seconds == saving_seconds()
    monkeypatch.delenv(VARIABLE)
    assert StopRequest()._grace_seconds == saving_seconds() == 20


def test_process_blocked_in_a_library_is_ended_after_the_grace_period() -> None:
    program = (
        "import ctypes, os, signal, sys\n"
        "from implementations.pytorch.distributed.watchdog import StopRequest\n"
        "with StopRequest(grace_seconds=0.3):\n"
        "    print('ready', flush=True)\n"
        "    wait = ctypes.CDLL(None).pause\n"
        "    while True: wait()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert process.stdout and process.stdout.readline()
        begun = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 143
        assert time.monotonic() - begun > 0.25
        message = f"process {process.pid}: SIGTERM received, but not stopped within 0.3 seconds: exiting now\n"
        assert process.stderr and process.stderr.read().decode() == message
    finally:
        process.kill()


AHEAD = Heartbeat(count=9, laps=40, batch=7, phase="forward", host="node1", pid=11)


def later(beat: Heartbeat) -> Heartbeat:
    return replace(beat, count=beat.count + 3)


def test_rank_with_the_least_progress_is_named() -> None:
    behind = Heartbeat(9, 39, 7, "data_wait", "node2", 22)
    before = [AHEAD, behind, AHEAD]
    assert describe_stall(before, [later(beat) for beat in before], 90.0) == (
        "rank 1 (process 22 on node2, in batch 7 after data_wait) makes no progress: no rank has made progress for 90 "
        "seconds (launch.timeout_seconds), and 2 ranks wait for it; check what this process was doing, or increase the "
        "timeout"
    )


def test_rank_without_heartbeat_is_named_before_one_with_less_progress() -> None:
    stopped, behind = replace(AHEAD, pid=33), replace(AHEAD, laps=38)
    message = describe_stall([stopped, behind], [stopped, later(behind)], 5.0)
    assert message
    assert message.startswith("rank 0 (process 33 on node1, in batch 7 after forward) sends no heartbeat: ")
    assert "and 1 rank waits for it" in message


def test_ranks_with_equal_progress_are_named_together() -> None:
    message = describe_stall([AHEAD] * 10, [later(AHEAD)] * 10, 5.0)
    assert message and "rank 7 (" in message and "rank 8 (" not in message and "and 2 more makes no" in message
    assert "wait for it" not in message


def test_no_stall_while_any_rank_makes_progress() -> None:
    assert describe_stall([AHEAD, AHEAD], [later(AHEAD), replace(later(AHEAD), laps=41)], 5.0) is None


class DictStatusStore(dict[str, bytes]):
    def set(self, key: str, value: str) -> None:
        self[key] = value.encode()

    def get(self, key: str) -> bytes:  # type: ignore[override]
        return self[key]


@pytest.fixture
def exit_codes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    codes: list[int] = []

    monkeypatch.setattr("implementations.pytorch.distributed.watchdog.os._exit", codes.append)
    monkeypatch.setattr("implementations.pytorch.distributed.watchdog.faulthandler.dump_traceback", lambda _: None)
    yield codes


def wait_for(codes: list[int], seconds: float) -> list[int]:
    deadline = time.monotonic() + seconds
    while not codes and time.monotonic() < deadline:
        time.sleep(0.01)
    return codes


def test_stalled_rank_reports_and_ends_its_process(
    tmp_path: Path, processes: Processes, exit_codes: list[int], capfd: pytest.CaptureFixture[str]
) -> None:
    board, clock, folder = (
        DictStatusStore({"1": json.dumps(vars(AHEAD)).encode(), "collectives/1": b"null"}),
        PhaseClock(),
        RunFolder(tmp_path),
    )
    with Watchdog(Processes(0, 2, processes.device), clock, folder, 0.4, board) as watch:
        watch.batch = 5
        clock.lap("data_wait")
        assert wait_for(exit_codes, 10) == [1]
    failure = folder.read_failure()
    assert str(failure).startswith("rank 1 (process 11 on node1, in batch 7 after forward) sends no heartbeat")
    assert folder.read_failure(final_only=True) is None  # a restart may help
    assert "rank 0: rank 1 (process 11" in capfd.readouterr().err
    assert json.loads(board["0"])["batch"] == 5


def test_single_stalled_rank_is_reported(tmp_path: Path, processes: Processes, exit_codes: list[int]) -> None:
    with Watchdog(processes, PhaseClock(), RunFolder(tmp_path), 0.3, None):
        assert wait_for(exit_codes, 10) == [1]
    assert str(RunFolder(tmp_path).read_failure()).startswith("rank 0 (")


def test_rank_with_progress_is_not_ended(tmp_path: Path, processes: Processes, exit_codes: list[int]) -> None:
    clock = PhaseClock()
    with Watchdog(processes, clock, RunFolder(tmp_path), 0.3, None) as watch:
        for _ in range(8):
            time.sleep(0.1)
            clock.lap("forward")
        laps = clock.laps
        for _ in watch.track_progress(range(8)):  # batches of an evaluation, of which ranks may have unequal numbers
            time.sleep(0.1)
        assert clock.laps == laps + 1
    assert exit_codes == []
    assert not any(thread.name == "watch" for thread in threading.enumerate())


def test_lost_store_ends_only_the_watchdog_thread(
    tmp_path: Path, processes: Processes, exit_codes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    class LostStore(DictStatusStore):
        def set(self, key: str, value: str) -> None:
            if key in self:
                raise watchdog.dist.DistNetworkError("connection reset")
            super().set(key, value)

    board = LostStore({"1": json.dumps(vars(AHEAD)).encode()})
    with Watchdog(Processes(0, 2, processes.device), PhaseClock(), RunFolder(tmp_path), 0.3, board):
        time.sleep(0.3)
        assert not any(thread.name == "watch" for thread in threading.enumerate())
    assert exit_codes == []


def test_single_process_has_no_status_store(processes: Processes) -> None:
    assert connect_status_store(processes) is None
