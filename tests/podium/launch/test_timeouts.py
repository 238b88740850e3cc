"""How long processes may save themselves is what the installed torchrun gives."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from podium.core.errors import UsageError
from podium.launch import timeouts
from podium.launch.timeouts import READERS, VARIABLE, asked, saving_seconds, torchrun_seconds, variable_is_known


def installed(folder: Path, knows: bool, reader: str = READERS[0]) -> Path:
    """What stands for torch's folder."""
    path = folder / reader
    path.parent.mkdir(parents=True)
    path.write_text(f'x = os.environ.get("{VARIABLE}", "30")' if knows else "timeout = 30", encoding="utf-8")
    return folder


@pytest.fixture
def torch(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = installed(tmp_path / "torch", knows=request.param)
    monkeypatch.setattr(timeouts, "_torch", lambda: folder)


@pytest.mark.parametrize("torch", [True], indirect=True)
@pytest.mark.parametrize(
    ("environment", "seconds", "saving"),
    [({}, 30, 20), (asked({}), 60, 50), ({VARIABLE: "25"}, 25, 25 * 2 / 3), (asked({VARIABLE: "300"}), 300, 290)],
)
def test_one_that_reads_the_variable_gives_what_it_says(
    torch: None, environment: dict[str, str], seconds: int, saving: float
) -> None:
    assert torchrun_seconds(environment) == seconds
    assert saving_seconds(environment) == pytest.approx(saving)


@pytest.mark.parametrize("torch", [False], indirect=True)
@pytest.mark.parametrize("environment", [{}, asked({}), {VARIABLE: "none"}])
def test_one_that_does_not_gives_half_a_minute(torch: None, environment: dict[str, str]) -> None:
    assert torchrun_seconds(environment) == 30
    assert saving_seconds(environment) == 20


@pytest.mark.parametrize("torch", [True], indirect=True)
@pytest.mark.parametrize("given", ["", "0", "-1", "1.5", "a minute"])
def test_what_is_no_number_of_seconds_is_refused(torch: None, given: str) -> None:
    with pytest.raises(UsageError, match=rf"TORCH_ELASTIC_SHUTDOWN_TIMEOUT is '{given}'; allowed are whole seconds"):
        torchrun_seconds({VARIABLE: given})


def test_where_it_is_looked_for(tmp_path: Path) -> None:
    assert all(variable_is_known(installed(tmp_path / str(n), True, reader)) for n, reader in enumerate(READERS))
    assert not variable_is_known(tmp_path / "nothing") and not variable_is_known(None)


def test_the_installed_one_is_known_for_what_it_is() -> None:
    """Its own configuration says what it makes of the variable."""
    program = (
        "from torch.distributed.launcher.api import LaunchConfig as C\n"
        "print(getattr(C(min_nodes=1, max_nodes=1, nproc_per_node=1), 'shutdown_timeout', 30))"
    )
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, env=os.environ | {VARIABLE: "77"}, capture_output=True, text=True, check=True)
    assert int(done.stdout) == torchrun_seconds({VARIABLE: "77"})
