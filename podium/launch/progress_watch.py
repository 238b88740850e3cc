"""Heartbeats of the ranks on one node, and the launcher's check of their progress.

The watchdog of a rank detects other ranks that hang, but neither it nor torchrun detects that its own process is
stopped. So the launcher checks every rank of its node. A training rank has stalled if neither its heartbeats nor its
processor time increase; in all other phases (start-up, compilation, writing of the summary) only if it is stopped
(state T). Time counts only while the launcher runs, so that processes that were suspended together with it have not
stalled when all are continued.
"""

import os
import socket
import struct
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from podium.core.clock import AwakeClock
from podium.core.process_tree import STOPPED, DescendantProcesses, ProcessState, all_processes, environment_of

HEARTBEATS = "PODIUM_HEARTBEATS"  # environment variable with the file in which each rank of a node has a record
RECORD = struct.Struct("=qqq32s")  # process id, number of heartbeats (0: none expected), global batch, last phase
MAX_INTERVAL_SECONDS = 5.0
MAX_LISTED = 8
# Multiple of the timeout after which a stalled rank is reported although other ranks make progress: normally their
# watchdogs report it before.
PARTIAL_STALL_FACTOR = 2


def heartbeat_interval(timeout_seconds: float) -> float:
    """Seconds between two heartbeats, and between two checks of them."""
    return min(MAX_INTERVAL_SECONDS, timeout_seconds / 10)


def make_heartbeats(path: Path, ranks: int) -> None:
    """Create the heartbeat file of a node."""
    # At its full length: heartbeats must not fail on a disk that is full later.
    path.write_bytes(bytes(RECORD.size * ranks))


