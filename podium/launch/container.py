"""Launchers that run `podium run` or `podium doctor` in a Docker container, or on the nodes of a Slurm job.

The same command runs there with launch.launcher=torchrun. Docker gets the options that NVIDIA's container requires
(shared memory, locked memory, stack), no network but the loopback for one node and the host's for several, and the
user's numeric user and group ids, so that the results belong to that user. A Slurm job is submitted and waited for, and
its output is printed as if it had run here.
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
from podium.core.console import print_command, print_message, verbosity
from podium.core.errors import EXIT_CODES, Interrupted, UsageError, WorkError, raise_if_stopped
from podium.core.files import make_folder
from podium.core.paths import INSTALLED, SHIPPED_FOLDER, WORKING_FOLDER
from podium.launch.mounts import IMAGE_FILES, SHARED, container_errors, mount_options, unmounted_paths_warning


def job_name(system: str) -> str:
    return f"podium-{system}"


JOB_SCRIPT = SHIPPED_FOLDER / "docker" / "slurm.sub"
POLL_SECONDS = 5.0
# Part of launch.requeue.signal_seconds that is left for requeueing the job after the deadline for saving the run.
REQUEUE_SECONDS = 20
# States of `scontrol show job` in which a job has not come to its end, a requeued one among them.
UNFINISHED_STATES = {
    *("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "REQUEUED", "REQUEUE_HOLD"),
    *("REQUEUE_FED", "SPECIAL_EXIT", "RESIZING", "SIGNALING", "STAGE_OUT", "RESV_DEL_HOLD"),
}


def submit_and_wait(system: str, argv: Sequence[str]) -> int:
    """Submit a Slurm job by `sbatch --wait`, wait until it has ended, print its output, and return its exit code.

    A requeued job keeps its number and has not ended. Where Slurm refuses to requeue a job, docker/slurm.sub submits a
    successor, which is waited for too. Raises WorkError where Slurm does not accept the job or loses it. Raises
    Interrupted on an interruption, which does not end the job.
    """
    sbatch = subprocess.Popen(list(argv), stdout=subprocess.PIPE, text=True)
    try:
        output, _ = sbatch.communicate()
        found = re.search(r"batch job (\d+)", output)
        if found is None:
            raise WorkError(
                f"{argv[0]} did not submit the job (exit code {sbatch.returncode}; its error message is above); check "
                "with `sinfo` that Slurm answers here, and check launch.slurm_options"
            )
        job, exit_code = found[1], sbatch.returncode
        _print_output(system, job)
        while (successor := _successor_job(system, job)) is not None:
            job, exit_code = successor, _wait_for_job(successor)
            _print_output(system, job)
    except Interrupted:
        # Only the local wait ends: the job itself continues, and `scancel` is the user's decision.
        sbatch.kill()
        sbatch.wait()
        selection = f"--me --name={job_name(system)}"
        raise Interrupted(
            f"interrupted; the Slurm job continues, but is no longer waited for: list it with `squeue {selection}`, "
            f"end it with `scancel {selection}`"
        ) from None
    return _final_exit_code(job, exit_code)


def _print_output(system: str, job: str) -> None:
    for end, stream in (("txt", sys.stdout), ("err", sys.stderr)):
        path = WORKING_FOLDER / "runs" / system / f"slurm-{job}.{end}"
        missing = f"podium: {path} does not exist; check that the nodes share this folder\n"
        stream.write(path.read_text(encoding="utf-8", errors="replace") if path.exists() else missing)


def _successor_job(system: str, job: str) -> str | None:
    """The job that continues this one, which Slurm refused to requeue; None if there is none."""
    path = WORKING_FOLDER / "runs" / system / f"slurm-{job}.next"
    text = path.read_text(encoding="utf-8").strip() if path.is_file() else ""
    # A file that names the job itself would make the caller wait in an endless loop.
    return text if text.isdecimal() and text != job else None


@dataclass(frozen=True)
class _JobState:
    """State of a job, from `scontrol show job`."""

    name: str  # such as RUNNING; empty where Slurm does not answer
    exit_code: int = 0  # as `sbatch --wait` ends with
    known: bool = True  # False once Slurm has purged the job's record


def _job_state(job: str) -> _JobState:
    if shutil.which("scontrol") is None:
        return _JobState("")
    argv = ["scontrol", "show", "job", "--oneliner", job]
    result = subprocess.run(argv, capture_output=True, text=True, check=False)
    state = re.search(r"\bJobState=(\w+)", result.stdout)
    code = re.search(r"\bExitCode=(\d+):(\d+)", result.stdout)
    if state and code:
        return _JobState(state[1], 1 if code[2] != "0" else int(code[1]))  # the second number is a signal
    # A controller that does not answer for a while has not lost the job: only this message means that.
    return _JobState("", known="invalid job id" not in result.stderr.lower())


def _wait_for_job(job: str) -> int:
    """Wait for the end of a job that this process has not submitted, and return its exit code."""
    while (state := _job_state(job)).known:
        if state.name and state.name not in UNFINISHED_STATES:
            return state.exit_code
        time.sleep(POLL_SECONDS)
    raise WorkError(f"Slurm no longer has a record of job {job}; see with `sacct --jobs={job}` how it ended")


def _final_exit_code(job: str, exit_code: int) -> int:
    """The job's exit code, or 1 where Slurm ended it while it was pending, for which `sbatch --wait` returns 0.

    Codes that Podium does not have, such as 137 of a job that was killed, are 1 as well.
    """
    if exit_code not in EXIT_CODES:
        print_message(f"the Slurm job {job} ended with exit code {exit_code}, which is not one of Podium's")
        return 1
    state = _job_state(job).name if exit_code == 0 else ""
    if state in ("", "COMPLETED", *UNFINISHED_STATES):
        return exit_code
    print_message(f"the Slurm job {job} ended as {state}, before its run had ended")
    return 1


INFINIBAND = Path("/dev/infiniband")
SHARED_MEMORY = "16g"  # upper limit; NCCL takes some 10 MB for each pair of GPUs that it connects through memory


def run_options(runs: int, recipe: str | None, settings: Sequence[str], as_json: bool) -> list[str]:
    """Command line options of `podium run` for the same runs in a container or job."""
    argv = ["--runs", str(runs)] if runs > 1 else []
    argv += ["--recipe", recipe] if recipe is not None else []
    argv += [argument for setting in settings for argument in ("--set", setting)]
    return [*argv, *(["--json"] if as_json else []), *verbosity.options]


def resume_options(config: RunConfig, folder: Path, settings: Sequence[str], as_json: bool) -> list[str]:
    """Options of `podium run` that resume the run in this folder; UsageError where the container does not mount it."""
    path = portable_path(folder)
    if path.is_absolute() and config.launch.container is not None:
        raise UsageError(
            f"{folder}: the run resumes in a container (launch.container), which mounts only "
            f"{WORKING_FOLDER / 'runs'}; move the run's folder back there"
        )
    return ["--resume", str(path), *run_options(1, None, settings, as_json)]


def portable_path(folder: Path) -> Path:
    """Path of a run's folder that is valid in containers and on other nodes: relative to the repository.

    A folder outside of runs/ keeps its absolute path.
    """
    folder, runs = folder.resolve(), (WORKING_FOLDER / "runs").resolve()
    return "runs" / folder.relative_to(runs) if folder.is_relative_to(runs) else folder


def launcher_argv(
    config: RunConfig, system: str, options: Sequence[str], node_rank: int, command: str = "run"
) -> list[str]:
    """The docker or sbatch command line of launch.launcher that starts `podium COMMAND` with these options.

    `command` is run or doctor; `system` is a name in systems/ or a path. Raises UsageError for a `node_rank` where the
    launcher numbers the nodes, and in an installation from a wheel.
    """
    if INSTALLED:
        raise UsageError(
            f"launch.launcher is {config.launch.launcher}, which needs a clone of Podium's repository to share with "
            "the container or the nodes; run it there, or set launch.launcher=torchrun"
        )
    wrap = _docker if config.launch.launcher == "docker" else _slurm
    return wrap(config, system_path(system), options, node_rank, command)


def validate_mounts(config: RunConfig, system: str) -> None:
    """Raise UsageError for mounts and data that are known to be missing; warn of paths under no mount.

    `config` has its paths as written in the configuration, which is how they are read in the container.
    """
    if faults := container_errors(config):
        raise UsageError("\n".join(faults))
    if warning := unmounted_paths_warning(config, system_path(system)):
        print_message(f"warning: {warning}")


def require_launcher(config: RunConfig, argv: Sequence[str]) -> None:
    """Raise UsageError if the program that starts the launcher's command is not installed."""
    if shutil.which(argv[0]) is None:
        raise UsageError(
            f"launch.launcher is {config.launch.launcher}, but {argv[0]} is not installed here; install it"
        )


