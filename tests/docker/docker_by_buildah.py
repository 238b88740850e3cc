"""A stand-in for the command `docker` where there is no Docker engine: buildah builds, and runs in namespaces.

    docker build OPTIONS FOLDER         buildah bud
    docker run OPTIONS IMAGE COMMAND    a new container of the image, removed when it ends
    docker images OPTIONS               buildah images
    docker save --output FILE IMAGE     buildah push IMAGE oci-archive:FILE

A container has mounts, processes, shared memory and (--network=none) a network apart from the machine's, the image's
entry point, user and environment, and Docker's default capabilities. Unlike Docker it has no limits by cgroups, no
devices but the machine's, and gets no signals but those of its terminal. An option that is not known here is refused.
PODIUM_BUILDAH_STORE names the folder of the images. It has to run as root, or with the capability CAP_SETUID, as a
member of the group `docker` can have the engine do anything.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

STORE = "PODIUM_BUILDAH_STORE"
REFUSED = 125  # with which `docker` ends where it could not start anything
# In the new namespaces, as their first process, which reaps what has lost its parent as `docker run --init` does.
PREPARE = """
mount -t tmpfs -o "size=$0" shm /dev/shm && { [ "$1" != none ] || ip link set lo up; } && shift && "$@"
exit
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        print(f"docker (by buildah): {message}", file=sys.stderr)
        raise SystemExit(REFUSED)


def run_options(arguments: Sequence[str]) -> argparse.Namespace:
    """The options of `docker run`, its image and its command."""
    parser = _Parser(allow_abbrev=False, add_help=False)
    for name in ("rm", "init"):
        parser.add_argument(f"--{name}", action="store_true", required=name == "rm")
    parser.add_argument("--network", choices=("none", "host"), default="host")
    parser.add_argument("--shm-size", default="64m")
    for name in ("user", "workdir", "entrypoint"):
        parser.add_argument(f"--{name}")
    for name in ("ulimit", "cap-add", "env", "volume"):
        parser.add_argument(f"--{name}", action="append", default=[])
    parser.add_argument("image")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    return parser.parse_args(arguments)


def driver() -> str:
    """How layers are stored: as overlays of the kernel, or vfs, which copies them all."""
    return os.environ.get("STORAGE_DRIVER", "overlay")


def buildah() -> list[str]:
    store = os.environ[STORE]
    return ["buildah", "--root", f"{store}/store", "--runroot", f"{store}/run", "--storage-driver", driver()]


def set_limits(ulimits: Sequence[str]) -> None:
    """`docker run --ulimit` for the processes that this one starts, as far as the machine lets root raise them."""
    for name, _, value in (limit.partition("=") for limit in ulimits):
        which = getattr(resource, f"RLIMIT_{name.upper()}")
        try:
            resource.setrlimit(which, (int(value), int(value)))
        except ValueError:
            hard = resource.getrlimit(which)[1]
            resource.setrlimit(which, (hard, hard))
            print(f"docker (by buildah): {name} is {hard}, which this machine does not let root raise", file=sys.stderr)


def container_command(options: argparse.Namespace, config: dict[str, Any], container: str) -> list[str]:
    """What is executed for `docker run`, given the image's configuration and a container of it."""
    namespaces = ["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--ipc"]
    namespaces += ["--net"] if options.network == "none" else []
    arguments = [
        *buildah(),
        "run",
        "--isolation=chroot",
        "--workingdir",
        options.workdir or config.get("WorkingDir", "/"),
    ]
    arguments += ["--user", options.user] if options.user else []
    given = [("cap-add", f"CAP_{name}") for name in options.cap_add]
    given += [("env", value) for value in options.env] + [("volume", value) for value in options.volume]
    arguments += [word for name, value in given for word in (f"--{name}", value)]
    entry = [options.entrypoint] if options.entrypoint else config.get("Entrypoint") or []
    command = options.command or config.get("Cmd") or []
    arguments += [container, "--", *entry, *command]
    first = ["bash", "-c", PREPARE, options.shm_size, options.network, *arguments]
    return ["unshare", *namespaces, *first]


def run(arguments: Sequence[str]) -> int:
    options = run_options(arguments)
    inspect = [*buildah(), "inspect", "--type=image", options.image]
    inspected = subprocess.run(inspect, stdout=subprocess.PIPE, check=False)
    if inspected.returncode:
        return REFUSED
    config = json.loads(inspected.stdout)["Docker"]["config"]
    made = subprocess.run([*buildah(), "from", options.image], stdout=subprocess.PIPE, text=True, check=True)
    container = made.stdout.strip()
    set_limits(options.ulimit)
    try:
        return subprocess.run(container_command(options, config, container), check=False).returncode
    finally:
        subprocess.run([*buildah(), "rm", container], stdout=subprocess.DEVNULL, check=False)


def main(arguments: Sequence[str]) -> int:
    if os.geteuid():
        os.setgroups([])
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
    if arguments[:1] == ["run"]:
        return run(arguments[1:])
    if arguments[:1] == ["build"]:
        build = ["bud", "--isolation=chroot", "--format=docker", f"--layers={str(driver() == 'overlay').lower()}"]
        return subprocess.run([*buildah(), *build, *arguments[1:]], check=False).returncode
    if arguments[:1] == ["images"]:
        return subprocess.run([*buildah(), *arguments], check=False).returncode
    if arguments[:2] == ["save", "--output"]:
        return subprocess.run([*buildah(), "push", arguments[3], f"oci-archive:{arguments[2]}"], check=False).returncode
    print(f"docker (by buildah): there is no `docker {' '.join(arguments[:1])}` here", file=sys.stderr)
    return REFUSED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
