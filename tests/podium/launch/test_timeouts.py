"""The time to save a checkpoint, from the shutdown timeout of the installed torchrun."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from podium.core.errors import UsageError
from podium.launch import timeouts
from podium.launch.timeouts import (
    READERS,
    VARIABLE,
    reads_variable,
    saving_seconds,
    shutdown_environment,
    shutdown_seconds,
)


def fake_torch(folder: Path, reads: bool, reader: str = READERS[0]) -> Path:
    """A folder in place of the installed torch's."""
    path = folder / reader
    path.parent.mkdir(parents=True)
    path.write_text(f'x = os.environ.get("{VARIABLE}", "30")' if reads else "timeout = 30", encoding="utf-8")
    return folder


@pytest.fixture
def torch(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = fake_torch(tmp_path / "torch", reads=request.param)
    monkeypatch.setattr(timeouts, "_torch", lambda: folder)


@pytest.mark.parametrize("torch", [True], indirect=True)
@pytest.mark.parametrize(
    ("environment", "seconds", "saving"),
    [
        ({}, 30, 20),
        (shutdown_environment({}), 60, 50),
        ({VARIABLE: "25"}, 25, 25 * 2 / 3),
        (shutdown_environment({VARIABLE: "300"}), 300, 290),
    ],
)
def test_torch_that_reads_the_variable_has_its_timeout(
    torch: None, environment: dict[str, str], seconds: int, saving: float
) -> None:
    assert shutdown_seconds(environment) == seconds
    assert saving_seconds(environment) == pytest.approx(saving)


@pytest.mark.parametrize("torch", [False], indirect=True)
@pytest.mark.parametrize("environment", [{}, shutdown_environment({}), {VARIABLE: "none"}])
def test_torch_that_does_not_read_the_variable_has_half_a_minute(torch: None, environment: dict[str, str]) -> None:
    assert shutdown_seconds(environment) == 30
    assert saving_seconds(environment) == 20


@pytest.mark.parametrize("torch", [True], indirect=True)
@pytest.mark.parametrize("value", ["", "0", "-1", "1.5", "a minute"])
def test_invalid_number_of_seconds_is_refused(torch: None, value: str) -> None:
    with pytest.raises(
        UsageError, match=rf"TORCH_ELASTIC_SHUTDOWN_TIMEOUT is '{value}'; use a whole number of seconds"
    ):
        shutdown_seconds({VARIABLE: value})


def test_variable_is_found_in_either_source_file(tmp_path: Path) -> None:
    assert all(reads_variable(fake_torch(tmp_path / str(n), True, reader)) for n, reader in enumerate(READERS))
    assert not reads_variable(tmp_path / "nothing") and not reads_variable(None)


def test_installed_torch_is_recognized() -> None:
    """Its LaunchConfig has the timeout that it uses."""
    program = (
        "from torch.distributed.launcher.api import LaunchConfig as C\n"
        "print(getattr(C(min_nodes=1, max_nodes=1, nproc_per_node=1), 'shutdown_timeout', 30))"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=os.environ | {VARIABLE: "77"}, capture_output=True, text=True, check=True)
    assert int(done.stdout) == shutdown_seconds({VARIABLE: "77"})
