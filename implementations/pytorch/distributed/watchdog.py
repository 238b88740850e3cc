"""Watchdog that names the rank that stalls all others, by heartbeats and progress; and the SIGTERM flag.

A thread of each rank writes a heartbeat into the run's store every few seconds. If its rank has made no progress for
launch.timeout_seconds, the thread compares the heartbeats of all ranks. Ranks without a new heartbeat have stalled the
run (the process is stopped or the machine is down); if all send heartbeats, it is the ranks with the least progress.
The thread reports them, with the last collectives of all ranks (flight_recorder.py), and ends its process, upon which
torchrun ends the others. Each heartbeat is also sent to the
node's launcher, which detects the case that all processes are stopped, watchdog threads included.

SIGTERM sets a flag instead of ending the process, which then saves a checkpoint and exits.
"""

import faulthandler
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol, Self, TypeVar

import torch.distributed as dist

from implementations.pytorch.distributed import flight_recorder
from implementations.pytorch.distributed.process_group import Processes, run_store
from implementations.pytorch.phase_clock import PhaseClock
from podium.config.run_folder import RunFolder
from podium.core.clock import AwakeClock
from podium.core.errors import StoppedAfterSaving, WorkError, attempt
from podium.launch.progress_watch import Heartbeats, heartbeat_interval
from podium.launch.timeouts import saving_seconds

MAX_NAMED_RANKS = 8
STORE_TIMEOUT = timedelta(seconds=30)
Item = TypeVar("Item")


class StatusStore(Protocol):
    """Key-value store through which ranks exchange heartbeats: the run's store, or a dictionary in tests."""

    def set(self, key: str, value: str) -> object: ...
    def get(self, key: str) -> bytes: ...


@dataclass(frozen=True)
class Heartbeat:
    """Progress of one rank, as written to the store."""

    count: int  # heartbeats since the process started
    laps: int  # completed phases; all ranks go through the same phases in the same order
    batch: int  # current global batch, counted from 1
    phase: str  # last completed phase
    host: str
    pid: int


def describe_stall(before: Sequence[Heartbeat], after: Sequence[Heartbeat], seconds: float) -> str | None:
    """Return a message that names the ranks that stall the run, or None if any rank has made progress.

    `before` and `after` are the heartbeats of all ranks, by rank, several heartbeat intervals apart.
    """
    if any(one.laps != two.laps for one, two in zip(before, after, strict=True)):
        return None
    silent = [rank for rank, (one, two) in enumerate(zip(before, after, strict=True)) if one.count == two.count]
    least = min(heartbeat.laps for heartbeat in after)
    behind = silent or [rank for rank, heartbeat in enumerate(after) if heartbeat.laps == least]
    named = ", ".join(
        f"rank {rank} (process {after[rank].pid} on {after[rank].host}, in batch {after[rank].batch} "
        f"after {after[rank].phase})"
        for rank in behind[:MAX_NAMED_RANKS]
    )
    more = f" and {len(behind) - MAX_NAMED_RANKS} more" if len(behind) > MAX_NAMED_RANKS else ""
    what = "sends no heartbeat" if silent else "makes no progress"
    others = len(after) - len(behind)
    waiting = f", and {others} {'rank waits' if others == 1 else 'ranks wait'} for it" if others else ""
    return (
        f"{named}{more} {what}: no rank has made progress for {seconds:g} seconds (launch.timeout_seconds){waiting}; "
        "check what this process was doing, or increase the timeout"
    )


