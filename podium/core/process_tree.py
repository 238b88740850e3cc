"""Processes as /proc shows them, and the end of all those that one command has started.

A process that leads a session of its own, or whose parent has died, is found too: by the tree below the command while
it runs, and by an environment variable that all its descendants inherit. Where there is no /proc, none is found.
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
KILL_SECONDS = 5.0  # SIGKILL takes effect at once, but for a process that waits for a device or is frozen
STOPPED, ENDED = "T", ("Z", "X")


@dataclass(frozen=True)
class ProcessState:
    """One look at a process. `pid` and `started` together never name another process."""

    pid: int
    parent: int
    state: str  # R, S, D, T and so on, as in proc(5)
    cpu_ticks: int  # user and system time of all threads
    started: int  # ticks after boot

    @property
    def identity(self) -> tuple[int, int]:
        return self.pid, self.started

    @property
    def ended(self) -> bool:
        return self.state in ENDED


def read_process(pid: int) -> ProcessState | None:
    """The process of this number; None where there is none."""
    try:
        fields = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return ProcessState(pid, int(fields[1]), fields[0], int(fields[11]) + int(fields[12]), int(fields[19]))
    except (OSError, IndexError, ValueError):
        return None


def all_processes() -> dict[int, ProcessState]:
    """All processes that /proc shows, by number."""
    try:
        names = [path.name for path in PROC.iterdir()]
    except OSError:
        return {}
    found = (read_process(int(name)) for name in names if name.isdecimal())
    return {process.pid: process for process in found if process is not None}


def descendants(pid: int, processes: Mapping[int, ProcessState]) -> list[ProcessState]:
    """The processes below one, those nearest to it first."""
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
    """The environment that a process was started with; nothing where it may not be read."""
    try:
        content = (PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return {}
    pairs = (entry.partition(b"=") for entry in content.split(b"\0") if b"=" in entry)
    return {name: value for name, _, value in pairs}


@contextmanager
def adopted_orphans() -> Iterator[None]:
    """Within the block, descendants whose parent dies become children of this process, if the kernel can do that."""
    before = ctypes.c_int(0)
    if prctl is not None:
        prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
        prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        if prctl is not None:
            prctl(PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)


class StartedProcesses:
    """A command's process and all that it has started, as long as any of them lives; and no other process."""

    def __init__(self, pid: int, mark: tuple[str, str]) -> None:
        """`mark` is a variable in the command's environment with a value that no other process has."""
        self.pid = pid
        command = read_process(pid)
        self._command = command.identity if command else None
        self._name, self._value = (os.fsencode(text) for text in mark)
        self._known: set[tuple[int, int]] = set()

    def remember(self, processes: Mapping[int, ProcessState]) -> None:
        """Note which processes are below the command now: they count as started by it when their parents are gone."""
        command = processes.get(self.pid)
        if command and command.identity == self._command:
            self._known.update(process.identity for process in descendants(self.pid, processes))

    def left(self) -> list[ProcessState]:
        """The processes that have not ended, besides the command's own."""
        processes = all_processes()
        self.remember(processes)
        ours = {pid for pid, process in processes.items() if process.identity in self._known or self._marked(pid)}
        ours |= {process.pid for pid in ours for process in descendants(pid, processes)}
        self._known.update(processes[pid].identity for pid in ours)
        return [processes[pid] for pid in sorted(ours - {self.pid, os.getpid()}) if not processes[pid].ended]

    def _marked(self, pid: int) -> bool:
        return environment_of(pid).get(self._name) == self._value

    def resume_stopped(self) -> None:
        """Continue those that are stopped, so that they can act upon a signal."""
        command = read_process(self.pid)
        for process in [*([command] if command and command.identity == self._command else []), *self.left()]:
            if process.state == STOPPED:
                send(process, signal.SIGCONT)

    def end(self, grace_seconds: float) -> list[ProcessState]:
        """End what is left of the command's descendants: by SIGTERM, after so many seconds by SIGKILL. Returns those
        that did not end even so, because they wait for a device or are frozen."""
        asked = set[tuple[int, int]]()
        deadline = time.monotonic() + grace_seconds
        while (left := self.left()) and time.monotonic() < deadline:
            for process in left:
                if process.identity not in asked:
                    send(process, signal.SIGTERM)
                    send(process, signal.SIGCONT)
                    asked.add(process.identity)
            time.sleep(POLL_SECONDS)
        deadline = time.monotonic() + KILL_SECONDS
        while left and time.monotonic() < deadline:
            for process in left:
                send(process, signal.SIGKILL)
            time.sleep(POLL_SECONDS)
            left = self.left()
        self._reap()
        return left

    def _reap(self) -> None:
        """Take note of the end of those that became children of this process."""
        for pid, started in self._known:
            process = read_process(pid)
            if process and process.identity == (pid, started) and process.ended and process.parent == os.getpid():
                with suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)


def send(process: ProcessState, number: int) -> None:
    """Send a signal to a process, unless it has ended or its number is another one's by now."""
    now = read_process(process.pid)
    if now is not None and now.identity == process.identity:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process.pid, number)
