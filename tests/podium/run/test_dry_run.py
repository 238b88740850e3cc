"""`podium run --dry-run`: what is printed is what would be run, for every system, recipe and launcher."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from podium.config.load import recipe_files, system_names
from podium.config.run_folder import RunFolder
from podium.core.errors import UsageError
from podium.core.paths import WORKING_FOLDER
from podium.launch import launch
from podium.launch.container import JOB_SCRIPT
from podium.run.dry_run import dry_run
from podium.run.run_set import RunRequest, execute
from tests.podium.conftest import WriteSystem, run_podium

RECIPES = [path.stem for path in recipe_files("pytorch")]
LAUNCHERS = {
    "torchrun": ("launch.launcher=torchrun", "launch.container=null"),
    "docker": ("launch.launcher=docker", "launch.container={runtime: docker, image: podium}"),
    "slurm": ("launch.launcher=slurm", "launch.container=null"),
    "pyxis": ("launch.launcher=slurm", "launch.container={runtime: pyxis, image: podium.sqsh}"),
    "apptainer": ("launch.launcher=slurm", "launch.container={runtime: apptainer, image: podium.sif}"),
}
DATA_KEYS = ("store", "evaluation_store", "vocabulary")
ONLY_SLURM = ("launch.slurm_options=[]", "launch.requeue=null")
# Prints what it was called with, one argument after the other: in place of the programs of a command.
PRINT = 'show() { printf "%s\\0" "$@"; }; cd() { :; }; env() { show "$@"; }; docker() { show docker "$@"; }; '
PRINT += 'sbatch() { show sbatch "$@"; }; mkdir() { :; }; '


def parsed_by_a_shell(text: str) -> list[str]:
    """The arguments of a printed command as bash passes them on."""
    done = subprocess.run(["bash", "-c", PRINT + text], capture_output=True, check=True)
    return done.stdout.decode().split("\0")[:-1]


@pytest.mark.parametrize("system", system_names())
def test_every_recipe_and_launcher_has_a_command(system: str) -> None:
    resolved = set()
    for recipe in RECIPES:
        for launcher, settings in LAUNCHERS.items():
            options = [*settings, *(ONLY_SLURM if settings[0] != "launch.launcher=slurm" else ())]
            if launcher in ("torchrun", "docker"):
                options.append("launch.rendezvous=127.0.0.1:29500")
            try:
                planned = dry_run(RunRequest(system, options, recipe))
            except UsageError:  # such as a recipe without hyper-parameters for this batch size
                continue
            resolved.add(launcher)
            (command,) = planned.commands
            lines = command.text.split(" \\\n    ")
            assert [line for line in lines if line.count(" --") > 1 or line != line.strip()] == []
            program = {"torchrun": sys.executable, "docker": "docker"}.get(launcher, "sbatch")
            assert command.argv[0] == program
            assert planned.script == (JOB_SCRIPT if program == "sbatch" else None)
            assert json.loads(json.dumps(planned.as_json()))["commands"][0]["argv"] == list(command.argv)
    assert resolved == set(LAUNCHERS)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_printed_command_is_parsed_as_its_argv(launcher: str) -> None:
    options = [*LAUNCHERS[launcher], *ONLY_SLURM, 'description.cooling=it\'s air, "cold" $HOME']
    (command,) = dry_run(RunRequest("laptop", options)).commands
    variables = [f"{name}={value}" for name, value in command.environment.items()]
    assert parsed_by_a_shell(command.text) == parsed_by_a_shell(command.line) == [*variables, *command.argv]


@pytest.mark.parametrize("launcher", ["docker", "slurm"])
def test_the_pasted_command_makes_the_folders_that_run_makes(launcher: str, tmp_path: Path) -> None:
    """Slurm ends a job without a message if the folder of its output is missing."""
    (command,) = dry_run(RunRequest("laptop", [*LAUNCHERS[launcher], *ONLY_SLURM])).commands
    pasted = replace(command, folder=tmp_path)
    for text in (pasted.text, pasted.line):
        subprocess.run(["bash", "-c", "docker() { :; }; sbatch() { :; }; " + text], check=True)
        assert (tmp_path / "runs" / "laptop").is_dir() and (tmp_path / "results").is_dir()
        shutil.rmtree(tmp_path)
        tmp_path.mkdir()


@pytest.mark.parametrize("launcher", ["docker", "pyxis"])
def test_a_launcher_gets_the_printed_argv(launcher: str, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []

    def record(config: Any, argv: list[str]) -> None:
        started.append(argv)
        raise SystemExit

    monkeypatch.setattr("podium.run.run_set.exec_launcher", record)
    monkeypatch.setattr("podium.run.run_set.validate_mounts", lambda *_: None)
    request = RunRequest("laptop", [*LAUNCHERS[launcher], *ONLY_SLURM])
    with pytest.raises(SystemExit):
        list(execute(request, None))  # type: ignore[arg-type]
    (command,) = dry_run(request).commands
    assert started == [command.argv]


def test_torchrun_gets_the_printed_argv_and_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for the temporary folder of the run, which has another name each time."""
    started: dict[str, Any] = {}

    class Started(Exception):
        pass

    def popen(argv: list[str], **options: Any) -> None:
        started.update(options, argv=argv)
        raise Started

    monkeypatch.setattr(launch.subprocess, "Popen", popen)
    request = RunRequest("laptop", resumed=None)
    (command,) = dry_run(request).commands
    folder = RunFolder(tmp_path)
    with pytest.raises(Started):
        launch.run_processes(request.config, folder, "train", ["--caches-cleared"], lambda: None)
    private = started["env"]["PODIUM_HEARTBEATS"].removesuffix("/heartbeats")
    of_run = str(Path(command.argv[-3]).parent)

    def here(text: str) -> str:
        return text.replace(f"{of_run}/private", private).replace(of_run, str(tmp_path))

    assert started["argv"] == [here(argument) for argument in command.argv]
    assert started["cwd"] == command.folder == WORKING_FOLDER
    assert {name: here(value) for name, value in command.environment.items()}.items() <= started["env"].items()


