"""The entry point of a rank: it locks the run's folder, and writes and prints the message of a failure."""

import errno
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from implementations.pytorch import train
from podium.config.run_folder import FACTS, RunFolder, checkpoint_path, fixed_configuration, format_facts
from podium.config.schema import RunConfig
from podium.core.errors import UsageError, WorkError
from podium.core.locks import assert_unlocked

Main = Callable[[Callable[[], int]], int]


@pytest.fixture
def main(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Main:
    """(function) → the exit code of a rank that calls it instead of training."""

    def run(function: Callable[[], int]) -> int:
        monkeypatch.setattr(train, "_train", lambda *_: function())
        monkeypatch.setattr(train, "end_with_parent", lambda: None)
        monkeypatch.setattr(sys, "argv", ["train", str(tmp_path / "config.yaml"), str(tmp_path)])
        return train.main()

    return run


def fails(error: Exception) -> Callable[[], int]:
    def fail() -> int:
        raise error

    return fail


def full(path: str | None = None) -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


def test_the_folder_is_locked_while_the_rank_runs(main: Main, tmp_path: Path) -> None:
    def trains() -> int:
        with pytest.raises(UsageError, match="held"):
            assert_unlocked(RunFolder(tmp_path).lock, "held")
        return 0

    assert main(trains) == 0
    assert_unlocked(RunFolder(tmp_path).lock, "held")


@pytest.mark.parametrize(("path", "named"), [("/x/metrics", "/x/metrics"), (None, None)])
def test_a_full_disk_is_reported_from_any_write(
    main: Main, tmp_path: Path, capsys: pytest.CaptureFixture[str], path: str | None, named: str | None
) -> None:
    message = f"{named or tmp_path}: the disk is full (No space left on device); free some space on it"
    assert main(fails(full(path))) == 1
    assert str(RunFolder(tmp_path).read_failure()) == message
    assert capsys.readouterr().err == message + "\n"


def test_a_failure_that_cannot_be_written_ends_without_a_traceback(
    main: Main, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fsync(_: int) -> None:
        raise full()

    monkeypatch.setattr(os, "fsync", fsync)
    assert main(fails(UsageError("no such key"))) == 2
    assert RunFolder(tmp_path).read_failure() is None
    assert capsys.readouterr().err == "no such key\n"
    monkeypatch.setattr(sys, "stderr", Full())
    assert main(fails(WorkError("x"))) == 1


class Full(io.StringIO):
    """Standard error on a full disk."""

    def write(self, text: str) -> int:
        raise full()


def test_other_os_errors_are_not_converted(main: Main) -> None:
    with pytest.raises(PermissionError):
        main(fails(PermissionError(errno.EACCES, "no")))


def test_a_checkpoint_of_another_configuration_is_an_error_before_files_change(
    tmp_path: Path, make_config: Callable[..., RunConfig]
) -> None:
    """In a run that has begun before, resumed by a user or restarted by torchrun."""
    folder, config = RunFolder(tmp_path), make_config()
    folder.metrics.write_text("0123456789", encoding="utf-8")
    path = checkpoint_path(folder.checkpoints, 1)
    path.mkdir(parents=True)
    (path / FACTS).write_text(format_facts(1, 16, 0, 4, "", fixed_configuration(config), {}), encoding="utf-8")
    with pytest.raises(UsageError, match="seed is 77 and was "):
        train._open_log(config.model_copy(update={"seed": 77}), folder, False)
    assert folder.metrics.read_text(encoding="utf-8") == "0123456789" and not folder.restarts
    log, checkpoint = train._open_log(config, folder, False)
    log.close()
    assert checkpoint and checkpoint.batches == 1
    assert folder.metrics.read_text(encoding="utf-8") == "0123" and folder.restarts == 1
