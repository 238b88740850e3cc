"""Restart of a run in its folder."""

import json
from pathlib import Path

import pytest

from podium.config.run_folder import Checkpoint, RunFolder, checkpoint_path
from podium.core.errors import StoppedAfterSaving, UsageError, WorkError


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """The folder of a run that failed."""
    folder = RunFolder(tmp_path)
    folder.log.write_text("one\ntwo\nthree\n", encoding="utf-8")
    folder.metrics.write_text('{"samples": 1}\n{"samples": 2}\n{"sam', encoding="utf-8")
    folder.write_failure(WorkError("rank 1 hangs"), final=False)
    checkpoint_path(folder.checkpoints, 3).mkdir(parents=True)
    return folder


def checkpoint(folder: RunFolder, metrics_bytes: int = 15) -> Checkpoint:
    return Checkpoint(folder.path, 1, 16, metrics_bytes, "one\n", {})


def test_restart_resets_log_and_metrics_to_the_checkpoint(folder: RunFolder) -> None:
    assert folder.was_started and folder.restarts == 0
    folder.reset_for_restart(checkpoint(folder))
    assert folder.log.read_text(encoding="utf-8") == "one\n"
    assert folder.metrics.read_text(encoding="utf-8") == '{"samples": 1}\n'
    assert folder.read_failure() is None
    assert not list(folder.checkpoints.iterdir())
    folder.reset_for_restart(checkpoint(folder))
    assert folder.restarts == 2
    lines = (folder.path / "restarts.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["samples"] for line in lines] == [16, 16]


def test_restart_without_a_checkpoint_empties_log_and_metrics(folder: RunFolder) -> None:
    folder.reset_for_restart(None)
    assert folder.log.read_bytes() == folder.metrics.read_bytes() == b""
    assert folder.restarts == 1


def test_restart_restores_a_missing_log(folder: RunFolder) -> None:
    folder.log.unlink()
    assert folder.was_started
    folder.reset_for_restart(checkpoint(folder))
    assert folder.log.read_text(encoding="utf-8") == "one\n"


def test_metrics_shorter_than_in_the_checkpoint_are_an_error(folder: RunFolder) -> None:
    with pytest.raises(WorkError, match=r"metrics\.jsonl: has 35 bytes, but had 36 when the checkpoint .* was written"):
        folder.reset_for_restart(checkpoint(folder, metrics_bytes=36))


def test_new_folder_was_not_started(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert not folder.was_started
    folder.output.touch()
    folder.config.touch()
    assert not folder.was_started


@pytest.mark.parametrize("kind", [UsageError, WorkError, StoppedAfterSaving])
def test_failure_is_read_back_with_its_class(tmp_path: Path, kind: type[WorkError]) -> None:
    folder = RunFolder(tmp_path)
    folder.write_failure(kind("a message"))
    for failure in (folder.read_failure(), folder.read_failure(final_only=True)):
        assert type(failure) is kind and str(failure) == "a message"
    folder.write_failure(kind("a message"), final=False)
    assert folder.read_failure() is not None and folder.read_failure(final_only=True) is None
    folder.clear_failure()
    folder.clear_failure()
    assert folder.read_failure() is None


def test_run_marked_as_resumed_counts_as_restarted(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.mark_resumed()
    assert folder.was_started and folder.was_restarted and folder.restarts == 0