def test_json_has_settings_and_files_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("podium.run.run_set.RUNS", tmp_path / "runs")
    done = run_podium("run", "laptop", "--dry-run", "--json", "--runs", "2", "--set", "checkpoint={}")
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert (document["system"], document["recipe"], document["launcher"]) == ("laptop", "indexed", "torchrun")
    assert document["settings"]["global_batch_size"] > 0 and document["warnings"] == []
    assert [command["argv"][-1] for command in document["commands"]] == ["--caches-cleared"] * 2
    names = {str(Path(path).name) for path in document["files"]}
    assert {"config.yaml", "metrics.jsonl", "checkpoints", "set.json", "result_0.txt", "result_1.txt"} <= names
    assert list(tmp_path.iterdir()) == []


def test_json_of_a_job_names_its_script() -> None:
    done = run_podium("run", "dgxa100_n8", "--dry-run", "--json")
    document = json.loads(done.stdout)
    (command,) = document["commands"]
    assert command["argv"][0] == "sbatch" and "--json" not in command["argv"]
    assert document["script"] == str(JOB_SCRIPT) in command["argv"]
    assert (document["nodes"], document["processes"]) == (8, 64)


def test_data_that_this_machine_lacks_is_a_warning(tmp_path: Path) -> None:
    present = tmp_path / "vocab.txt"
    present.write_text("[PAD]\n", encoding="utf-8")
    settings = [
        f"data.store={tmp_path}/none",
        f"data.evaluation_store={tmp_path}/none_either",
        f"data.vocabulary={present}",
    ]
    assert dry_run(RunRequest("laptop", settings)).warnings == [
        f"data.store: {tmp_path}/none does not exist on this machine: `podium run` would fail here",
        f"data.evaluation_store: {tmp_path}/none_either does not exist on this machine: `podium run` would fail here",
    ]