class Heartbeats:
    """Writer of this rank's heartbeats into the launcher's file; without PODIUM_HEARTBEATS it writes nothing."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._offset = int(environment.get("LOCAL_RANK", "0")) * RECORD.size
        # Without the lock a late heartbeat could be written into another file that got the closed descriptor's number.
        self._writing = threading.Lock()
        self._file: int | None = None
        if path := environment.get(HEARTBEATS):
            with suppress(OSError):  # the launcher has died, and its folder was removed
                self._file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)

    def beat(self, count: int, batch: int, phase: str) -> None:
        """Write a heartbeat; `phase` is cut to 32 bytes."""
        self._write(RECORD.pack(os.getpid(), count, batch, phase.encode()))

    def close(self) -> None:
        """Stop: no more heartbeats are expected of this rank."""
        self._write(bytes(RECORD.size))
        with self._writing:
            if self._file is not None:
                os.close(self._file)
            self._file = None

    def _write(self, record: bytes) -> None:
        with self._writing, suppress(OSError):
            if self._file is not None:
                os.pwrite(self._file, record, self._offset)


@dataclass(frozen=True)
class Heartbeat:
    """Last record of a rank: number of heartbeats, global batch, and the phase that ended last."""

    count: int
    batch: int
    phase: str


def read_heartbeats(path: Path) -> dict[int, Heartbeat]:
    """Read the records of the ranks that are expected to send heartbeats, by process id."""
    try:
        content = path.read_bytes()
    except OSError:
        return {}
    whole = content[: len(content) // RECORD.size * RECORD.size]
    return {
        pid: Heartbeat(count, batch, phase.rstrip(b"\0").decode(errors="replace"))
        for pid, count, batch, phase in RECORD.iter_unpack(whole)
        if count
    }


@dataclass(frozen=True)
class Stall:
    """Processes without progress for longer than the timeout."""

    message: str
    torchrun: bool  # whether torchrun is one of them
    ranks: tuple[ProcessState, ...]  # the others


@dataclass
class _RankProgress:
    rank: str
    counters: tuple[int, int]  # processor time and heartbeats at the last progress
    since: float  # time of the last progress, by the launcher's clock


@dataclass(frozen=True)
class _StalledProcess:
    process: ProcessState
    name: str
    seconds: float


class ProgressWatch:
    """Detection of stalls of torchrun and of its children, the ranks of this node."""

    def __init__(self, started: DescendantProcesses, heartbeats: Path, timeout_seconds: float) -> None:
        self._started, self._heartbeats, self._timeout = started, heartbeats, timeout_seconds
        self._interval = heartbeat_interval(timeout_seconds)
        self._clock, self._last_check = AwakeClock(), 0.0
        self._ranks: dict[tuple[int, int], _RankProgress] = {}
        self._torchrun_progress = 0.0

    def check(self) -> Stall | None:
        """Return the processes that have stalled, or None. Cheap enough to be called a few times a second."""
        now = self._clock.seconds()
        if now - self._last_check < self._interval:
            return None
        self._last_check = now
        processes, beats = all_processes(), read_heartbeats(self._heartbeats)
        self._started.record_descendants(processes)
        stalled, ranks = self._stalled_ranks(processes, beats, now)
        torchrun = processes.get(self._started.pid)
        if torchrun is None or torchrun.state != STOPPED:
            self._torchrun_progress = now
        elif now - self._torchrun_progress >= self._timeout:
            name = f"torchrun (process {torchrun.pid} on {socket.gethostname()})"
            return self._stall(
                [_StalledProcess(torchrun, name, now - self._torchrun_progress), *stalled], torchrun=True
            )
        if len(stalled) < ranks:  # the watchdogs of the other ranks report the stalled ones, and know more of the cause
            stalled = [one for one in stalled if one.seconds >= PARTIAL_STALL_FACTOR * self._timeout]
        return self._stall(stalled, torchrun=False) if stalled else None

    def _stalled_ranks(
        self, processes: Mapping[int, ProcessState], beats: Mapping[int, Heartbeat], now: float
    ) -> tuple[list[_StalledProcess], int]:
        """The stalled ranks, and the number of all ranks of this node."""
        stalled, ranks = list[_StalledProcess](), 0
        for pid in sorted(processes):
            process, beat = processes[pid], beats.get(pid)
            if (
                process.parent != self._started.pid
                or process.ended
                or (progress := self._rank_progress(process, now)) is None
            ):
                continue
            ranks += 1
            counters = (process.cpu_ticks, beat.count if beat else 0)
            if counters != progress.counters or (beat is None and process.state != STOPPED):
                progress.counters, progress.since = counters, now
            elif now - progress.since >= self._timeout:
                where = f", in batch {beat.batch} after {beat.phase}" if beat else ""
                name = f"rank {progress.rank} (process {pid} on {socket.gethostname()}{where})"
                stalled.append(_StalledProcess(process, name, now - progress.since))
        return stalled, ranks

    def _rank_progress(self, process: ProcessState, now: float) -> _RankProgress | None:
        """Recorded progress of a rank; None for a process that is no rank, or has not executed its program yet."""
        if process.identity not in self._ranks:
            rank = environment_of(process.pid).get(b"RANK")
            if rank is None:
                return None
            self._ranks[process.identity] = _RankProgress(rank.decode(errors="replace"), (-1, -1), now)
        return self._ranks[process.identity]

    def _stall(self, stalled: Sequence[_StalledProcess], torchrun: bool) -> Stall:
        more = f" and {len(stalled) - MAX_LISTED} more" if len(stalled) > MAX_LISTED else ""
        has, subject = ("has", "it is") if len(stalled) == 1 else ("have", "they are")
        stopped = sum(one.process.state == STOPPED for one in stalled)
        if stopped == len(stalled):
            reason = f"{subject} stopped (state T, as by SIGSTOP)"
        elif stopped:
            reason = f"{stopped} of them are stopped (state T, as by SIGSTOP)"
        else:
            states = ", ".join(sorted({one.process.state for one in stalled}))
            reason = f"{subject} in state {states}, as when frozen or waiting for a device"
        seconds = min(one.seconds for one in stalled)
        message = (
            f"{', '.join(one.name for one in stalled[:MAX_LISTED])}{more} {has} made no progress for {seconds:.3g} "
            f"seconds (launch.timeout_seconds is {self._timeout:g}): {reason}; find out what "
            f"stopped {'it' if len(stalled) == 1 else 'them'}, and run again"
        )
        ranks = stalled[1:] if torchrun else stalled
        return Stall(message, torchrun, tuple(one.process for one in ranks))
