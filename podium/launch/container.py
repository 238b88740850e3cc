"""Launchers that run a whole `podium run` or `podium doctor` in a Docker container, or on the nodes of a Slurm job.

The same command runs there with launch.launcher=torchrun. Docker's options are those that NVIDIA's container requires
(shared memory, locked memory, stack), no network but the loopback for one node and the host's for several, and the
numeric user and group ids of the user who starts it, so that the results belong to that user. A Slurm job is submitted
and waited for, and its output is shown as if it had run here.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from podium.config.load import SYSTEMS, system_path
from podium.config.schema import RunConfig
from podium.core.console import tell
from podium.core.errors import Interrupted, UsageError, WorkError
from podium.core.files import make_folder
from podium.core.paths import INSTALLED, SHIPPED_FOLDER, WORKING_FOLDER
from podium.launch.mounts import IMAGE_FILES, SHARED, known_faults, mount_options, unseen_paths


def name_of(system: str) -> str:
    return f"podium-{system}"


POLL_SECONDS = 5.0
# Between the signal before a job's limit and the limit, seconds that are kept for requeueing once saving is given up
LEAVING_SECONDS = 20
# States of `scontrol show job` in which a job has not come to its end, a requeued one among them.
UNFINISHED = {
    *("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "REQUEUED", "REQUEUE_HOLD"),
    *("REQUEUE_FED", "SPECIAL_EXIT", "RESIZING", "SIGNALING", "STAGE_OUT", "RESV_DEL_HOLD"),
}


def attend(system: str, words: Sequence[str]) -> int:
    """Submit the job, wait until it has ended, show what it printed, and give its exit code.

    A job that is requeued keeps its number and has not ended; one that another goes on for (docker/slurm.sub) is
    followed by that. Raises WorkError where Slurm does not take the job or loses it, and Interrupted on an
    interruption, which does not end the job.
    """
    sbatch = subprocess.Popen(list(words), stdout=subprocess.PIPE, text=True)
    try:
        said, _ = sbatch.communicate()
        found = re.search(r"batch job (\d+)", said)
        if found is None:
            raise WorkError(
                f"{words[0]} did not take the job (exit code {sbatch.returncode}; what it says is above); see with "
                "`sinfo` that Slurm answers here, and see launch.slurm_options"
            )
        job, exit_code = found[1], sbatch.returncode
        _show_output(system, job)
        while (following := _following_job(system, job)) is not None:
            job, exit_code = following, _job_ended(following)
            _show_output(system, job)
    except Interrupted:
        sbatch.kill()
        sbatch.wait()
        named = f"--me --name={name_of(system)}"
        raise Interrupted(
            f"interrupted; the Slurm job goes on without being waited for: see it with `squeue {named}`, end it with "
            f"`scancel {named}`"
        ) from None
    return _as_it_ended(job, exit_code)


def _show_output(system: str, job: str) -> None:
    for end, stream in (("txt", sys.stdout), ("err", sys.stderr)):
        path = WORKING_FOLDER / "runs" / system / f"slurm-{job}.{end}"
        missing = f"podium: {path} is not there; see whether the nodes share this folder\n"
        stream.write(path.read_text(encoding="utf-8", errors="replace") if path.exists() else missing)


def _following_job(system: str, job: str) -> str | None:
    """The job that goes on for this one, which Slurm refused to requeue; None where there is none."""
    path = WORKING_FOLDER / "runs" / system / f"slurm-{job}.next"
    text = path.read_text(encoding="utf-8").strip() if path.is_file() else ""
    return text if text.isdecimal() and text != job else None


@dataclass(frozen=True)
class _JobState:
    """What `scontrol show job` knows of a job."""

    name: str  # such as RUNNING; empty where Slurm does not answer
    exit_code: int = 0  # as `sbatch --wait` ends with
    known: bool = True  # False once Slurm has forgotten the job


def _state_of(job: str) -> _JobState:
    if shutil.which("scontrol") is None:
        return _JobState("")
    words = ["scontrol", "show", "job", "--oneliner", job]
    asked = subprocess.run(words, capture_output=True, text=True, check=False)
    state = re.search(r"\bJobState=(\w+)", asked.stdout)
    code = re.search(r"\bExitCode=(\d+):(\d+)", asked.stdout)
    if state and code:
        return _JobState(state[1], 1 if code[2] != "0" else int(code[1]))
    return _JobState("", known="invalid job id" not in asked.stderr.lower())


def _job_ended(job: str) -> int:
    """Wait for the end of a job that this process has not submitted, and give its exit code."""
    while (state := _state_of(job)).known:
        if state.name and state.name not in UNFINISHED:
            return state.exit_code
        time.sleep(POLL_SECONDS)
    raise WorkError(f"Slurm does not know job {job} any more; see with `sacct --jobs={job}` how it ended")


def _as_it_ended(job: str, exit_code: int) -> int:
    """The exit code of a job, but 1 where Slurm ended it while it waited, for which Slurm gives 0."""
    state = _state_of(job).name if exit_code == 0 else ""
    if state in ("", "COMPLETED", *UNFINISHED):
        return exit_code
    tell(f"the Slurm job {job} ended as {state}, before its run had ended")
    return 1


INFINIBAND = Path("/dev/infiniband")
SHARED_MEMORY = "16g"  # at most; NCCL takes some 10 MB for each pair of GPUs that it connects through memory


def run_options(runs: int, recipe: str | None, settings: Sequence[str], as_json: bool) -> list[str]:
    """The options of `podium run` that make the same runs."""
    words = ["--runs", str(runs)] if runs > 1 else []
    words += ["--recipe", recipe] if recipe is not None else []
    words += [word for setting in settings for word in ("--set", setting)]
    return [*words, *(["--json"] if as_json else [])]


def resume_options(config: RunConfig, folder: Path, settings: Sequence[str], as_json: bool) -> list[str]:
    """The options of `podium run` that resume the run in this folder; UsageError where the container cannot see it."""
    seen = seen_anywhere(folder)
    if seen.is_absolute() and config.launch.container is not None:
        raise UsageError(
            f"{folder}: the run goes on in a container (launch.container), which sees {WORKING_FOLDER / 'runs'} alone; "
            "move the run's folder back there"
        )
    return ["--resume", str(seen), *run_options(1, None, settings, as_json)]


def seen_anywhere(folder: Path) -> Path:
    """A run's folder from the repository's on, as containers and other nodes see it too; else its whole path."""
    folder, runs = folder.resolve(), (WORKING_FOLDER / "runs").resolve()
    return "runs" / folder.relative_to(runs) if folder.is_relative_to(runs) else folder


def wrapped(config: RunConfig, system: str, options: Sequence[str], node_rank: int, command: str = "run") -> list[str]:
    """The command that has `podium COMMAND` with these options go on where the system's launcher says.

    `command` is run or doctor, `system` a name in systems/ or a path. UsageError for a node's number where the launcher
    numbers nodes itself, and in an installation.
    """
    if INSTALLED:
        raise UsageError(
            f"launch.launcher is {config.launch.launcher}, which needs a clone of Podium's repository to share with "
            "the container or the nodes; run it there, or set launch.launcher=torchrun"
        )
    wrap = _docker if config.launch.launcher == "docker" else _slurm
    return wrap(config, system_path(system), options, node_rank, command)


def require_seen(config: RunConfig, system: str) -> None:
    """UsageError where what the container is given is known not to be there; a warning of what it may not see.

    `config` has its paths as they are written, which is how they are read in the container.
    """
    if faults := known_faults(config):
        raise UsageError("\n".join(faults))
    if warning := unseen_paths(config, system_path(system)):
        tell(f"warning: {warning}")


def become(config: RunConfig, words: Sequence[str]) -> NoReturn:
    """Be that command from now on, or wait for it and end as it does. UsageError where the launcher is not here."""
    if shutil.which(words[0]) is None:
        raise UsageError(f"launch.launcher is {config.launch.launcher}, but there is no {words[0]} here; install it")
    for name in (*SHARED, f"runs/{config.system}"):
        make_folder(WORKING_FOLDER / name)
    os.chdir(WORKING_FOLDER)
    if config.launch.launcher == "slurm":
        sys.exit(attend(config.system, words))
    os.execvp(words[0], list(words))  # noqa: S606 — nothing of it goes through a shell


def _docker(config: RunConfig, system: Path, options: Sequence[str], node_rank: int, command: str) -> list[str]:
    container = config.launch.container
    assert container is not None
    rank = ["--node-rank", str(node_rank)] if config.launch.nodes > 1 else []
    # One node's ranks meet in files and on the loopback; between nodes NCCL and gloo need the host's interfaces.
    network = "host" if config.launch.nodes > 1 else "none"
    # All ranks of a node are in one container: it needs room in /dev/shm for NCCL, and not the host's shared memory.
    words = ["docker", "run", "--rm", "--init", f"--network={network}", f"--shm-size={SHARED_MEMORY}"]
    words += ["--ulimit=memlock=-1", "--ulimit=stack=67108864", "--cap-add=SYS_NICE"]
    words += ["--gpus=all"] if config.launch.device == "cuda" else []
    words += [f"--device={INFINIBAND}"] if INFINIBAND.exists() else []
    words += [f"--user={os.getuid()}:{os.getgid()}", "--env=HOME=/tmp", "--env=USER=podium"]
    words += [f"--volume={mount}" for mount in mount_options(container, system)]
    words += [container.image, "podium", command, system.stem, *options, *rank]
    direct = ("launch.launcher=torchrun", "launch.container=null", "launch.slurm_options=[]")
    return [*words, *(word for setting in direct for word in ("--set", setting))]


def _slurm(config: RunConfig, system: Path, options: Sequence[str], node_rank: int, command: str) -> list[str]:
    if node_rank:
        raise UsageError(f"--node-rank: found {node_rank}, but launch.launcher is slurm, which numbers nodes itself")
    container = config.launch.container
    words = ["sbatch", "--wait", f"--job-name={name_of(config.system)}", f"--nodes={config.launch.nodes}"]
    stem = f"{WORKING_FOLDER}/runs/{config.system}/slurm-%j"
    words += ["--ntasks-per-node=1", f"--chdir={WORKING_FOLDER}", f"--output={stem}.txt", f"--error={stem}.err"]
    requeue = config.launch.requeue if command == "run" else None
    if requeue is not None:
        words += ["--requeue", "--open-mode=append", f"--signal=B:USR1@{requeue.signal_seconds}"]
        words += [f"--time={requeue.time_limit}"] if requeue.time_limit is not None else []
    words += config.launch.slurm_options
    submitted = words[2:]
    words.append(str(SHIPPED_FOLDER / "docker" / "slurm.sub"))
    words += ["--doctor"] if command == "doctor" else []
    if requeue is not None:
        words += ["--requeue", *(word for option in submitted for word in ("--resubmit", option))]
        saving_seconds = max(LEAVING_SECONDS, requeue.signal_seconds - LEAVING_SECONDS)
        words += ["--saving-seconds", str(saving_seconds)]
    if container is None:
        words += ["--python", sys.executable]
    else:
        image = WORKING_FOLDER / container.image if container.image.endswith(IMAGE_FILES) else container.image
        words += [f"--{container.runtime}", str(image)]
        words += [word for mount in mount_options(container, system) for word in ("--mount", mount)]
    named = system.stem if container is not None or system.parent == SYSTEMS else str(system.resolve())
    return [*words, "--", named, *options]
