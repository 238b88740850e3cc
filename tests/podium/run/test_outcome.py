"""The words for outcomes, their exit codes, and the table of them in the documentation."""

import re
import signal

import pytest

from podium.core.errors import stop_exit_code
from podium.core.paths import CODE_FOLDER
from podium.run.outcome import MEANINGS, Outcome, finished_outcome, stopped_outcome


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
    ("stopped", "code", "outcome"),
    [
        (None, 1, Outcome.FAILED),
        (None, 2, Outcome.FAILED),
        (None, 0, Outcome.FAILED),
        ("interrupted", 130, Outcome.INTERRUPTED),
        ("interrupted", 143, Outcome.INTERRUPTED),
        ("saved", 130, Outcome.SAVED),
        ("saved", 143, Outcome.SAVED),
        (None, 130, Outcome.INTERRUPTED),
        (None, 143, Outcome.SAVED),
        ("succeeded", 1, Outcome.FAILED),
        ([], None, Outcome.FAILED),
        (None, float("nan"), Outcome.FAILED),
        (None, float("inf"), Outcome.FAILED),
        (None, 1e300, Outcome.FAILED),
    ],
)
def test_stopped_run(stopped: object, code: float | None, outcome: Outcome) -> None:
    assert stopped_outcome(stopped, code) is outcome


def test_every_outcome_has_a_meaning() -> None:
    assert set(MEANINGS) == set(Outcome)


def test_the_documentation_lists_every_outcome_with_its_exit_code() -> None:
    text = (CODE_FOLDER / "docs" / "getting-started.md").read_text(encoding="utf-8")
    listed = dict(re.findall(r"^\| `([a-z ]+)` \|[^|]*\|[^|]*\| ([^|]*) \|$", text, flags=re.MULTILINE))
    assert list(listed) == list(Outcome)
    codes = {word: {int(code) for code in re.findall(r"\d+", text)} for word, text in listed.items()}
    assert codes["succeeded"] == codes["completed"] == {0} and codes["missed target"] == {1}
    assert codes["interrupted"] == codes["saved"] == {stop_exit_code(signal.SIGINT), stop_exit_code(signal.SIGTERM)}
