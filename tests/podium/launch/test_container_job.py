"""Submission of a Slurm job: waiting, output, exit code, refusal and interruption."""

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
cli.app = lambda: sys.exit(job.submit_and_wait("mine", ["sbatch", "--wait", "script"]))
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
def submit_and_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], subprocess.CompletedProcess[str]]:
    """The same in this process; standard error of sbatch is not captured."""

    def run(sbatch: str) -> subprocess.CompletedProcess[str]:
        write_sbatch(tmp_path, sbatch)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        monkeypatch.setattr(container, "WORKING_FOLDER", tmp_path)
        argv = ["sbatch", "--wait", "script"]
        monkeypatch.setattr("podium.cli.main.app", lambda: sys.exit(container.submit_and_wait("mine", argv)))
        return run_podium(cwd=tmp_path)

    return run


@pytest.mark.parametrize("code", [0, 1, 143])
def test_output_and_exit_code_are_those_of_the_job(
    submit_and_wait: Callable[..., subprocess.CompletedProcess[str]], code: int
) -> None:
    writes = 'echo "{}" > runs/mine/slurm-17.txt; echo "a note" > runs/mine/slurm-17.err'
    done = submit_and_wait(f'echo "Submitted batch job 17"; {writes}; exit {code}')
    assert (done.stdout, done.stderr, done.returncode) == ("{}\n", "a note\n", code)


def test_job_cancelled_while_pending_has_failed(
    submit_and_wait: Callable[..., subprocess.CompletedProcess[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`sbatch --wait` returns 0 for it, as for a job that was requeued and is pending."""
    monkeypatch.setenv("STATE", "CANCELLED")
    done = submit_and_wait("touch runs/mine/slurm-17.txt runs/mine/slurm-17.err; echo Submitted batch job 17")
    assert (done.stdout, done.returncode) == ("", 1)
    assert done.stderr == "podium: the Slurm job 17 ended as CANCELLED, before its run had ended\n"


def test_missing_output_is_reported(
    submit_and_wait: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    done = submit_and_wait("echo Submitted batch job 17")
    output, error = done.stdout, done.stderr
    assert (
        output == f"podium: {tmp_path}/runs/mine/slurm-17.txt does not exist; check that the nodes share this folder\n"
    )
    assert f"{tmp_path}/runs/mine/slurm-17.err does not exist" in error


def test_refused_job_is_an_error(tmp_path: Path) -> None:
    process = start(tmp_path, "echo sbatch: error: no controller >&2; exit 1")
    output, error = process.communicate(timeout=60)
    assert (process.returncode, output) == (1, "")
    assert "sbatch: error: no controller\npodium: sbatch did not submit the job (exit code 1;" in error
    assert "Traceback" not in error


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interruption_leaves_the_job_and_prints_how_to_end_it(tmp_path: Path, number: signal.Signals) -> None:
    process = start(tmp_path, f"sleep 0.5; echo $$ > {tmp_path}/pid; exec sleep 100")
    deadline = time.monotonic() + 60
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text(encoding="utf-8"):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(number)
    _, error = process.communicate(timeout=60)
    assert process.returncode == (130 if number == signal.SIGINT else 143)
    assert "end it with `scancel --me --name=podium-mine`" in error
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text(encoding="utf-8")), 0)
