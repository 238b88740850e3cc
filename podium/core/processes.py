"""Number of available processors, child processes that end with their parent, and a pool for work on many files.

The pool's workers do not outlive the process that started them and leave no half-written file.
"""

import ctypes
import multiprocessing
import os
import signal
import stat
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, suppress
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, TypeVar

from podium.core.errors import WorkError
from podium.core.files import remove_unfinished

PR_SET_PDEATHSIG = 1  # <sys/prctl.h>
# By which a user, a terminal that closes, or a scheduler asks a program to stop.
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)

prctl = getattr(ctypes.CDLL(None), "prctl", None)


def processors() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def stop_signals() -> list[signal.Signals]:
    """STOP_SIGNALS, without SIGHUP in a process that ignores it, as one that nohup started does."""
    ignores = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [number for number in STOP_SIGNALS if not (ignores and number == signal.SIGHUP)]


def leave_closed_terminal() -> None:
    """Write nowhere from now on where output or errors went to a terminal that has been closed.

    Any write to it fails, which would end a program while it still keeps what it has done.
    """
    for descriptor in (1, 2):
        with suppress(OSError):
            if stat.S_ISCHR(os.fstat(descriptor).st_mode) and not os.isatty(descriptor):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, descriptor)
                os.close(nowhere)


def end_with_parent(parent: int | None = None) -> None:
    """Have the kernel, if it can, end this process when its parent dies; at once if the process `parent` is gone."""
    if prctl is not None:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if parent is not None and os.getppid() != parent:
        os._exit(1)


R = TypeVar("R")


class WorkerDied(WorkError):
    """A worker process was killed, or crashed, while it made a file."""

    def __init__(self, file: Path) -> None:
        super().__init__(
            f"{file}: the worker process that made it died; see that the machine has enough memory, or use fewer "
            "processes"
        )
        self.file = file


def results_of(
    function: Callable[..., R], jobs: Mapping[Path, tuple[Any, ...]], processes: int
) -> Generator[tuple[Path, R], None, None]:
    """As `results_in_processes`, but in this process where there is nothing to share."""
    if min(processes, len(jobs)) > 1:
        yield from results_in_processes(function, jobs, processes)
    else:
        for file, arguments in jobs.items():
            yield file, function(*arguments)


def results_in_processes(
    function: Callable[..., R], jobs: Mapping[Path, tuple[Any, ...]], processes: int
) -> Generator[tuple[Path, R], None, None]:
    """Call function(*arguments) for every file of `jobs` that a call makes; yields (file, result) as they are finished.

    At most `processes` calls run at a time, each in a process of its own that takes one job after another, so that a
    crash is known by its file. Function and arguments have to be picklable. What a call raises is raised here, and
    WorkerDied where its process died; then, and when the generator is closed, no further job is begun, the workers
    are ended, and of no file a half-written part remains. Close the generator if you may leave it early
    (contextlib.closing).
    """
    others = set(multiprocessing.active_children())
    waiting = iter(jobs.items())
    running: dict[Future[R], tuple[Path, ProcessPoolExecutor]] = {}
    pools: list[ProcessPoolExecutor] = []

    def begin(pool: ProcessPoolExecutor) -> None:
        for file, arguments in waiting:
            try:
                running[pool.submit(function, *arguments)] = (file, pool)
            except BrokenProcessPool as error:
                raise WorkerDied(file) from error
            break

    _start_resource_tracker()
    with ExitStack() as stack:
        try:
            for _ in range(min(processes, len(jobs))):
                pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _start_worker, (os.getpid(),))
                pools.append(stack.enter_context(pool))
                begin(pool)
            while running:
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    file, pool = running.pop(future)
                    try:
                        result = future.result()
                    except BrokenProcessPool as error:
                        raise WorkerDied(file) from error
                    begin(pool)
                    yield file, result
        except BaseException:
            for worker in set(multiprocessing.active_children()) - others:
                worker.terminate()
            for pool in pools:
                pool.shutdown(cancel_futures=True)
            for file in jobs:
                remove_unfinished(file)
            raise


def _start_resource_tracker() -> None:
    """Start multiprocessing's helper so that a closed terminal, which signals all processes, does not end it first."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP, signal.SIGQUIT})
    try:
        resource_tracker.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_worker(parent: int) -> None:
    """Stopping is the parent's to answer, and a worker does not outlive it."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    end_with_parent(parent)
