"""Claims of docker/'s files that need no engine, and the stand-ins with which tests/docker/test_image.py runs them."""

import importlib.util
import json
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from podium.config.load import load_system
from podium.core.paths import CODE_FOLDER, PACKAGES
from podium.launch.container import launcher_argv
from podium.launch.mounts import INSIDE, SHARED
from tests.docker.docker_by_buildah import REFUSED, STORE, container_command, run_options
from tests.docker.pyxis_by_docker import docker_command, srun_command

DOCKER = CODE_FOLDER / "docker"
_SPECIFICATION = importlib.util.spec_from_file_location("check_base", DOCKER / "check_base.py")
assert _SPECIFICATION and _SPECIFICATION.loader
check_base: Any = importlib.util.module_from_spec(_SPECIFICATION)
_SPECIFICATION.loader.exec_module(check_base)
OPTIONAL = check_base.OPTIONAL
DOCKERFILE = (DOCKER / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")


def instructions(name: str) -> list[str]:
    return [line.removeprefix(name).strip() for line in DOCKERFILE.splitlines() if line.startswith(f"{name} ")]


def test_what_the_image_copies_is_there_and_complete() -> None:
    copied = [word for line in instructions("COPY") for word in line.split()[:-1]]
    assert [name for name in copied if not (CODE_FOLDER / name).exists()] == []
    assert {*PACKAGES, "systems", "docker", "requirements", "tools", "pyproject.toml", "setup.py", "setup.sh"} <= set(
        copied
    )
    ignored = (DOCKER / "Dockerfile.dockerignore").read_text(encoding="utf-8").split()
    assert not set(copied) & set(ignored)


def test_the_image_is_what_the_commands_of_podium_run_assume() -> None:
    assert instructions("WORKDIR") == [str(INSIDE)]
    (user,) = instructions("USER")
    assert user not in ("root", "0") and any(f"chown {user} {' '.join(SHARED)}" in line for line in instructions("RUN"))
    (entrypoint,) = instructions("ENTRYPOINT")
    (path,) = json.loads(entrypoint)
    assert os.access(CODE_FOLDER / Path(path).relative_to(INSIDE), os.X_OK)
    bind = re.search(r"mkdir -p (.*)", (DOCKER / "apptainer.def").read_text(encoding="utf-8"))
    assert bind and {f"{INSIDE}/{name}" for name in SHARED} <= set(bind[1].split())


@pytest.mark.parametrize("script", sorted(path.name for path in DOCKER.iterdir() if path.suffix in (".sh", ".sub")))
def test_a_script_is_one_that_bash_can_read(script: str) -> None:
    subprocess.run(["bash", "-n", str(DOCKER / script)], check=True)


def check_image(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([DOCKER / "check_image.sh", *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--engine", "podman"], "--engine: found podman; allowed are docker and buildah"),
        (["--engin"], "there is no option --engin"),
        (["--engine"], "--engine has no value; "),
        (["--engine", "buildah", "--folder"], "--folder has no value; "),
        (["--folder", "--engine", "docker"], "--folder has no value; "),
        (["--folder", "/proc/no"], "--folder: /proc/no cannot be made"),
    ],
)
def test_a_check_asked_wrongly_starts_nothing(arguments: list[str], message: str) -> None:
    done = check_image(*arguments)
    assert done.returncode == 2 and f"check_image.sh: {message}" in done.stderr


def test_the_scripts_have_a_help() -> None:
    done = check_image("--help")
    assert (done.returncode, done.stderr) == (0, "") and "--engine buildah    # without Docker" in done.stdout
    assert "set -" not in done.stdout and not done.stdout.startswith("#")
    done = subprocess.run([DOCKER / "build.sh", "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.startswith("docker/build.sh [--print]")


@pytest.mark.parametrize(
    ("host", "context", "security", "message"),
    [
        ("tcp://far:2375", "", "", "Docker's engine is at tcp://far:2375; "),
        ("", "ssh://far", "", "Docker's engine is at ssh://far; "),
        ("", "", "", "docker context inspect does not show where Docker's engine is"),
        ("unix:///no.sock", "", "", "Docker's engine does not answer at unix:///no.sock"),
        (
            "",
            "unix:///own.sock",
            "[name=seccomp,profile=builtin name=rootless]",
            "the engine at unix:///own.sock gives",
        ),
        (
            "unix:///own.sock",
            "",
            "[name=userns]",
            "the engine at unix:///own.sock gives containers other users' numbers",
        ),
    ],
)
def test_an_unusable_engine_is_reported_before_anything_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, context: str, security: str, message: str
) -> None:
    (tmp_path / "docker").write_text(
        f'#!/bin/sh\ncase "$1" in context) answer="{context}" ;; info) answer="{security}" ;; esac\n'
        '[ -n "$answer" ] && echo "$answer"\n'
    )
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("DOCKER_HOST", host)
    done = check_image()
    assert done.returncode == 2 and done.stderr.startswith(f"check_image.sh: {message}")


def entered(folder: Path, banner: bool) -> subprocess.CompletedProcess[str]:
    """The image's entry point with a command that reads its input, on a base with or without NVIDIA's entry point."""
    nvidia = folder / "nvidia_entrypoint.sh"
    if banner:
        nvidia.write_text('#!/bin/bash\necho "== PyTorch =="\nexec "$@"\n', encoding="utf-8")
        nvidia.chmod(0o755)
    script = (DOCKER / "entrypoint.sh").read_text(encoding="utf-8").replace("/opt/nvidia", str(folder))
    command = ["bash", "-c", script, "entrypoint.sh", "bash", "-c", 'cat; echo "$1"; echo no >&2; exit 3', "-", "a b"]
    return subprocess.run(command, input="{}\n", capture_output=True, text=True, check=False)


@pytest.mark.parametrize("banner", [True, False])
def test_standard_output_of_the_image_is_its_commands_alone(tmp_path: Path, banner: bool) -> None:
    done = entered(tmp_path, banner)
    assert (done.returncode, done.stdout) == (3, "{}\na b\n")
    assert done.stderr == ("== PyTorch ==\nno\n" if banner else "no\n")


def test_a_base_without_apex_and_dali_is_accepted_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = {name: (one, lambda: exec("import not_there"), without) for name, (one, _, without) in OPTIONAL.items()}
    monkeypatch.setattr(check_base, "OPTIONAL", missing)
    lines = check_base.check("debian@sha256:0")
    assert lines[0] == "base: debian@sha256:0"
    apex, dali = lines[2:]
    assert apex.startswith("apex: missing (No module named 'not_there'); optimizer.backend=apex is not available")
    assert dali.startswith("nvidia.dali: missing (No module named 'not_there'); loader=dali is not available")
    warned = check_base.check(f"{check_base.NVIDIA}@sha256:0")
    assert sum(line.startswith("WARNING: ") for line in warned) == 2


def test_a_base_with_apex_and_dali_has_their_versions_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {name: ("pytest", lambda: None, without) for name, (_, _, without) in OPTIONAL.items()}
    monkeypatch.setattr(check_base, "OPTIONAL", there)
    assert check_base.check(check_base.NVIDIA)[2:] == [f"{name}: {pytest.__version__}" for name in OPTIONAL]


def test_a_base_with_another_torch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.__version__", "2.10.1+cu128")
    with pytest.raises(SystemExit, match=r"^FROM_IMAGE: debian has torch 2\.10\.1\+cu128; 2\.11 to 2\.13 is needed"):
        check_base.check("debian")


# The stand-ins


def test_the_stand_in_takes_the_command_of_podium_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STORE, "/store")
    command = launcher_argv(load_system("laptop", settings=LAUNCH), "laptop", ["--json"], 0)
    options = run_options(command[2:])
    assert options.image == "podium:latest" and options.command[:3] == ["podium", "run", "laptop"]
    config = {"Entrypoint": ["/entry"], "WorkingDir": str(INSIDE)}
    executed = container_command(options, config, "made-1")
    assert executed[0] == "unshare" and {"--net", "--pid", "--ipc", "--mount"} <= set(executed)
    assert options.ulimit == ["memlock=-1", "stack=67108864"]
    inner = executed[executed.index("buildah") :]
    assert inner[inner.index("made-1") :] == ["made-1", "--", "/entry", *options.command]
    assert inner[inner.index("--user") + 1] == f"{os.getuid()}:{os.getgid()}"
    assert shlex.join(["--volume", f"{CODE_FOLDER}/runs:{INSIDE}/runs"]) in shlex.join(inner)


LAUNCH = ["launch.launcher=docker", "launch.container={runtime: docker, image: 'podium:latest'}"]


@pytest.mark.parametrize("option", ["--gpus=all", "--device=/dev/infiniband", "--privileged", "--network=bridge"])
def test_the_stand_in_refuses_what_it_cannot_do(option: str) -> None:
    with pytest.raises(SystemExit) as refused:
        run_options(["--rm", option, "podium:latest", "podium"])
    assert refused.value.code == REFUSED


def test_the_stand_in_for_pyxis_starts_each_task_in_a_container(monkeypatch: pytest.MonkeyPatch) -> None:
    options = ["--container-image=i", "--container-mounts=/a:/b,/c:/d:ro", "--container-workdir=/w"]
    command = srun_command("/bin/srun", ["--cpu-bind=none", *options, "bash", "-c", "x"])
    assert command[:2] == ["/bin/srun", "--cpu-bind=none"]
    assert command[4:] == ["task", "i", "/a:/b,/c:/d:ro", "/w", "bash", "-c", "x"]
    monkeypatch.setenv("SLURM_NODEID", "1")
    inside = docker_command("i", "/a:/b,/c:/d:ro", "/w", ["bash", "-c", "x"])
    assert inside[-6:] == ["--volume=/a:/b", "--volume=/c:/d:ro", "i", "bash", "-c", "x"]
    assert {"--env=SLURM_NODEID=1", "--workdir=/w", "--network=host"} <= set(inside)
    with pytest.raises(SystemExit, match="there is no --container-name here"):
        srun_command("srun", ["--container-name=x", "bash"])
