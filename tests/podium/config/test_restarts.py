"""A run's folder, begun again."""

import json
from pathlib import Path

import pytest

from podium.config.run_folder import Checkpoint, RunFolder, checkpoint_path
from podium.core.errors import Saved, UsageError, WorkError


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A run that broke off."""
    folder = RunFolder(tmp_path)
    folder.log.write_text("one\ntwo\nthree\n", encoding="utf-8")
    folder.metrics.write_text('{"samples": 1}\n{"samples": 2}\n{"sam', encoding="utf-8")
    folder.tell_failure(WorkError("rank 1 hangs"), final=False)
    checkpoint_path(folder.checkpoints, 3).mkdir(parents=True)
    return folder


def checkpoint(folder: RunFolder, metrics_bytes: int = 15) -> Checkpoint:
    return Checkpoint(folder.path, 1, 16, metrics_bytes, "one\n", {})


def test_log_and_metrics_are_what_they_were_in_the_checkpoint(folder: RunFolder) -> None:
    assert folder.begun and folder.restarts == 0
    folder.begin_again(checkpoint(folder))
    assert folder.log.read_text(encoding="utf-8") == "one\n"
    assert folder.metrics.read_text(encoding="utf-8") == '{"samples": 1}\n'
    assert folder.told_failure() is None
    assert not list(folder.checkpoints.iterdir())
    folder.begin_again(checkpoint(folder))
    assert folder.restarts == 2
    lines = (folder.path / "restarts.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["samples"] for line in lines] == [16, 16]


def test_without_a_checkpoint_all_is_begun_anew_and_marked(folder: RunFolder) -> None:
    folder.begin_again(None)
    assert folder.log.read_bytes() == folder.metrics.read_bytes() == b""
    assert folder.restarts == 1


def test_a_log_that_was_moved_away_comes_back(folder: RunFolder) -> None:
    folder.log.unlink()
    assert folder.begun
    folder.begin_again(checkpoint(folder))
    assert folder.log.read_text(encoding="utf-8") == "one\n"


def test_metrics_that_are_too_short_are_a_sentence(folder: RunFolder) -> None:
    with pytest.raises(WorkError, match=r"metrics\.jsonl: has 35 bytes, and the checkpoint .* had 36"):
        folder.begin_again(checkpoint(folder, metrics_bytes=36))


def test_a_fresh_folder_has_not_begun(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert not folder.begun
    folder.output.touch()
    folder.config.touch()
    assert not folder.begun


@pytest.mark.parametrize("kind", [UsageError, WorkError, Saved])
def test_a_failure_comes_back_as_what_it_was(tmp_path: Path, kind: type[WorkError]) -> None:
    folder = RunFolder(tmp_path)
    folder.tell_failure(kind("a message"))
    for told in (folder.told_failure(), folder.told_failure(final_only=True)):
        assert type(told) is kind and str(told) == "a message"
    folder.tell_failure(kind("a message"), final=False)
    assert folder.told_failure() is not None and folder.told_failure(final_only=True) is None
    folder.forget_failure()
    folder.forget_failure()
    assert folder.told_failure() is None


def test_a_resumed_run_is_begun_again_whatever_is_left_of_it(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.mark_resumed()
    assert folder.begun and folder.gone_on_with and folder.restarts == 0
