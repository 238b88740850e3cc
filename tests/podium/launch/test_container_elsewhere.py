"""Runs in a container or a Slurm job: command lines of docker, sbatch and srun, dry runs, and resumed runs."""

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from podium.cli.main import app
from podium.config.load import load_system, write_resolved
from podium.config.run_folder import RunFolder, checkpoint_path, fixed_configuration, format_facts, rank_file
from podium.config.schema import RunConfig
from podium.core.errors import UsageError
from podium.core.paths import CODE_FOLDER
from podium.launch import container as container_module
from podium.launch import mounts as mounts_module
from podium.launch.container import exec_launcher, launcher_argv, portable_path, run_options
from podium.launch.launch import TORCHRUN
from podium.run.dry_run import INDENT
from podium.run.run_set import RunRequest
from tests.podium.conftest import dry_run_lines

DIRECT = ["--set", "launch.launcher=torchrun", "--set", "launch.container=null", "--set", "launch.slurm_options=[]"]
JOB = {"SLURM_JOB_ID": "1234567", "SLURM_JOB_NUM_NODES": "3", "SLURM_NODEID": "2", "SLURM_CPUS_ON_NODE": "96"}


def test_docker_options_and_inner_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container_module, "INFINIBAND", Path("/"))
    options = run_options(10, "random", ["seed=3"], as_json=True)
    assert options == ["--runs", "10", "--recipe", "random", "--set", "seed=3", "--json"]
    argv = launcher_argv(load_system("dgxa100_n1"), "dgxa100_n1", options, 0)
    assert argv[:3] == ["docker", "run", "--rm"]
    image = argv.index("podium:latest")
    assert argv[image + 1 :] == ["podium", "run", "dgxa100_n1", *options, *DIRECT]
    docker_options = set(argv[3:image])
    assert docker_options >= {
        "--gpus=all",
        "--shm-size=16g",
        "--network=none",
        "--ulimit=memlock=-1",
        "--device=/",
        "--init",
    }
    assert docker_options >= {
        f"--volume={CODE_FOLDER}/{name}:/workspace/podium/{name}" for name in ("results", "runs", "data")
    }
    assert f"--volume={CODE_FOLDER}/data:/data:ro" in docker_options
    assert (
        f"--volume={CODE_FOLDER}/systems/dgxa100_n1.yaml:/workspace/podium/systems/dgxa100_n1.yaml:ro" in docker_options
    )
    assert f"--user={os.getuid()}:{os.getgid()}" in docker_options
    assert run_options(1, None, [], as_json=False) == []


def test_users_system_file_is_mounted(write_system: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container_module, "INFINIBAND", Path("/nowhere"))
    container = {"runtime": "docker", "image": "x", "mounts": ["/big/data:/data"]}
    path = write_system({"launch.launcher": "docker", "launch.container": container})
    argv = launcher_argv(load_system(str(path)), str(path), [], 0)
    assert f"--volume={path}:/workspace/podium/systems/mine.yaml:ro" in argv
    assert "--volume=/big/data:/data" in argv
    assert argv[argv.index("x") + 1 :][:3] == ["podium", "run", "mine"]
    assert not any(option.startswith(("--gpus", "--device")) for option in argv)


def test_docker_on_several_nodes_passes_the_node_rank(write_system: Any) -> None:
    launch = {"launcher": "docker", "nodes": 2, "container": {"runtime": "docker", "image": "x"}}
    path = write_system({f"launch.{key}": value for key, value in launch.items()})
    argv = launcher_argv(load_system(str(path)), str(path), ["--json"], 1)
    assert argv[-9:-6] == ["--json", "--node-rank", "1"]
    assert "--network=host" in argv and not any(option.startswith("--ipc") for option in argv)


def test_sbatch_options_and_container() -> None:
    argv = launcher_argv(load_system("dgxa100_n8"), "dgxa100_n8", ["--runs", "10"], 0)
    script = argv.index(f"{CODE_FOLDER}/docker/slurm.sub")
    assert argv[:2] == ["sbatch", "--wait"]
    assert set(argv[2:script]) >= {"--nodes=8", "--ntasks-per-node=1", "--exclusive", f"--chdir={CODE_FOLDER}"}
    assert argv[script + 1 : script + 3] == ["--pyxis", f"{CODE_FOLDER}/podium.sqsh"]
    assert argv[-4:] == ["--", "dgxa100_n8", "--runs", "10"]
    assert f"{CODE_FOLDER}/data:/data:ro" in argv
    assert "--apptainer" in launcher_argv(load_system("academic_t4"), "academic_t4", [], 0)
    with pytest.raises(UsageError, match=r"^--node-rank: found 1, but launch\.launcher is slurm"):
        launcher_argv(load_system("dgxa100_n8"), "dgxa100_n8", [], 1)


