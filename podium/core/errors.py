"""Errors for the user, as opposed to defects of the program, each with an exit code.

All have one message with the file, the key, what was found, what is allowed and what to do. The top level of a
process that catches one prints the message, without a traceback, and exits with its exit code.
"""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class PodiumError(Exception):
    """A failure to be told to the user as a sentence."""

    exit_code = 1


class WorkError(PodiumError):
    """The work could not be done: a corrupt shard, a full disk, a rank that died."""

    exit_code = 1


class Saved(PodiumError):
    """The work was asked to stop (SIGTERM, Ctrl-C) and has saved itself: it can go on where it left off."""

    exit_code = 143  # 128 + SIGTERM


class UsageError(PodiumError, ValueError):
    """What was asked for is wrong: an unknown system, a key that does not exist, a missing file."""

    exit_code = 2


class Interrupted(BaseException):
    """The user or a scheduler asked Podium to stop.

    A signal handler raises it anywhere, so it is no PodiumError and, as KeyboardInterrupt, no Exception: code that goes
    on after a failure must not go on after this.
    """

    exit_code = 130  # 128 + SIGINT


def attempt(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> tuple[T | None, PodiumError | None]:
    """What the call returns, or else the failure that it raises."""
    try:
        return work(*args, **kwargs), None
    except PodiumError as error:
        return None, error
