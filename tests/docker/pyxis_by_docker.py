"""A stand-in for `srun` of a Slurm with the plugin pyxis: the task runs in a container that `docker run` makes.

Slurm's own srun, whose path comes first, gets the options that are not pyxis'. On the node the task's command becomes
`docker run IMAGE COMMAND` with the mounts, the job's environment, the user's numbers and the node's network, as enroot
runs it; unlike enroot's its home folder is /tmp, and the image's entry point is executed.
"""

import os
import sys
from collections.abc import Sequence

JOB = ("SLURM_", "SLURMD_", "PMI", "TORCH_", "NCCL_")


def srun_command(srun: str, arguments: Sequence[str]) -> list[str]:
    """What is executed for `srun WORDS`: options are of the form --NAME=VALUE, up to the task's command."""
    first = next(number for number, word in enumerate(arguments) if not word.startswith("-"))
    options, command = arguments[:first], arguments[first:]
    pyxis = dict(word.removeprefix("--container-").split("=", 1) for word in options if word.startswith("--container-"))
    own = [word for word in options if not word.startswith("--container-")]
    if unknown := set(pyxis) - {"image", "mounts", "workdir"}:
        raise SystemExit(f"srun (with pyxis by docker): there is no --container-{min(unknown)} here")
    if not pyxis:
        return [srun, *own, *command]
    task = [sys.executable, __file__, "task", pyxis["image"], pyxis["mounts"], pyxis["workdir"]]
    return [srun, *own, *task, *command]


def docker_command(image: str, mounts: str, workdir: str, command: Sequence[str]) -> list[str]:
    arguments = ["docker", "run", "--rm", "--network=host", "--shm-size=16g", f"--user={os.getuid()}:{os.getgid()}"]
    arguments += [f"--workdir={workdir}", "--env=HOME=/tmp", "--env=USER=podium"]
    arguments += [f"--env={name}={value}" for name, value in os.environ.items() if name.startswith(JOB)]
    return [*arguments, *(f"--volume={mount}" for mount in mounts.split(",")), image, *command]


if __name__ == "__main__":
    kind, *rest = sys.argv[1:]
    arguments = docker_command(*rest[:3], rest[3:]) if kind == "task" else srun_command(kind, rest)
    os.execvp(arguments[0], arguments)