class Watchdog:
    """Send this rank's heartbeats and watch those of the others. Use as a context manager around training."""

    def __init__(
        self,
        processes: Processes,
        clock: PhaseClock,
        folder: RunFolder,
        timeout_seconds: float,
        status_store: StatusStore | None,
    ) -> None:
        """`status_store` is None for a single process, which has no other rank to be compared with."""
        self._processes, self._clock, self._folder, self._status_store = processes, clock, folder, status_store
        self._timeout = timeout_seconds
        self._interval = heartbeat_interval(timeout_seconds)
        self._launcher_heartbeats = Heartbeats()
        self._closed = threading.Event()
        self._count, self._items_done = 0, 0
        self.batch = 0  # current global batch, counted from 1

    def __enter__(self) -> Self:
        self._host, self._pid = socket.gethostname(), os.getpid()
        self._send_heartbeat()
        if self._status_store is not None:
            self._status_store.set(_collectives_key(self._processes.rank), "null")
            self._processes.barrier()  # from now on the store has a heartbeat of every rank
        self._thread = threading.Thread(target=self._monitor, name="watch", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._thread.join(timeout=1.0)  # it may be blocked by a store that has gone
        self._launcher_heartbeats.close()

    def track_progress(self, items: Iterable[Item]) -> Iterator[Item]:
        """Iterate over items and count each one as progress of this rank.

        Ranks may have different numbers of items, so items do not count as laps, which are compared between ranks. The
        end of the iteration is one lap.
        """
        for item in items:
            self._items_done += 1
            yield item
        self._clock.laps += 1

    def _send_heartbeat(self) -> Heartbeat:
        self._count += 1
        clock = self._clock
        self._launcher_heartbeats.beat(self._count, self.batch, clock.phase)
        heartbeat = Heartbeat(self._count, clock.laps, self.batch, clock.phase, self._host, self._pid)
        if self._status_store is not None:
            self._status_store.set(str(self._processes.rank), json.dumps(vars(heartbeat)))
        return heartbeat

    def _monitor(self) -> None:
        # The clock excludes time in which the process was suspended: a resumed process has not stalled.
        awake = AwakeClock(2 * self._interval)
        last_progress, since = -1, awake.seconds()
        try:
            while not self._closed.wait(self._interval):
                heartbeat = self._send_heartbeat()
                if (progress := heartbeat.laps + self._items_done) != last_progress:
                    last_progress, since = progress, awake.seconds()
                elif awake.seconds() - since > self._timeout:
                    self._report_stall(last_progress)
                    since = awake.seconds()
        except RuntimeError:  # the store has gone together with the launcher, so the run is ending anyway
            return

    def _report_stall(self, last_progress: int) -> None:
        """Compare the heartbeats of all ranks; unless one of them has made progress, end this process."""
        before = self._read_heartbeats()
        for _ in range(3):
            if self._closed.wait(self._interval):
                return
            self._send_heartbeat()
        message = describe_stall(before, self._read_heartbeats(), self._timeout)
        # Progress is read again: this rank may have continued while the heartbeats were compared.
        if message is None or self._clock.laps + self._items_done != last_progress or self._closed.is_set():
            return
        # First without collectives: reading them may block where the driver of a GPU does.
        self._folder.write_failure(WorkError(message), final=False)
        if collectives := self._last_collectives():
            message += f". By PyTorch's flight recorder ({self._folder.flight_recorder}): {collectives}"
            self._folder.write_failure(WorkError(message), final=False)
        print(f"rank {self._processes.rank}: {message}; this rank is at", file=sys.stderr, flush=True)
        faulthandler.dump_traceback(sys.stderr)
        # Not sys.exit: the main thread is blocked in a collective, and a normal exit would wait for it.
        os._exit(WorkError.exit_code)

    def _last_collectives(self) -> str:
        """Write this rank's recorded collectives, and describe those of all ranks that do so at about this time."""
        own, _ = attempt(flight_recorder.dump, self._folder.flight_recorder, self._processes.rank)
        if own is None or self._status_store is None:
            return ""
        self._status_store.set(_collectives_key(self._processes.rank), json.dumps(own))
        # All ranks detect the hang within an interval or two; a rank that is stopped never does.
        deadline = time.monotonic() + 3 * self._interval
        while True:
            found = [
                json.loads(self._status_store.get(_collectives_key(rank))) for rank in range(self._processes.ranks)
            ]
            if None not in found or time.monotonic() > deadline:
                return flight_recorder.describe(found)
            time.sleep(self._interval / 10)

    def _read_heartbeats(self) -> list[Heartbeat]:
        if self._status_store is None:
            return [self._send_heartbeat()]
        return [Heartbeat(**json.loads(self._status_store.get(str(rank)))) for rank in range(self._processes.ranks)]


def _collectives_key(rank: int) -> str:
    return f"collectives/{rank}"


def connect_status_store(processes: Processes) -> StatusStore | None:
    """Open a separate connection to the run's store; None for a single process or without torchrun.

    Separate, since the watchdog thread must not wait for a connection on which the main thread is blocked.
    """
    store = run_store(STORE_TIMEOUT) if processes.ranks > 1 else None
    if store is None:
        return None
    status_store: StatusStore = dist.PrefixStore(f"{processes.store_prefix}/watch", store)  # type: ignore[attr-defined]
    return status_store


class StopRequest:
    """Whether SIGTERM has been received. Use as a context manager in the main thread.

    A process that is still inside the context `grace_seconds` after SIGTERM (None: as long as torchrun allows) is ended
    with a message, since it may wait for a rank that hangs or has died.
    """

    # Python runs signal handlers in the main thread and only between byte codes, which a blocking collective delays
    # without limit. The C-level handler however writes the signal's number into the wake-up pipe at once, and a thread
    # reads it there.

    def __init__(self, grace_seconds: float | None = None) -> None:
        self.requested = False
        self._grace_seconds = saving_seconds() if grace_seconds is None else grace_seconds
        self._left = threading.Event()

    def __enter__(self) -> Self:
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._handler = signal.signal(signal.SIGTERM, lambda *_: None)
        self._descriptor = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._wait_for_sigterm, name="stop request", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._descriptor)
        signal.signal(signal.SIGTERM, self._handler)
        self._left.set()
        os.close(self._write)
        self._thread.join()
        os.close(self._read)

    def _wait_for_sigterm(self) -> None:
        """Read signal numbers from the wake-up pipe until SIGTERM arrives or the pipe is closed."""
        while number := os.read(self._read, 1):
            if number[0] == signal.SIGTERM:
                self.requested = True
                if not self._left.wait(self._grace_seconds):
                    reason = f"SIGTERM received, but not stopped within {self._grace_seconds:g} seconds: exiting now"
                    with suppress(OSError):
                        # os.write instead of print: the main thread may hold the lock of sys.stderr.
                        os.write(2, f"process {os.getpid()}: {reason}\n".encode())
                    os._exit(StoppedAfterSaving.exit_code)
                return
