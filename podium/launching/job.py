"""A Slurm job that Podium submitted: waited for, and what it printed is shown as if it had run here."""

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.errors import Interrupted, WorkError
from podium.config.loading import ROOT


def name_of(system: str) -> str:
    return f"podium-{system}"


def output_options(system: str) -> list[str]:
    """The options of sbatch that keep a job's standard output and standard error apart."""
    stem = f"{ROOT}/runs/{system}/slurm-%j"
    return [f"--output={stem}.txt", f"--error={stem}.err"]


def attend(system: str, words: Sequence[str]) -> int:
    """Submit the job, wait until it has ended, show what it printed, and give its exit code.

    Raises WorkError where Slurm does not take the job, and Interrupted on an interruption, which does not end the job.
    """
    sbatch = subprocess.Popen(list(words), stdout=subprocess.PIPE, text=True)
    try:
        said, _ = sbatch.communicate()
    except WorkError:
        sbatch.kill()
        sbatch.wait()
        named = f"--me --name={name_of(system)}"
        raise Interrupted(
            f"interrupted; the Slurm job goes on without being waited for: see it with `squeue {named}`, end it with "
            f"`scancel {named}`"
        ) from None
    job = re.search(r"batch job (\d+)", said)
    if job is None:
        raise WorkError(
            f"{words[0]} did not take the job (exit code {sbatch.returncode}; what it says is above); see with `sinfo` "
            "that Slurm answers here, and see launch.slurm_options"
        )
    for end, stream in (("txt", sys.stdout), ("err", sys.stderr)):
        path = ROOT / "runs" / system / f"slurm-{job[1]}.{end}"
        stream.write(path.read_text(encoding="utf-8", errors="replace") if path.exists() else _missing(path))
    return sbatch.returncode


def _missing(path: Path) -> str:
    return f"podium: {path} is not there; see whether the nodes share this folder\n"