def test_sbatch_without_a_container_uses_this_python(write_system: Any) -> None:
    path = write_system({"launch.launcher": "slurm", "launch.slurm_options": ["--partition=gpu"]})
    argv = launcher_argv(load_system(str(path)), str(path), [], 0)
    assert argv[-5:] == [f"{CODE_FOLDER}/docker/slurm.sub", "--python", sys.executable, "--", str(path)]
    assert "--partition=gpu" in argv


def set_host(folder: Path, resolved: str, addresses: str = "10.0.0.5 fd00::5 ") -> None:
    """Fake `hostname` and `getent`: this node is node0, which resolves to an address, and has these addresses."""
    host = f'[ "$1" = -I ] && echo "{addresses}" || echo node0\n'
    for name, script in {"hostname": host, "getent": f"[ -z '{resolved}' ] || echo '{resolved}       node0'\n"}.items():
        (folder / name).write_text(f"#!/bin/bash\n{script}", encoding="utf-8")
        (folder / name).chmod(0o755)


@pytest.fixture
def fakes(tmp_path: Path) -> Path:
    """Fake srun, docker and others that print their arguments; srun also runs its task, as on one node."""
    folder = tmp_path / "bin"
    folder.mkdir()
    script = '#!/bin/bash\nname="${0##*/}"; for argument; do echo "$name:$argument"; done\n'
    for name in ("srun", "docker", "nvidia-smi", "podium", "apptainer", "python"):
        (folder / name).write_text(script, encoding="utf-8")
    task = 'while [ "$1" != bash ]; do shift; done; exec "$@"\n'
    (folder / "srun").write_text(script + task, encoding="utf-8")
    set_host(folder, "10.0.0.5")
    for path in folder.iterdir():
        path.chmod(0o755)
    return folder


