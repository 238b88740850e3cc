"""The journal of a search, damaged or of another: a sentence, and no trial is trusted that lacks its figures."""

import json
import os
from pathlib import Path

import pytest
from optuna.trial import TrialState

from podium.core.errors import WorkError
from podium.tune.space import SearchSpace
from podium.tune.study import JOURNAL, open_study
from tests.podium.tune.conftest import SPACE


@pytest.fixture
def space() -> SearchSpace:
    return SearchSpace.model_validate({"name": "mine", **SPACE})


DAMAGES = {
    "no JSON": b"x\n",
    "too deep": b"[" * 100_000 + b"\n",
    "no operation": b'{"op_code": 77, "worker_id": "1"}\n',
    "no object": b"[1]\n",
    "bytes": b"\xff\xfe\n",
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_journal_is_a_sentence(tmp_path: Path, space: SearchSpace, damage: bytes) -> None:
    open_study(tmp_path, space)
    with (tmp_path / JOURNAL).open("ab") as journal:
        journal.write(damage)
    with pytest.raises(WorkError, match=r"journal\.log: .*; remove .*, and its trials are made again"):
        open_study(tmp_path, space)


def test_a_journal_that_is_a_pipe_is_not_waited_for(tmp_path: Path, space: SearchSpace) -> None:
    os.mkfifo(tmp_path / JOURNAL)
    with pytest.raises(WorkError, match=r"journal\.log: is no file"):
        open_study(tmp_path, space)


@pytest.mark.parametrize("lacking", ["reached", "samples", "accuracy", None])
def test_a_complete_trial_has_its_figures(tmp_path: Path, space: SearchSpace, lacking: str | None) -> None:
    study = open_study(tmp_path, space)
    trial = study.ask(fixed_distributions=space.distributions())
    for name, value in {"reached": True, "samples": 7, "accuracy": 0.7, "failure": ""}.items():
        if name != lacking:
            trial.set_user_attr(name, value)
    study.tell(trial, 7.0, TrialState.COMPLETE)
    if lacking is None:
        assert json.loads(open_study(tmp_path, space).trials[0].user_attrs["samples"].__repr__()) == 7
        return
    with pytest.raises(WorkError, match="has a trial that ended without its samples or its accuracy"):
        open_study(tmp_path, space)
