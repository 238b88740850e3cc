"""The two ways in which something fails for a person, and the exit codes that tell them apart."""

import pytest

from podium.core.errors import Interrupted, PodiumError, UsageError, WorkError, attempt


def test_wrong_use_and_failed_work_have_exit_codes_of_their_own() -> None:
    assert (WorkError.exit_code, UsageError.exit_code) == (1, 2)
    assert WorkError("x").exit_code == 1


@pytest.mark.parametrize("kind", [WorkError, UsageError])
def test_both_are_caught_as_one(kind: type[PodiumError]) -> None:
    with pytest.raises(PodiumError, match=r"^a sentence$"):
        raise kind("a sentence")


def test_an_interruption_ends_what_goes_on_after_failures() -> None:
    def interrupted() -> None:
        raise Interrupted("interrupted")

    assert not issubclass(Interrupted, Exception)
    with pytest.raises(Interrupted):
        attempt(interrupted)