def test_data_that_a_slurm_job_may_lack_is_a_warning_unless_a_container_has_it(tmp_path: Path) -> None:
    settings = ["launch.launcher=slurm", *(f"data.{key}={tmp_path}/none" for key in DATA_KEYS)]
    found = [warning for warning in dry_run(RunRequest("laptop", settings)).warnings if "exist" in warning]
    assert found == [
        f"data.{key}: {tmp_path}/none does not exist on this machine; the run fails if it does not exist on the job's "
        "nodes either"
        for key in DATA_KEYS
    ]
    inside = [*settings, "launch.container={runtime: pyxis, image: podium.sqsh}"]
    assert not [one for one in dry_run(RunRequest("laptop", inside)).warnings if "on the job's nodes" in one]


def test_the_embedded_text_needs_no_file() -> None:
    assert dry_run(RunRequest("laptop")).warnings == []


def test_what_run_would_refuse_here_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("podium.launch.gpus.count_gpus", lambda: (0, "no driver"))
    planned = dry_run(RunRequest("h200_1x"))
    refused = (
        "`podium run` would fail here: launch.device is cuda and launch.processes_per_node is 1, but this machine "
        "has no GPU (no driver)"
    )
    (warning,) = [one for one in planned.warnings if one.startswith(refused)]
    assert f"# WARNING: {refused}" in planned.text and warning in planned.as_json()["warnings"]


def test_too_few_gpus_for_docker_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    request = RunRequest("laptop", [*LAUNCHERS["docker"], *ONLY_SLURM, "launch.device=cuda"])
    monkeypatch.setattr("podium.launch.gpus.count_gpus", lambda: (1, ""))
    before = list(dry_run(request).warnings)
    monkeypatch.setattr("podium.launch.gpus.count_gpus", lambda: (0, "no driver"))
    (added,) = [one for one in dry_run(request).warnings if one not in before]
    assert added.startswith("`podium run` would fail here: launch.device is cuda")
    assert "but this machine has no GPU (no driver); see `nvidia-smi`, run on" in added


@pytest.mark.parametrize("launcher", ["torchrun", "docker"])
def test_several_nodes_without_an_address_to_meet_at_are_refused(
    launcher: str, write_system: WriteSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both by a dry run and by a run, before it starts Docker or reads whether PyTorch is installed."""
    container = {"runtime": "docker", "image": "podium"} if launcher == "docker" else None
    path = write_system({"launch.launcher": launcher, "launch.container": container, "launch.nodes": 2})
    monkeypatch.setattr("podium.run.run_set.exec_launcher", lambda *_: pytest.fail("docker was started"))
    monkeypatch.setattr("podium.run.run_set.require_torch", lambda: pytest.fail("PyTorch was looked up"))
    request = RunRequest(str(path))
    for begin in (lambda: dry_run(request), lambda: list(execute(request, None))):  # type: ignore[arg-type]
        with pytest.raises(UsageError) as error:
            begin()
        assert str(error.value) == (
            f"{path}: launch.nodes is 2, but launch.rendezvous is missing; set it to HOST:PORT of the first node, such "
            "as --set launch.rendezvous=node0:29500"
        )
    assert dry_run(RunRequest(str(path), ["launch.rendezvous=127.0.0.1:29500"])).commands


@pytest.mark.parametrize(("launcher", "program"), [("docker", "docker"), ("pyxis", "sbatch")])
def test_a_missing_program_of_the_launcher_is_a_warning(
    launcher: str, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = RunRequest("laptop", [*LAUNCHERS[launcher], *ONLY_SLURM])
    monkeypatch.setattr("podium.launch.container.shutil.which", lambda name: f"/usr/bin/{name}")
    before = list(dry_run(request).warnings)
    monkeypatch.setattr("podium.launch.container.shutil.which", lambda name: None)
    (added,) = [one for one in dry_run(request).warnings if one not in before]
    assert added.startswith("`podium run` would fail here: launch.launcher is ")
    assert added.endswith(f"but {program} is not installed here; install it")


def test_only_the_command_of_torchrun_needs_files_that_run_writes() -> None:
    planned = dry_run(RunRequest("laptop"))
    config = planned.commands[0].argv[-3]
    assert f"# written by `podium run` before this command: {config}, and a private folder; run `podium run " in (
        planned.text
    )
    docker = dry_run(RunRequest("laptop", [*LAUNCHERS["docker"], *ONLY_SLURM]))
    assert "instead of pasting" not in docker.text
