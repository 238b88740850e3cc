"""Error classes, their exit codes, and `attempt`."""

import pytest

from podium.core.errors import Interrupted, PodiumError, UsageError, WorkError, attempt


def test_exit_codes_of_work_and_usage_errors_differ() -> None:
    assert (WorkError.exit_code, UsageError.exit_code) == (1, 2)
    assert WorkError("x").exit_code == 1


@pytest.mark.parametrize("kind", [WorkError, UsageError])
def test_work_and_usage_errors_are_podium_errors(kind: type[PodiumError]) -> None:
    with pytest.raises(PodiumError, match=r"^a message$"):
        raise kind("a message")


def test_attempt_does_not_catch_interruptions() -> None:
    def interrupted() -> None:
        raise Interrupted("interrupted")

    assert not issubclass(Interrupted, Exception)
    with pytest.raises(Interrupted):
        attempt(interrupted)