def arguments_of(fakes: Path, name: str, arguments: list[str], cwd: Path = CODE_FOLDER, code: int = 0) -> list[str]:
    done = subprocess.run(
        ["bash", str(CODE_FOLDER / "docker" / "slurm.sub"), *arguments],
        env={"PATH": f"{fakes}:/usr/bin:/bin", **JOB},
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return [line.removeprefix(f"{name}:") for line in done.stdout.splitlines() if line.startswith(f"{name}:")]


PORT = 20000 + 1234567 % 5000 * 2
INSIDE = [
    *DIRECT,
    "--set",
    "launch.requeue=null",
    "--set",
    "launch.nodes=3",
    "--set",
    f"launch.rendezvous=node0:{PORT}",
]
PODIUM_ARGUMENTS = ["run", "laptop", "--set", "seed=1 2", *INSIDE, "--node-rank", "2"]


def test_job_without_a_container_runs_podium_on_every_node(fakes: Path) -> None:
    arguments = ["--python", "python", "laptop", "--set", "seed=1 2"]
    assert arguments_of(fakes, "python", arguments) == ["-m", "podium.cli", *PODIUM_ARGUMENTS]
    assert arguments_of(fakes, "python", ["--doctor", *arguments]) == [
        "-m",
        "podium.cli",
        "doctor",
        *PODIUM_ARGUMENTS[1:],
    ]
    srun = arguments_of(fakes, "srun", arguments)
    assert srun[:4] == ["--ntasks-per-node=1", "--cpus-per-task=96", "--cpu-bind=none", "--kill-on-bad-exit=0"]


@pytest.mark.parametrize(
    ("resolved", "addresses", "expected"),
    [
        ("127.0.1.1", "10.0.0.5 fd00::5 ", "10.0.0.5"),
        ("::1", "fd00::5 ", "[fd00::5]"),
        ("127.0.0.1", "", "node0"),
        ("", "10.0.0.5", "node0"),
    ],
)
def test_rendezvous_uses_an_address_if_the_name_resolves_to_the_loopback(
    fakes: Path, resolved: str, addresses: str, expected: str
) -> None:
    set_host(fakes, resolved, addresses)
    assert f"launch.rendezvous={expected}:{PORT}" in arguments_of(fakes, "python", ["--python", "python", "laptop"])


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A folder that the script accepts as the repository."""
    (tmp_path / "podium" / "cli").mkdir(parents=True)
    (tmp_path / "podium" / "cli" / "main.py").touch()
    return tmp_path


def test_job_in_pyxis(fakes: Path, repository: Path) -> None:
    arguments = ["--pyxis", "/i.sqsh", "--mount", "/d:/data:ro", "--", "laptop", "--set", "seed=1 2"]
    assert arguments_of(fakes, "podium", arguments, repository) == PODIUM_ARGUMENTS
    shared = ",".join(f"{repository}/{name}:/workspace/podium/{name}" for name in ("results", "runs", "data"))
    found = arguments_of(fakes, "srun", arguments, repository)
    assert set(found) >= {
        "--container-image=/i.sqsh",
        f"--container-mounts=/d:/data:ro,{shared}",
        "--container-workdir=/workspace/podium",
    }
    assert (repository / "runs").is_dir()


def test_job_in_apptainer_mounts_nothing_twice(fakes: Path, repository: Path) -> None:
    mount = f"{repository}/runs:/workspace/podium/runs"
    arguments = ["--apptainer", "/i.sif", "--mount", mount, "laptop", "--set", "seed=1 2"]
    found = arguments_of(fakes, "apptainer", arguments, repository)
    rest = ",".join(f"{repository}/{name}:/workspace/podium/{name}" for name in ("results", "data"))
    head = ["exec", "--nv", "--pwd", "/workspace/podium", "--bind", f"{mount},{rest}", "/i.sif", "podium"]
    assert found == [*head, *PODIUM_ARGUMENTS]


@pytest.mark.parametrize("arguments", [[], ["--pixis", "x", "laptop"], ["--mount"], ["--apptainer"], ["--python"]])
def test_invalid_options_start_nothing(fakes: Path, arguments: list[str]) -> None:
    assert arguments_of(fakes, "srun", arguments, code=2) == []


def test_job_from_another_folder_starts_nothing(fakes: Path, tmp_path: Path) -> None:
    assert arguments_of(fakes, "srun", ["laptop"], cwd=tmp_path, code=2) == []


def test_docker_replaces_the_process(fakes: Path, tmp_path: Path) -> None:
    program = (
        "from pathlib import Path\nfrom podium.launch import container as launch_container\n"
        "from podium.config.load import load_system\n"
        f"launch_container.WORKING_FOLDER = Path({str(tmp_path)!r})\n"
        "launch_container.exec_launcher(load_system('dgxa100_n1'), ['docker', 'run', 'a b'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PATH": f"{fakes}:/usr/bin:/bin", "PYTHONPATH": str(CODE_FOLDER)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines() == ["docker:run", "docker:a b"], done.stderr
    assert (tmp_path / "runs" / "dgxa100_n1").is_dir()


def test_missing_launcher_is_an_error() -> None:
    with pytest.raises(
        UsageError, match=r"^launch\.launcher is docker, but no-docker is not installed here; install it$"
    ):
        exec_launcher(load_system("dgxa100_n1"), ["no-docker", "run"])


# --dry-run


def test_dry_run_prints_a_shell_command_and_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("podium.run.run_set.RUNS", tmp_path / "my runs")
    done = CliRunner().invoke(app, ["run", "laptop", "--dry-run", "--runs", "2"])
    assert done.exit_code == 0, done.output
    lines = done.output.replace(INDENT, " ").splitlines()
    assert len(commands_in(lines)) == 2 and lines[0].startswith(
        "# recipe indexed: attention auto, balancing indexed, clipping "
    )
    assert list(tmp_path.iterdir()) == []
    show = "import os, sys; print(sys.argv[1:], os.environ['OMP_NUM_THREADS'], os.getcwd())"
    shell = commands_in(lines)[1].replace(shlex.join([sys.executable, *TORCHRUN]), f'{sys.executable} -c "{show}"')
    found = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True).stdout
    threads = load_system("laptop").launch.threads
    assert found.endswith(f"/run_1', '--caches-cleared'] {threads} {CODE_FOLDER}\n")
    assert f"'implementations.pytorch.train', '{tmp_path}/my runs/laptop/" in found


def test_dry_run_of_several_nodes_is_that_of_this_node() -> None:
    settings = ["launch.nodes=2", "launch.rendezvous=127.0.0.1:29500"]
    lines = dry_run_lines(RunRequest("laptop", settings))
    (first,) = commands_in(lines)
    assert any(line.startswith("# node 0 of 2: ") for line in lines)
    assert "--node-rank=0" in first
    assert "--local-addr=127.0.0.1" in first
    assert "--node-rank=1" in dry_run_lines(RunRequest("laptop", settings, node_rank=1))[-1]
    unknown = ["launch.nodes=2", f"launch.rendezvous={'a' * 64}:29500"]
    assert "--local-addr=ADDRESS" in dry_run_lines(RunRequest("laptop", unknown, node_rank=1))[-1]


def commands_in(lines: list[str]) -> list[str]:
    """The lines of a dry run that are no comments."""
    return [line for line in lines if not line.startswith("#")]


def test_dry_run_of_a_job_is_its_sbatch_command() -> None:
    *_, line = dry_run_lines(RunRequest("dgxa100_n8", ["description.cooling=air, cold"]))
    assert " && sbatch --wait " in line
    assert line.endswith("-- dgxa100_n8 --set 'description.cooling=air, cold'")


# `podium run` by launcher and node rank


def make_mounted_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a folder in place of the repository, with the images and data whose existence is checked, and eight GPUs."""
    monkeypatch.setattr("podium.launch.gpus.count_gpus", lambda: (8, ""))
    monkeypatch.setattr(mounts_module, "WORKING_FOLDER", folder)
    (folder / "data").mkdir()
    for name in ("wikipedia", "wikipedia_128", "evaluation", "vocab.txt", "large.safetensors"):
        (folder / "data" / name).touch()
    for name in ("podium.sqsh", "podium.sif"):
        (folder / name).touch()


def test_run_starts_the_launcher_of_its_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_mounted_files(tmp_path, monkeypatch)
    started: list[list[str]] = []

    def record(config: RunConfig, argv: list[str]) -> None:
        started.append(argv)
        raise SystemExit(0)

    monkeypatch.setattr("podium.run.run_set.exec_launcher", record)
    done = CliRunner().invoke(app, ["run", "dgxa100_n1", "--runs", "3"])
    assert done.exit_code == 0, done.output
    assert started == [launcher_argv(load_system("dgxa100_n1"), "dgxa100_n1", ["--runs", "3"], 0)]


def test_run_with_a_node_rank_is_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    followed: list[int] = []
    monkeypatch.setattr("podium.run.run_set.run_worker_node", lambda config, rank, *_: followed.append(rank))
    monkeypatch.setattr("podium.run.run_set.run_set", lambda *_: pytest.fail("only the first node makes the runs"))
    settings = ["--set", "launch.nodes=4", "--set", "launch.rendezvous=a:29500"]
    done = CliRunner().invoke(app, ["run", "laptop", "--node-rank", "2", *settings])
    assert done.exit_code == 0, done.output
    assert followed == [2]


# Resumed runs


@pytest.fixture
def stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make the folder of a stopped run with a checkpoint; returns it and the commands that are started from then on."""
    make_mounted_files(tmp_path, monkeypatch)
    monkeypatch.setattr(container_module, "WORKING_FOLDER", tmp_path)
    monkeypatch.setattr("podium.run.run_set.WORKING_FOLDER", tmp_path)
    monkeypatch.setattr("podium.run.run_set.RUNS", tmp_path / "runs")
    started: list[list[str]] = []

    def record(config: RunConfig, argv: list[str]) -> None:
        started.append(argv)
        raise SystemExit(0)

    monkeypatch.setattr("podium.run.run_set.exec_launcher", record)

    def make(system: str, *settings: str) -> tuple[Path, list[list[str]]]:
        run = RunFolder(tmp_path / "runs" / system / "2026-11-21" / "run_0")
        checkpoint = checkpoint_path(run.checkpoints, 3)
        checkpoint.mkdir(parents=True)
        rank_file(checkpoint, 0).touch()
        config = load_system(system, settings=[*DIRECT[1::2], *settings]).model_copy(update={"seed": 3})
        facts = format_facts(3, 1234, 0, 0, "", fixed_configuration(config), {})
        (checkpoint / "facts.json").write_text(facts, encoding="utf-8")
        write_resolved(config, run.config)
        return run.path, started

    return make


def run_podium(*arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["run", *arguments])
    error = done.exception
    assert (error.exit_code if isinstance(error, UsageError) else done.exit_code) == code, done.output
    return done.output if error is None or not code else str(error)


NAMED = "runs/{}/2026-11-21/run_0"


def test_run_resumes_in_docker(stopped: Any) -> None:
    folder, started = stopped("dgxa100_n1")
    for named in (str(folder), NAMED.format("dgxa100_n1")):  # the latter from any folder
        run_podium("dgxa100_n1", "--resume", named, "--json", "--set", "launch.timeout_seconds=99")
    assert started[0] == started[1]
    inner = started[0][started[0].index("podium:latest") + 1 :]
    options = ["--resume", NAMED.format("dgxa100_n1"), "--set", "launch.timeout_seconds=99", "--json"]
    assert inner == ["podium", "run", "dgxa100_n1", *options, *DIRECT]


def test_run_resumes_in_a_job_with_its_number_of_nodes(stopped: Any) -> None:
    folder, started = stopped("academic_t4", "launch.nodes=2", "launch.requeue=null", "launch.rendezvous=gone:29500")
    run_podium("academic_t4", "--resume", str(folder))
    assert "--nodes=2" in started[0]
    assert started[0][-4:] == ["--", "academic_t4", "--resume", NAMED.format("academic_t4")]
    line = run_podium("academic_t4", "--resume", str(folder), "--dry-run")
    assert line.replace(INDENT, " ").endswith(f"-- academic_t4 --resume {NAMED.format('academic_t4')}\n")
    assert len(started) == 1


def test_run_outside_of_the_mounts_does_not_resume_in_a_container(stopped: Any, tmp_path: Path) -> None:
    folder, started = stopped("dgxa100_n1")
    moved = folder.rename(tmp_path / "moved")
    message = run_podium("dgxa100_n1", "--resume", str(moved), code=2)
    assert message == (
        f"{moved}: the run resumes in a container (launch.container), which mounts only {tmp_path}/runs; "
        "move the run's folder back there"
    )
    assert started == []


def test_run_that_cannot_be_resumed_is_not_submitted(stopped: Any) -> None:
    folder, started = stopped("dgxa100_n8", "launch.rendezvous=a:29500")  # as docker/slurm.sub gives it
    message = run_podium("dgxa100_n8", "--resume", str(folder), "--set", "launch.nodes=4", code=2)
    assert message.startswith("--set launch.nodes: found 4, but the run was started with 8; ")
    (folder / "summary.json").write_text("{}", encoding="utf-8")
    assert run_podium("dgxa100_n8", "--resume", str(folder), code=2).endswith(
        "is complete and cannot be resumed; start another one"
    )
    assert started == []


def test_run_folder_behind_a_link_is_relative_to_the_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container_module, "WORKING_FOLDER", tmp_path / "here")
    run = tmp_path / "big" / "laptop" / "run_0"
    run.mkdir(parents=True)
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "runs").symlink_to(tmp_path / "big")
    assert portable_path(run) == portable_path(tmp_path / "here/runs/laptop/run_0") == Path("runs/laptop/run_0")
    assert portable_path(tmp_path) == tmp_path


def test_arguments_of_slurm_sub_are_accepted_on_each_node(
    fakes: Path, stopped: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The arguments of docker/slurm.sub on node 2, and as they would be on node 0."""
    folder, started = stopped("laptop", "launch.nodes=3", "global_batch_size=24", "launch.rendezvous=gone:29500")
    arguments = arguments_of(fakes, "python", ["--python", "python", "laptop", "--resume", str(folder)])[2:]
    assert arguments == ["run", "laptop", "--resume", str(folder), *INSIDE, "--node-rank", "2"]
    calls: list[tuple[str, int, str | None]] = []

    def recording(what: str) -> Any:
        def record(config: RunConfig, rank: Any, *_: Any) -> None:
            calls.append((what, rank if what == "follow" else 0, config.launch.rendezvous))
            raise SystemExit(0)

        return record

    monkeypatch.setattr("podium.run.run_set.run_worker_node", recording("follow"))
    monkeypatch.setattr("podium.run.run_set.node_group", recording("gather"))
    run_podium(*arguments[1:])
    run_podium(*arguments[1:-1], "0")
    here = f"node0:{PORT}"
    assert calls == [("follow", 2, here), ("gather", 0, here)]
    assert started == []


def test_manually_started_nodes_resume_by_the_same_command_on_each(
    stopped: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = stopped("laptop", "launch.nodes=2", "launch.rendezvous=a:29500")
    calls: list[tuple[int, str | None]] = []
    monkeypatch.setattr(
        "podium.run.run_set.run_worker_node", lambda config, rank, *_: calls.append((rank, config.launch.rendezvous))
    )
    run_podium("laptop", "--resume", str(folder), "--node-rank", "1")
    run_podium("laptop", "--resume", str(folder), "--node-rank", "1", "--set", "launch.rendezvous=b:29500")
    assert calls == [(1, "a:29500"), (1, "b:29500")]
    line = run_podium("laptop", "--resume", str(folder), "--dry-run", "--set", "launch.rendezvous=127.0.0.1:29500")
    (command,) = commands_in(line.replace(INDENT, " ").splitlines())
    assert command.endswith(f"implementations.pytorch.train {folder}/config.yaml {folder}")


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fake docker that prints a digest, and appends its arguments to the file that is returned."""
    program, calls = tmp_path / "docker", tmp_path / "calls.txt"
    version = '[ "$2" = version ] && exit "${NO_BUILDX:-0}"'
    script = f'{version}\necho "$@" >>{calls}\n[ "$1" = buildx ] && echo "$DIGEST"\nexit "${{FAILS:-0}}"'
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("DIGEST", PINNED)
    return calls


PINNED = "sha256:" + "5" * 64


def _build(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([CODE_FOLDER / "docker/build.sh", *options], capture_output=True, text=True, check=False)


def test_base_image_is_pinned_by_its_digest(docker: Path) -> None:
    base = next(
        line.removeprefix("ARG FROM_IMAGE=")
        for line in (CODE_FOLDER / "docker/Dockerfile").read_text().splitlines()
        if line.startswith("ARG FROM_IMAGE=")
    )
    assert _build("--print").stdout == f"{base}@{PINNED}\n"
    assert _build("--no-cache").returncode == 0
    assert f"--build-arg FROM_IMAGE={base}@{PINNED} --tag podium:latest --no-cache ." in docker.read_text()


def test_digest_of_a_pinned_base_is_not_requested(docker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FROM_IMAGE", f"registry.example/torch@{PINNED}")
    assert _build("--print").stdout == f"registry.example/torch@{PINNED}\n"
    assert not docker.exists()


@pytest.mark.parametrize(
    "digest", ["sha256:abc", f"sha256:{'G' * 64}", "sha256:", "md5:5", f"{PINNED}5", PINNED.upper()]
)
def test_invalid_digest_is_refused(docker: Path, monkeypatch: pytest.MonkeyPatch, digest: str) -> None:
    monkeypatch.setenv("FROM_IMAGE", f"x@{digest}")
    done = _build()
    assert (done.returncode, done.stdout) == (2, "") and not docker.exists()
    assert done.stderr.startswith(
        f"docker/build.sh: FROM_IMAGE: found 'x@{digest}', whose digest is not sha256: and 64 "
    )


def test_missing_buildx_is_an_error(docker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_BUILDX", "1")
    done = _build()
    assert done.returncode == 1 and not docker.exists()
    assert (
        "is asked for by 'docker buildx', which is not here; install Docker and its plugin buildx, or give"
        in done.stderr
    )


@pytest.mark.parametrize(("digest", "fails"), [(PINNED, "1"), ("latest", "0"), ("", "0")])
def test_nothing_is_built_without_a_digest(
    docker: Path, monkeypatch: pytest.MonkeyPatch, digest: str, fails: str
) -> None:
    monkeypatch.setenv("DIGEST", digest)
    monkeypatch.setenv("FAILS", fails)
    done = _build()
    assert done.returncode == 1 and done.stderr.startswith("docker/build.sh: ") and "FROM_IMAGE=NAME@" in done.stderr
    assert "--tag" not in docker.read_text()
