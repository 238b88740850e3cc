"""The outcomes of a run: one word for each, which all commands, pages and JSON objects use."""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType


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
# Exit codes of the `podium run` that made the run, if they are not 1 (or 2, if a failed run's request was invalid).
EXIT_CODES: Mapping[Outcome, int] = MappingProxyType(
    {Outcome.SUCCEEDED: 0, Outcome.COMPLETED: 0, Outcome.INTERRUPTED: 130, Outcome.SAVED: 143}
)


def finished_outcome(reached_target: bool, target: float | None) -> Outcome:
    """Return the outcome of a run that has trained to its end."""
    if reached_target:
        return Outcome.SUCCEEDED
    return Outcome.COMPLETED if target is None else Outcome.MISSED


def stopped_outcome(exit_code: float | None) -> Outcome:
    """Return the outcome of a run that ended before its end with this exit code in its failure.json."""
    stopped = (outcome for outcome, code in EXIT_CODES.items() if outcome not in FINISHED and code == exit_code)
    return next(stopped, Outcome.FAILED)
