"""A submitted job is waited for and shown; where Slurm does not take it, and on an interruption, a sentence says so."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from podium.core.paths import CODE_FOLDER
from podium.launch import container
from tests.podium.conftest import run_podium

PROGRAM = """
import sys
from pathlib import Path
from podium.cli import main as cli
from podium.launch import container as job
job.WORKING_FOLDER = Path(sys.argv[1])
cli.app = lambda: sys.exit(job.attend("mine", ["sbatch", "--wait", "script"]))
cli.main()
"""


def write_sbatch(folder: Path, sbatch: str) -> None:
    (folder / "runs" / "mine").mkdir(parents=True)
    (folder / "sbatch").write_text(f"#!/bin/bash\n{sbatch}\n", encoding="utf-8")
    (folder / "sbatch").chmod(0o755)
    (folder / "scontrol").write_text(
        '#!/bin/sh\necho "JobId=17 JobState=${STATE-COMPLETED} ExitCode=0:0"\n', encoding="utf-8"
    )
    (folder / "scontrol").chmod(0o755)


def start(folder: Path, sbatch: str) -> subprocess.Popen[str]:
    write_sbatch(folder, sbatch)
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(folder)],
        env={"PATH": f"{folder}:/usr/bin:/bin", "PYTHONPATH": str(CODE_FOLDER)},
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def attend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], subprocess.CompletedProcess[str]]:
    """The same in this process; what sbatch itself prints on standard error is not captured with it."""

    def run(sbatch: str) -> subprocess.CompletedProcess[str]:
        write_sbatch(tmp_path, sbatch)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        monkeypatch.setattr(container, "WORKING_FOLDER", tmp_path)
        words = ["sbatch", "--wait", "script"]
        monkeypatch.setattr("podium.cli.main.app", lambda: sys.exit(container.attend("mine", words)))
        return run_podium(cwd=tmp_path)

    return run


@pytest.mark.parametrize("code", [0, 1, 143])
def test_a_job_ends_as_if_it_had_run_here(attend: Callable[..., subprocess.CompletedProcess[str]], code: int) -> None:
    writes = 'echo "{}" > runs/mine/slurm-17.txt; echo "a note" > runs/mine/slurm-17.err'
    done = attend(f'echo "Submitted batch job 17"; {writes}; exit {code}')
    assert (done.stdout, done.stderr, done.returncode) == ("{}\n", "a note\n", code)


def test_a_job_that_was_cancelled_while_it_waited_has_not_succeeded(
    attend: Callable[..., subprocess.CompletedProcess[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm's exit code of it is 0, as of one that was requeued and waited for its turn."""
    monkeypatch.setenv("STATE", "CANCELLED")
    done = attend("touch runs/mine/slurm-17.txt runs/mine/slurm-17.err; echo Submitted batch job 17")
    assert (done.stdout, done.returncode) == ("", 1)
    assert done.stderr == "podium: the Slurm job 17 ended as CANCELLED, before its run had ended\n"


def test_a_job_whose_output_is_not_here_says_so(
    attend: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    done = attend("echo Submitted batch job 17")
    output, error = done.stdout, done.stderr
    assert (
        output == f"podium: {tmp_path}/runs/mine/slurm-17.txt is not there; see whether the nodes share this folder\n"
    )
    assert f"{tmp_path}/runs/mine/slurm-17.err is not there" in error


def test_a_job_that_is_not_taken_is_told(tmp_path: Path) -> None:
    process = start(tmp_path, "echo sbatch: error: no controller >&2; exit 1")
    output, error = process.communicate(timeout=60)
    assert (process.returncode, output) == (1, "")
    assert "sbatch: error: no controller\npodium: sbatch did not take the job (exit code 1;" in error
    assert "Traceback" not in error


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_says_that_the_job_goes_on(tmp_path: Path, number: signal.Signals) -> None:
    process = start(tmp_path, f"sleep 0.5; echo $$ > {tmp_path}/pid; exec sleep 100")
    deadline = time.monotonic() + 60
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text(encoding="utf-8"):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(number)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "end it with `scancel --me --name=podium-mine`" in error
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text(encoding="utf-8")), 0)
