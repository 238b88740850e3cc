"""Processes as /proc lists them, and termination of all descendants of one command.

A descendant in a separate session, or whose parent has died, is found too: by the process tree while the command runs,
and by an environment variable that all descendants inherit. Without /proc no process is found.
"""

import ctypes
import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from podium.core.processes import prctl

PROC = Path("/proc")
PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER = 36, 37  # <sys/prctl.h>
POLL_SECONDS = 0.02
KILL_SECONDS = 5.0  # SIGKILL takes effect at once, except on a process in uninterruptible sleep or a frozen cgroup
STOPPED, ENDED = "T", ("Z", "X")


@dataclass(frozen=True)
class ProcessState:
    """Snapshot of a process. `pid` and `started` together identify it, since the kernel reuses process IDs."""

    pid: int
    parent: int
    state: str  # R, S, D, T and so on, as in proc(5)
    cpu_ticks: int  # user and system time of all threads
    started: int  # ticks after boot

    @property
    def identity(self) -> tuple[int, int]:
        """(pid, start time in ticks after boot)."""
        return self.pid, self.started

    @property
    def ended(self) -> bool:
        return self.state in ENDED


def read_process(pid: int) -> ProcessState | None:
    """Read the state of a process from /proc/PID/stat; None if there is no such process."""
    try:
        # The command name is in parentheses and may itself contain spaces and parentheses: split after the last one.
        fields = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return ProcessState(pid, int(fields[1]), fields[0], int(fields[11]) + int(fields[12]), int(fields[19]))
    except (OSError, IndexError, ValueError):
        return None


def all_processes() -> dict[int, ProcessState]:
    """All processes in /proc, by process ID."""
    try:
        names = [path.name for path in PROC.iterdir()]
    except OSError:
        return {}
    found = (read_process(int(name)) for name in names if name.isdecimal())
    return {process.pid: process for process in found if process is not None}


def descendants(pid: int, processes: Mapping[int, ProcessState]) -> list[ProcessState]:
    """All descendants of a process, in breadth-first order."""
    children: dict[int, list[ProcessState]] = {}
    for process in processes.values():
        children.setdefault(process.parent, []).append(process)
    found, parents = list[ProcessState](), [pid]
    while parents:
        level = [child for parent in parents for child in children.pop(parent, [])]
        found += level
        parents = [child.pid for child in level]
    return found


def environment_of(pid: int) -> dict[bytes, bytes]:
    """The environment that a process was started with; empty if it cannot be read."""
    try:
        content = (PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return {}
    pairs = (entry.partition(b"=") for entry in content.split(b"\0") if b"=" in entry)
    return {name: value for name, _, value in pairs}


@contextmanager
def adopted_orphans() -> Iterator[None]:
    """Within the block, make this process the reaper of orphaned descendants (PR_SET_CHILD_SUBREAPER), if supported."""
    before = ctypes.c_int(0)
    if prctl is not None:
        prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
        prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        if prctl is not None:
            prctl(PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)


class DescendantProcesses:
    """The process of a command and all its descendants, tracked across dead parents and separate sessions."""

    def __init__(self, pid: int, mark: tuple[str, str]) -> None:
        """`mark`: name and value of an environment variable that only this command and its descendants have."""
        self.pid = pid
        command = read_process(pid)
        self._command = command.identity if command else None
        self._name, self._value = (os.fsencode(text) for text in mark)
        self._known: set[tuple[int, int]] = set()

    def record_descendants(self, processes: Mapping[int, ProcessState]) -> None:
        """Record the current descendants of the command, so that they are known after their parents have died."""
        command = processes.get(self.pid)
        if command and command.identity == self._command:
            self._known.update(process.identity for process in descendants(self.pid, processes))

    def remaining(self) -> list[ProcessState]:
        """The descendants that are still running, without the command's own process."""
        processes = all_processes()
        self.record_descendants(processes)
        started = {pid for pid, process in processes.items() if process.identity in self._known or self._has_mark(pid)}
        started |= {process.pid for pid in started for process in descendants(pid, processes)}
        self._known.update(processes[pid].identity for pid in started)
        return [processes[pid] for pid in sorted(started - {self.pid, os.getpid()}) if not processes[pid].ended]

    def _has_mark(self, pid: int) -> bool:
        return environment_of(pid).get(self._name) == self._value

    def resume_stopped(self) -> None:
        """Send SIGCONT to stopped processes, so that they can handle a signal."""
        command = read_process(self.pid)
        for process in [*([command] if command and command.identity == self._command else []), *self.remaining()]:
            if process.state == STOPPED:
                send_signal(process, signal.SIGCONT)

    def end(self, grace_seconds: float) -> list[ProcessState]:
        """Terminate the remaining descendants: by SIGTERM, and by SIGKILL after `grace_seconds`.

        Returns those that are still there, in uninterruptible sleep or frozen.
        """
        signalled = set[tuple[int, int]]()
        deadline = time.monotonic() + grace_seconds
        while (left := self.remaining()) and time.monotonic() < deadline:
            for process in left:
                if process.identity not in signalled:
                    send_signal(process, signal.SIGTERM)
                    send_signal(process, signal.SIGCONT)  # a stopped process handles SIGTERM only after this
                    signalled.add(process.identity)
            time.sleep(POLL_SECONDS)
        deadline = time.monotonic() + KILL_SECONDS
        while left and time.monotonic() < deadline:
            for process in left:
                send_signal(process, signal.SIGKILL)
            time.sleep(POLL_SECONDS)
            left = self.remaining()
        self._reap()
        return left

    def _reap(self) -> None:
        """Reap zombies among the descendants that this process has adopted."""
        for pid, started in self._known:
            process = read_process(pid)
            if process and process.identity == (pid, started) and process.ended and process.parent == os.getpid():
                with suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)


def send_signal(process: ProcessState, number: int) -> None:
    """Send a signal to a process, unless it has ended or its process ID was reused."""
    now = read_process(process.pid)
    if now is not None and now.identity == process.identity:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process.pid, number)