def launcher_folders(config: RunConfig) -> tuple[str, ...]:
    """Folders in the working folder that must exist before the launcher's command.

    Docker would create a missing source folder of a mount as root, and Slurm ends a job without a message where the
    folder of its output is missing.
    """
    return (*SHARED, f"runs/{config.system}")


def exec_launcher(config: RunConfig, argv: Sequence[str]) -> NoReturn:
    """Replace this process by Docker's, or submit the Slurm job and exit with its code.

    Raises UsageError if the launcher's program is not installed.
    """
    require_launcher(config, argv)
    for name in launcher_folders(config):
        make_folder(WORKING_FOLDER / name)
    os.chdir(WORKING_FOLDER)
    print_command(argv)
    raise_if_stopped()
    if config.launch.launcher == "slurm":
        sys.exit(submit_and_wait(config.system, argv))
    os.execvp(argv[0], list(argv))  # noqa: S606 — no shell parses it


def _docker(config: RunConfig, system: Path, options: Sequence[str], node_rank: int, command: str) -> list[str]:
    container = config.launch.container
    assert container is not None
    rank = ["--node-rank", str(node_rank)] if config.launch.nodes > 1 else []
    # The ranks of one node use files and the loopback; between nodes NCCL and gloo need the host's interfaces.
    network = "host" if config.launch.nodes > 1 else "none"
    # All ranks of a node are in one container: NCCL needs room in its /dev/shm, but not the host's (no --ipc=host).
    argv = ["docker", "run", "--rm", "--init", f"--network={network}", f"--shm-size={SHARED_MEMORY}"]
    argv += ["--ulimit=memlock=-1", "--ulimit=stack=67108864", "--cap-add=SYS_NICE"]
    argv += ["--gpus=all"] if config.launch.device == "cuda" else []
    argv += [f"--device={INFINIBAND}"] if INFINIBAND.exists() else []
    argv += [f"--user={os.getuid()}:{os.getgid()}", "--env=HOME=/tmp", "--env=USER=podium"]
    argv += [f"--volume={mount}" for mount in mount_options(container, system)]
    argv += [container.image, "podium", command, system.stem, *options, *rank]
    # The inner command must not start a container or a job again.
    direct_settings = ("launch.launcher=torchrun", "launch.container=null", "launch.slurm_options=[]")
    return [*argv, *(argument for setting in direct_settings for argument in ("--set", setting))]


