"""The journal of a search, damaged or of another: a sentence, and no trial is trusted that lacks its figures."""

import errno
import json
import os
import resource
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


@pytest.mark.parametrize("room", [0, 40])
def test_a_journal_that_the_disk_does_not_take_stays_readable(tmp_path: Path, space: SearchSpace, room: int) -> None:
    """A limit on the size of files lets through the first bytes of a line, as a disk does that is full after them."""
    study = open_study(tmp_path, space)
    study.ask(fixed_distributions=space.distributions())
    before = (tmp_path / JOURNAL).read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + room, hard))
    try:
        with pytest.raises(WorkError, match=r"journal\.log: cannot be written \(File too large\)") as caught:
            study.ask(fixed_distributions=space.distributions())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.exit_code == 1
    assert (tmp_path / JOURNAL).read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == [JOURNAL], "it is not locked any more"
    study.ask(fixed_distributions=space.distributions())  # there is room again
    assert len(open_study(tmp_path, space).get_trials()) == 2


@pytest.mark.parametrize("what", ["opened", "made"])
def test_a_disk_that_is_full_is_called_that(
    tmp_path: Path, space: SearchSpace, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if what == "opened":
        open_study(tmp_path, space)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        WorkError, match=r"journal\.log: the disk is full \(No space left on device\); free some space on it"
    ):
        open_study(tmp_path, space).ask()
