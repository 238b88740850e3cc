"""Errors that are reported to the user without a traceback, each with an exit code.

Each message names the file, the key, what was found, what is allowed and what to do. The entry point of a process
catches them, prints the message and exits with the exit code. All other exceptions are defects of the program.
"""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class PodiumError(Exception):
    """Base class of failures that are reported to the user as one message."""

    exit_code = 1


class WorkError(PodiumError):
    """The work failed: a corrupt shard, a full disk, a rank that died."""

    exit_code = 1


class StoppedAfterSaving(PodiumError):
    """The run was stopped by a signal (SIGTERM, Ctrl-C) after it saved a checkpoint, from which it can be resumed."""

    exit_code = 143  # 128 + SIGTERM


class UsageError(PodiumError, ValueError):
    """The request is invalid: an unknown system, a key that does not exist, a missing file."""

    exit_code = 2


class Interrupted(BaseException):
    """Podium was interrupted by the user or a scheduler.

    A signal handler raises it at any point. Like KeyboardInterrupt it is not an Exception, so that code which handles
    failures and continues does not catch it.
    """

    exit_code = 130  # 128 + SIGINT


def attempt(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> tuple[T | None, PodiumError | None]:
    """Call `work` and return (result, None), or (None, error) if it raises a PodiumError."""
    try:
        return work(*args, **kwargs), None
    except PodiumError as error:
        return None, error
