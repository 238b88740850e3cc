"""Errors that are reported to the user without a traceback, each with an exit code.

Each message names the file, the key, what was found, what is allowed and what to do. The entry point of a process
catches them, prints the message and exits with the exit code. All other exceptions are defects of the program.

Exit codes, the same for all commands: 0 done, 1 WorkError, 2 UsageError; 130 after Ctrl-C and 143 after another stop
signal, whether or not a checkpoint was saved.
"""

import signal
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

EXIT_CODES = (0, 1, 2, 130, 143)
KEYBOARD_SIGNALS = (signal.SIGINT, signal.SIGQUIT)  # Ctrl-C and Ctrl-\; the others are sent by programs
_last_stop_signal: list[int] = []


def stop_exit_code(number: int | None) -> int:
    """The exit code after a stop signal: 130 for one from the keyboard, else 143, also for a closed terminal."""
    return 130 if number in KEYBOARD_SIGNALS else 143


def record_stop_signal(number: int) -> None:
    """Record the signal that stops this process; later errors have its exit code. For signal handlers."""
    _last_stop_signal[:] = [number]


def clear_stop_signal() -> None:
    """Forget the recorded signal, at the start of a command, or where a stop has no effect on what is done."""
    _last_stop_signal.clear()
    _last_raised.clear()


def recorded_exit_code(default: int) -> int:
    """The exit code of the recorded signal; `default` if this process got none, such as if only its children did."""
    return stop_exit_code(_last_stop_signal[0]) if _last_stop_signal else default


class PodiumError(Exception):
    """Base class of failures that are reported to the user as one message."""

    exit_code = 1
    run_folder: Path | None = None  # of the run that failed, where it had begun


class WorkError(PodiumError):
    """The work failed: a corrupt shard, a full disk, a rank that died."""

    exit_code = 1


class StoppedAfterSaving(PodiumError):
    """The run was stopped by a signal (SIGTERM, Ctrl-C) after it saved a checkpoint, from which it can be resumed.

    A rank ends with exit code 143, since it is stopped by SIGTERM; `podium run` ends with the code of its signal.
    """

    exit_code = 143  # 128 + SIGTERM

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.exit_code = recorded_exit_code(default=143)


class UsageError(PodiumError, ValueError):
    """The request is invalid: an unknown system, a key that does not exist, a missing file."""

    exit_code = 2


class Interrupted(BaseException):
    """Podium was interrupted by the user or a scheduler.

    A signal handler raises it at any point. Like KeyboardInterrupt it is not an Exception, so that code which handles
    failures and continues does not catch it.
    """

    run_folder: Path | None = None  # of the run that was interrupted, where it had begun

    def __init__(self, message: str = "interrupted") -> None:
        super().__init__(message)
        self.exit_code = recorded_exit_code(default=130)


_last_raised: list["weakref.ref[Interrupted]"] = []


def raise_interrupted() -> NoReturn:
    """Raise Interrupted, for signal handlers, such that `interruption_is_lost` can detect that it was discarded."""
    error = Interrupted()
    _last_raised[:] = [weakref.ref(error)]
    try:
        raise error
    finally:
        del error  # else the traceback's reference to this frame would keep a discarded exception alive


def interruption_is_lost() -> bool:
    """Whether code that ignores all exceptions, such as an optional import, has discarded the last Interrupted.

    As long as that propagates or is handled, something refers to it.
    """
    return bool(_last_raised) and _last_raised[0]() is None


def raise_if_stopped() -> None:
    """Raise Interrupted if a signal handler has raised it before, which was lost then. Before work is started."""
    if _last_raised:
        raise_interrupted()


def attempt(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> tuple[T | None, PodiumError | None]:
    """Call `work` and return (result, None), or (None, error) if it raises a PodiumError."""
    try:
        return work(*args, **kwargs), None
    except PodiumError as error:
        return None, error
