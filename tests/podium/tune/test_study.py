"""The journal of a search: damage, incomplete trials and failed writes are errors with a message."""

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
def test_damaged_journal_is_an_error(tmp_path: Path, space: SearchSpace, damage: bytes) -> None:
    open_study(tmp_path, space)
    with (tmp_path / JOURNAL).open("ab") as journal:
        journal.write(damage)
    with pytest.raises(WorkError, match=r"journal\.log: .*; remove .* to run its trials again"):
        open_study(tmp_path, space)


def test_journal_that_is_a_pipe_is_an_error(tmp_path: Path, space: SearchSpace) -> None:
    os.mkfifo(tmp_path / JOURNAL)
    with pytest.raises(WorkError, match=r"journal\.log: is not a regular file"):
        open_study(tmp_path, space)


@pytest.mark.parametrize("missing", ["reached", "samples", "accuracy", None])
def test_complete_trial_without_its_values_is_an_error(tmp_path: Path, space: SearchSpace, missing: str | None) -> None:
    study = open_study(tmp_path, space)
    trial = study.ask(fixed_distributions=space.distributions())
    for name, value in {"reached": True, "samples": 7, "accuracy": 0.7, "failure": ""}.items():
        if name != missing:
            trial.set_user_attr(name, value)
    study.tell(trial, 7.0, TrialState.COMPLETE)
    if missing is None:
        assert json.loads(open_study(tmp_path, space).trials[0].user_attrs["samples"].__repr__()) == 7
        return
    with pytest.raises(WorkError, match="a complete trial has no samples or no accuracy"):
        open_study(tmp_path, space)


@pytest.mark.parametrize("room", [0, 40])
def test_failed_write_leaves_the_journal_readable(tmp_path: Path, space: SearchSpace, room: int) -> None:
    """A limit on file sizes writes the first bytes of a line, like a disk that becomes full in the middle of it."""
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
    assert [path.name for path in tmp_path.iterdir()] == [JOURNAL], "the lock is released"
    study.ask(fixed_distributions=space.distributions())  # there is room again
    assert len(open_study(tmp_path, space).get_trials()) == 2


@pytest.mark.parametrize("what", ["opened", "made"])
def test_full_disk_is_an_error(tmp_path: Path, space: SearchSpace, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if what == "opened":
        open_study(tmp_path, space)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        WorkError, match=r"journal\.log: the disk is full \(No space left on device\); free some space on it"
    ):
        open_study(tmp_path, space).ask()