def _slurm(config: RunConfig, system: Path, options: Sequence[str], node_rank: int, command: str) -> list[str]:
    if node_rank:
        raise UsageError(f"--node-rank: found {node_rank}, but launch.launcher is slurm, which numbers the nodes")
    container = config.launch.container
    argv = ["sbatch", "--wait", f"--job-name={job_name(config.system)}", f"--nodes={config.launch.nodes}"]
    stem = f"{WORKING_FOLDER}/runs/{config.system}/slurm-%j"
    argv += ["--ntasks-per-node=1", f"--chdir={WORKING_FOLDER}", f"--output={stem}.txt", f"--error={stem}.err"]
    requeue = config.launch.requeue if command == "run" else None
    if requeue is not None:
        argv += ["--requeue", "--open-mode=append", f"--signal=B:USR1@{requeue.signal_seconds}"]
        argv += [f"--time={requeue.time_limit}"] if requeue.time_limit is not None else []
    argv += config.launch.slurm_options
    submitted = argv[2:]
    argv.append(str(JOB_SCRIPT))
    argv += ["--doctor"] if command == "doctor" else []
    if requeue is not None:
        argv += ["--requeue", *(argument for option in submitted for argument in ("--resubmit", option))]
        saving_seconds = max(REQUEUE_SECONDS, requeue.signal_seconds - REQUEUE_SECONDS)
        argv += ["--saving-seconds", str(saving_seconds)]
    if container is None:
        argv += ["--python", sys.executable]
    else:
        image = WORKING_FOLDER / container.image if container.image.endswith(IMAGE_FILES) else container.image
        argv += [f"--{container.runtime}", str(image)]
        argv += [argument for mount in mount_options(container, system) for argument in ("--mount", mount)]
    name = system.stem if container is not None or system.parent == SYSTEMS else str(system.resolve())
    return [*argv, "--", name, *options]
