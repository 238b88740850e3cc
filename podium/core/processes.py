"""Number of available CPUs, stop signals, child processes that end with their parent, and a process pool for files.

The pool's workers do not outlive the process that started them and leave no half-written file.
"""

import ctypes
import multiprocessing
import os
import signal
import stat
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, TypeVar

from podium.core.errors import WorkError
from podium.core.files import remove_partial_files

PR_SET_PDEATHSIG = 1  # <sys/prctl.h>
# Sent by a user, a closing terminal or a scheduler to stop a program.
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)

prctl = getattr(ctypes.CDLL(None), "prctl", None)


def processors() -> int:
    """Number of logical CPUs that this process may use (its affinity mask)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def stop_signals() -> list[signal.Signals]:
    """Return STOP_SIGNALS, without SIGHUP in a process that ignores it, as under nohup."""
    ignores = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [number for number in STOP_SIGNALS if not (ignores and number == signal.SIGHUP)]


def discard_closed_terminal_output() -> None:
    """Redirect standard output and standard error to /dev/null if their terminal has been closed.

    Writing to a closed terminal raises OSError, which would end the program before it has saved its work.
    """
    for descriptor in (1, 2):
        with suppress(OSError):
            # A closed terminal is still a character device, but isatty fails on it.
            if stat.S_ISCHR(os.fstat(descriptor).st_mode) and not os.isatty(descriptor):
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, descriptor)
                os.close(null)


def watch_parent() -> None:
    """In a worker of multiprocessing, end this process when the one that started it has died.

    Unlike `end_with_parent` it works where a fork server is in between, which lives as long as its workers.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end, daemon=True).start()


def end_with_parent(parent: int | None = None) -> None:
    """Have the kernel send SIGTERM to this process when its parent dies; exit at once if `parent` has died already."""
    if prctl is not None:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    # After prctl, which has no effect for a parent that died before it.
    if parent is not None and os.getppid() != parent:
        os._exit(1)


R = TypeVar("R")


class WorkerDied(WorkError):
    """A worker process was killed, or crashed, while it was writing a file."""

    def __init__(self, file: Path) -> None:
        super().__init__(
            f"{file}: the worker process that made it died; check that the machine has enough memory, or use fewer "
            "processes"
        )
        self.file = file


def run_jobs(
    function: Callable[..., R], jobs: Mapping[Path, tuple[Any, ...]], processes: int
) -> Generator[tuple[Path, R], None, None]:
    """As `run_jobs_in_processes`, but in this process if one process suffices."""
    if min(processes, len(jobs)) > 1:
        yield from run_jobs_in_processes(function, jobs, processes)
    else:
        for file, arguments in jobs.items():
            yield file, function(*arguments)


def run_jobs_in_processes(
    function: Callable[..., R], jobs: Mapping[Path, tuple[Any, ...]], processes: int
) -> Generator[tuple[Path, R], None, None]:
    """Call function(*arguments) for each job (output file → arguments); yield (file, result) in order of completion.

    At most `processes` calls run at a time, each in a separate process. Function and arguments have to be picklable.
    An exception of a call is raised here, and WorkerDied if its process died. Then, and when the generator is closed,
    no further job is started, the workers are killed, and partial files are removed. Close the generator if you
    may leave it early (contextlib.closing).
    """
    # One pool of one worker each, instead of one pool of all: a crash breaks a whole pool, and with several workers it
    # would not be known which job caused it.
    waiting = iter(jobs.items())
    running: dict[Future[R], tuple[Path, ProcessPoolExecutor]] = {}
    pools: list[ProcessPoolExecutor] = []

    def start_next(pool: ProcessPoolExecutor) -> None:
        for file, arguments in waiting:
            try:
                with starting_workers():
                    running[pool.submit(function, *arguments)] = (file, pool)
            except BrokenProcessPool as error:
                raise WorkerDied(file) from error
            break

    with ExitStack() as stack:
        try:
            with killing_workers():
                for _ in range(min(processes, len(jobs))):
                    pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), watch_parent)
                    pools.append(stack.enter_context(pool))
                    start_next(pool)
                while running:
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        file, pool = running.pop(future)
                        try:
                            result = future.result()
                        except BrokenProcessPool as error:
                            raise WorkerDied(file) from error
                        start_next(pool)
                        yield file, result
        except BaseException:
            for pool in pools:
                pool.shutdown(cancel_futures=True)
            for file in jobs:
                remove_partial_files(file)
            raise


@contextmanager
def starting_workers() -> Iterator[None]:
    """Start pool workers in the block, so that a stop signal ends them all without a traceback and leaves none behind.

    The workers never receive a stop signal, which may go to the whole process group: their parent kills them, and
    `watch_parent` ends them if it is killed. Ignoring signals after their start would be too late, while Python
    imports. In this process stop signals are handled at the end of the block, since a worker that was half started
    would never be ended.
    """
    received = list[int]()
    handled = STOP_SIGNALS if threading.current_thread() is threading.main_thread() else ()
    handlers = {number: handler for number in handled if callable(handler := signal.getsignal(number))}
    for number in handlers:
        signal.signal(number, lambda number, _: received.append(number))
    # multiprocessing's resource tracker outlives the workers, and starting it unblocks signals in this thread.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP, signal.SIGQUIT})
    try:
        resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if received:
            signal.raise_signal(received[0])


@contextmanager
def killing_workers() -> Iterator[None]:
    """Kill the child processes that were started in the block, if an exception leaves it (GeneratorExit too)."""
    others = set(multiprocessing.active_children())
    try:
        yield
    except BaseException:
        for worker in set(multiprocessing.active_children()) - others:
            worker.kill()
        raise
