"""Watchdog that names the rank that stalls all others, by heartbeats and progress, and the SIGTERM flag.

A thread of each rank writes a heartbeat into the run's store every few seconds. If a rank has made no
progress for the time allowed, its thread compares: the ranks without a heartbeat are to blame (stopped, or their
machine is down), else those that are furthest behind. It reports them and ends the process, and torchrun the others.
Each heartbeat goes to the launcher of the node too, which notices when all ranks are stopped, their threads included.

SIGTERM sets a flag instead of ending the process, which then saves a checkpoint and exits.
"""

import faulthandler
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol, Self, TypeVar

import torch.distributed as dist

from implementations.pytorch.distributed.process_group import Processes, run_store
from implementations.pytorch.phase_clock import PhaseClock
from podium.config.run_folder import RunFolder
from podium.core.clock import AwakeClock
from podium.core.errors import Saved, WorkError
from podium.launch.progress_watch import Heartbeats, heartbeat_interval
from podium.launch.timeouts import saving_seconds

MOST_NAMED = 8
STORE_TIMEOUT = timedelta(seconds=30)
Item = TypeVar("Item")


class Board(Protocol):
    """Where ranks see each other's words: the run's store, or what stands for it."""

    def set(self, key: str, value: str) -> object: ...
    def get(self, key: str) -> bytes: ...


@dataclass(frozen=True)
class Beat:
    """What a rank tells of itself."""

    count: int  # heartbeats since the process started
    laps: int  # phases that it has ended, which are the same ones on all ranks
    batch: int  # the global batch that it is in, counted from 1
    phase: str  # what it has ended last
    host: str
    pid: int


def blame(before: Sequence[Beat], after: Sequence[Beat], seconds: float) -> str | None:
    """The sentence that names who holds up the others, from two looks at all ranks; None if some rank has moved."""
    if any(one.laps != two.laps for one, two in zip(before, after, strict=True)):
        return None
    silent = [rank for rank, (one, two) in enumerate(zip(before, after, strict=True)) if one.count == two.count]
    least = min(beat.laps for beat in after)
    behind = silent or [rank for rank, beat in enumerate(after) if beat.laps == least]
    named = ", ".join(
        f"rank {rank} (process {after[rank].pid} on {after[rank].host}, in batch {after[rank].batch} "
        f"after {after[rank].phase})"
        for rank in behind[:MOST_NAMED]
    )
    more = f" and {len(behind) - MOST_NAMED} more" if len(behind) > MOST_NAMED else ""
    what = "gives no sign of life" if silent else "does not come further"
    others = len(after) - len(behind)
    waiting = f", and {others} {'rank waits' if others == 1 else 'ranks wait'} for it" if others else ""
    return (
        f"{named}{more} {what}: all have stood still for {seconds:g} seconds (launch.timeout_seconds){waiting}; "
        "see what this process was doing, or allow more time"
    )


class Watch:
    """This rank's heartbeat, and its eye on the others. Use as a context manager around training."""

    def __init__(
        self, processes: Processes, clock: PhaseClock, folder: RunFolder, timeout_seconds: float, board: Board | None
    ) -> None:
        """`board` is None for a single process, which is compared with nobody."""
        self._processes, self._clock, self._folder, self._board = processes, clock, folder, board
        self._timeout = timeout_seconds
        self._interval = heartbeat_interval(timeout_seconds)
        self._for_launcher = Heartbeats()
        self._closed = threading.Event()
        self._count, self._signs = 0, 0
        self.batch = 0  # the global batch that is being trained on, counted from 1

    def __enter__(self) -> Self:
        self._host, self._pid = socket.gethostname(), os.getpid()
        self._beat()
        if self._board is not None:
            self._processes.barrier()  # every rank can be looked at from now on
        self._thread = threading.Thread(target=self._look, name="watch", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._thread.join(timeout=1.0)  # it may be talking to a store that is gone
        self._for_launcher.close()

    def alive(self, items: Iterable[Item]) -> Iterator[Item]:
        """The items; each is a sign of life, and their end something that all ranks come to."""
        for item in items:
            self._signs += 1
            yield item
        self._clock.laps += 1

    def _beat(self) -> Beat:
        self._count += 1
        clock = self._clock
        self._for_launcher.beat(self._count, self.batch, clock.phase)
        beat = Beat(self._count, clock.laps, self.batch, clock.phase, self._host, self._pid)
        if self._board is not None:
            self._board.set(str(self._processes.rank), json.dumps(vars(beat)))
        return beat

    def _look(self) -> None:
        awake = AwakeClock(2 * self._interval)  # what is continued after it was suspended has not stood still
        moved, since = -1, awake.seconds()
        try:
            while not self._closed.wait(self._interval):
                beat = self._beat()
                if (now := beat.laps + self._signs) != moved:
                    moved, since = now, awake.seconds()
                elif awake.seconds() - since > self._timeout:
                    self._judge(moved)
                    since = awake.seconds()
        except RuntimeError:  # the store has gone, with the launcher: the run ends by itself
            return

    def _judge(self, moved: int) -> None:
        before = self._all()
        for _ in range(3):
            if self._closed.wait(self._interval):
                return
            self._beat()
        sentence = blame(before, self._all(), self._timeout)
        if sentence is None or self._clock.laps + self._signs != moved or self._closed.is_set():
            return
        self._folder.tell_failure(WorkError(sentence), final=False)
        print(f"rank {self._processes.rank}: {sentence}; this rank is at", file=sys.stderr, flush=True)
        faulthandler.dump_traceback(sys.stderr)
        os._exit(WorkError.exit_code)

    def _all(self) -> list[Beat]:
        if self._board is None:
            return [self._beat()]
        return [Beat(**json.loads(self._board.get(str(rank)))) for rank in range(self._processes.ranks)]


def join_board(processes: Processes) -> Board | None:
    """A connection of its own to the run's store; None for a single process, and where torchrun has started none."""
    store = run_store(STORE_TIMEOUT) if processes.ranks > 1 else None
    if store is None:
        return None
    board: Board = dist.PrefixStore(f"{processes.place}/watch", store)  # type: ignore[attr-defined]
    return board


class StopRequest:
    """Whether SIGTERM has come. Use as a context manager, in the main thread; a thread notices the signal.

    A process that has not left after `grace_seconds` (None: as long as torchrun allows) is ended with a message, since
    another rank may hang or have died.
    """

    def __init__(self, grace_seconds: float | None = None) -> None:
        self.asked = False
        self._grace_seconds = saving_seconds() if grace_seconds is None else grace_seconds
        self._left = threading.Event()

    def __enter__(self) -> Self:
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._handler = signal.signal(signal.SIGTERM, lambda *_: None)
        self._descriptor = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._wait, name="stop request", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._descriptor)
        signal.signal(signal.SIGTERM, self._handler)
        self._left.set()
        os.close(self._write)
        self._thread.join()
        os.close(self._read)

    def _wait(self) -> None:
        """Python writes the number of each signal that it handles into the pipe; closed, it is at its end."""
        while number := os.read(self._read, 1):
            if number[0] == signal.SIGTERM:
                self.asked = True
                if not self._left.wait(self._grace_seconds):
                    why = f"asked to stop, and not saved within {self._grace_seconds:g} seconds: gives up"
                    with suppress(OSError):
                        os.write(2, f"process {os.getpid()}: {why}\n".encode())
                    os._exit(Saved.exit_code)
                return
