"""The outcomes of a run: one word for each, which all commands, pages and JSON objects use."""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from podium.core.errors import Interrupted, PodiumError, StoppedAfterSaving


class Outcome(StrEnum):
    """How a run ended, or where it is. The values are the words that users read, and values of JSON objects."""

    SUCCEEDED = "succeeded"
    COMPLETED = "completed"
    MISSED = "missed target"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    SAVED = "saved"
    RUNNING = "running"
    UNFINISHED = "unfinished"
    NOT_STARTED = "not started"


MEANINGS: Mapping[Outcome, str] = MappingProxyType(
    {
        Outcome.SUCCEEDED: "reached its target accuracy",
        Outcome.COMPLETED: "has no target accuracy and trained all its samples",
        Outcome.MISSED: "trained all its samples without reaching its target accuracy",
        Outcome.FAILED: "ended with an error message",
        Outcome.INTERRUPTED: "was stopped and cannot be resumed",
        Outcome.SAVED: "was stopped after a checkpoint was saved, and can be resumed",
        Outcome.RUNNING: "is in progress",
        Outcome.UNFINISHED: "has no totals: killed, or in progress on another machine",
        Outcome.NOT_STARTED: "has no step",
    }
)
FINISHED = (Outcome.SUCCEEDED, Outcome.COMPLETED, Outcome.MISSED)  # trained to their end, so that they have totals
GOOD = (Outcome.SUCCEEDED, Outcome.COMPLETED)  # those of a run that did what was asked: exit code 0


def finished_outcome(reached_target: bool, target: float | None) -> Outcome:
    """Return the outcome of a run that has trained to its end."""
    if reached_target:
        return Outcome.SUCCEEDED
    return Outcome.COMPLETED if target is None else Outcome.MISSED


def failed_outcome(error: PodiumError | Interrupted) -> Outcome:
    """Return the outcome of a run that ended with an error."""
    if isinstance(error, StoppedAfterSaving):
        return Outcome.SAVED
    return Outcome.INTERRUPTED if isinstance(error, Interrupted) else Outcome.FAILED


def stopped_outcome(stopped: object, exit_code: float | None) -> Outcome:
    """Return the outcome of a run that ended before its end, by the keys of these names in its failure.json.

    Before there was `stopped`, the exit code was 143 if a checkpoint was saved, and 130 if not.
    """
    if stopped is None:
        stopped = "interrupted" if exit_code == 130 else "saved" if exit_code == 143 else None
    return next((one for one in (Outcome.INTERRUPTED, Outcome.SAVED) if one == stopped), Outcome.FAILED)
