"""Heartbeats of the ranks on one node, and the launcher's watch over them.

The watchdog of a rank notices other ranks that hang. It cannot notice that it is stopped itself, nor can torchrun. So
the launcher looks at every rank on its node. A rank that trains has not moved if neither its heartbeats nor its
processor time have; in all other phases, such as start-up, compilation and the writing of the summary, only if it is
stopped (state T). The launcher counts the time in which it was running itself: processes that were suspended together
with it are not late when all are continued.
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
from podium.core.process_tree import STOPPED, ProcessState, StartedProcesses, all_processes, environment_of

HEARTBEATS = "PODIUM_HEARTBEATS"  # environment variable with the file in which each rank of a node has a record
RECORD = struct.Struct("=qqq32s")  # process, heartbeats (0: none are due), global batch, the phase that ended last
LONGEST_INTERVAL = 5.0
MOST_NAMED = 8
PATIENCE = 2  # times the time allowed, after which a rank that stands still while others move is no longer waited for


def heartbeat_interval(timeout_seconds: float) -> float:
    """Seconds between two heartbeats, and between two looks at them."""
    return min(LONGEST_INTERVAL, timeout_seconds / 10)


def make_heartbeats(path: Path, ranks: int) -> None:
    """Make the file with its full length, so that a disk that is full later takes heartbeats all the same."""
    path.write_bytes(bytes(RECORD.size * ranks))


class Heartbeats:
    """Where this rank writes its heartbeats for the launcher; nowhere if no launcher has named a file."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._place = int(environment.get("LOCAL_RANK", "0")) * RECORD.size
        self._writing = threading.Lock()  # or a late heartbeat would go to whatever file has the number next
        self._file: int | None = None
        if path := environment.get(HEARTBEATS):
            with suppress(OSError):  # the launcher has died, and its folder with it
                self._file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)

    def beat(self, count: int, batch: int, phase: str) -> None:
        self._write(RECORD.pack(os.getpid(), count, batch, phase.encode()))

    def close(self) -> None:
        """No more heartbeats are due."""
        self._write(bytes(RECORD.size))
        with self._writing:
            if self._file is not None:
                os.close(self._file)
            self._file = None

    def _write(self, record: bytes) -> None:
        with self._writing, suppress(OSError):
            if self._file is not None:
                os.pwrite(self._file, record, self._place)


@dataclass(frozen=True)
class Heartbeat:
    """The last record of a rank."""

    count: int
    batch: int
    phase: str


def read_heartbeats(path: Path) -> dict[int, Heartbeat]:
    """The ranks from which heartbeats are due, by process."""
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
class Standstill:
    """Processes that have not moved for the time allowed, and the sentence that says so."""

    sentence: str
    torchrun: bool  # whether torchrun is one of them
    ranks: tuple[ProcessState, ...]


@dataclass
class _Seen:
    rank: str
    movement: tuple[int, int]  # processor time and heartbeats
    since: float  # by the launcher's clock


@dataclass(frozen=True)
class _Stuck:
    process: ProcessState
    named: str
    seconds: float


class ProgressWatch:
    """Looks at torchrun and at the ranks of this node, which are its children."""

    def __init__(self, started: StartedProcesses, heartbeats: Path, timeout_seconds: float) -> None:
        self._started, self._heartbeats, self._timeout = started, heartbeats, timeout_seconds
        self._interval = heartbeat_interval(timeout_seconds)
        self._clock, self._looked = AwakeClock(), 0.0
        self._ranks: dict[tuple[int, int], _Seen] = {}
        self._torchrun_moved = 0.0

    def look(self) -> Standstill | None:
        """Call it a few times a second. What has stood still for too long, if anything has."""
        now = self._clock.seconds()
        if now - self._looked < self._interval:
            return None
        self._looked = now
        processes, beats = all_processes(), read_heartbeats(self._heartbeats)
        self._started.remember(processes)
        stuck, ranks = self._stuck_ranks(processes, beats, now)
        torchrun = processes.get(self._started.pid)
        if torchrun is None or torchrun.state != STOPPED:
            self._torchrun_moved = now
        elif now - self._torchrun_moved >= self._timeout:
            named = f"torchrun (process {torchrun.pid} on {socket.gethostname()})"
            return self._standstill([_Stuck(torchrun, named, now - self._torchrun_moved), *stuck], torchrun=True)
        if len(stuck) < ranks:  # the watchdogs of the other ranks, which move, name those that hang and end
            stuck = [one for one in stuck if one.seconds >= PATIENCE * self._timeout]
        return self._standstill(stuck, torchrun=False) if stuck else None

    def _stuck_ranks(
        self, processes: Mapping[int, ProcessState], beats: Mapping[int, Heartbeat], now: float
    ) -> tuple[list[_Stuck], int]:
        """The ranks that have not moved for the time allowed, and how many ranks there are."""
        stuck, ranks = list[_Stuck](), 0
        for pid in sorted(processes):
            process, beat = processes[pid], beats.get(pid)
            if process.parent != self._started.pid or process.ended or (seen := self._seen(process, now)) is None:
                continue
            ranks += 1
            movement = (process.cpu_ticks, beat.count if beat else 0)
            if movement != seen.movement or (beat is None and process.state != STOPPED):
                seen.movement, seen.since = movement, now
            elif now - seen.since >= self._timeout:
                place = f", in batch {beat.batch} after {beat.phase}" if beat else ""
                named = f"rank {seen.rank} (process {pid} on {socket.gethostname()}{place})"
                stuck.append(_Stuck(process, named, now - seen.since))
        return stuck, ranks

    def _seen(self, process: ProcessState, now: float) -> _Seen | None:
        """What is known of a rank; None for a process that is none, or has not become one yet."""
        if process.identity not in self._ranks:
            rank = environment_of(process.pid).get(b"RANK")
            if rank is None:
                return None
            self._ranks[process.identity] = _Seen(rank.decode(errors="replace"), (-1, -1), now)
        return self._ranks[process.identity]

    def _standstill(self, stuck: Sequence[_Stuck], torchrun: bool) -> Standstill:
        more = f" and {len(stuck) - MOST_NAMED} more" if len(stuck) > MOST_NAMED else ""
        has, subject = ("has", "it is") if len(stuck) == 1 else ("have", "they are")
        stopped = sum(one.process.state == STOPPED for one in stuck)
        if stopped == len(stuck):
            why = f"{subject} stopped (state T, as by SIGSTOP)"
        elif stopped:
            why = f"{stopped} of them are stopped (state T, as by SIGSTOP)"
        else:
            states = ", ".join(sorted({one.process.state for one in stuck}))
            why = f"{subject} in state {states}, as when frozen or waiting for a device"
        seconds = min(one.seconds for one in stuck)
        sentence = (
            f"{', '.join(one.named for one in stuck[:MOST_NAMED])}{more} {has} not moved for {seconds:.3g} seconds "
            f"(launch.timeout_seconds is {self._timeout:g}): {why}; see what "
            f"stopped {'it' if len(stuck) == 1 else 'them'}, and run again"
        )
        ranks = stuck[1:] if torchrun else stuck
        return Standstill(sentence, torchrun, tuple(one.process for one in ranks))
