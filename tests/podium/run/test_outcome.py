"""The words for outcomes, their exit codes, and the table of them in the documentation."""

import re

import pytest

from podium.core.paths import CODE_FOLDER
from podium.run.outcome import EXIT_CODES, MEANINGS, Outcome, finished_outcome, stopped_outcome


@pytest.mark.parametrize(
    ("reached", "target", "outcome"),
    [
        (True, 0.72, Outcome.SUCCEEDED),
        (False, 0.72, Outcome.MISSED),
        (False, None, Outcome.COMPLETED),
    ],
)
def test_finished_run(reached: bool, target: float | None, outcome: Outcome) -> None:
    assert finished_outcome(reached, target) is outcome


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        (1, Outcome.FAILED),
        (2, Outcome.FAILED),
        (0, Outcome.FAILED),
        (130, Outcome.INTERRUPTED),
        (143, Outcome.SAVED),
        (None, Outcome.FAILED),
        (float("nan"), Outcome.FAILED),
        (float("inf"), Outcome.FAILED),
        (1e300, Outcome.FAILED),
    ],
)
def test_stopped_run(code: float | None, outcome: Outcome) -> None:
    assert stopped_outcome(code) is outcome


def test_every_outcome_has_a_meaning() -> None:
    assert set(MEANINGS) == set(Outcome)


def test_the_documentation_lists_every_outcome_with_its_exit_code() -> None:
    text = (CODE_FOLDER / "docs" / "getting-started.md").read_text(encoding="utf-8")
    listed = dict(re.findall(r"^\| `([a-z ]+)` \|[^|]*\|[^|]*\| ([^|]*) \|$", text, flags=re.MULTILINE))
    assert list(listed) == list(Outcome)
    for outcome, codes in listed.items():
        expected = EXIT_CODES.get(Outcome(outcome))
        assert expected is None or codes == str(expected), outcome
