"""`podium doctor` where the system's launcher has it continue: in a container, or on the nodes of a Slurm job."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from podium.cli.main import app
from podium.config.load import load_system
from podium.config.schema import RunConfig
from podium.core.errors import Interrupted, UsageError
from podium.core.finding import Finding
from podium.doctor import diagnose as diagnose_module
from podium.doctor.context import Places
from podium.doctor.diagnose import diagnose
from podium.launch.container import wrapped

LARGE = ("data/wikipedia", "data/wikipedia_128", "data/evaluation", "data/vocab.txt", "data/large.safetensors")


class Became(Exception):
    """The words of what Podium would have become."""

    def __init__(self, config: RunConfig, words: list[str]) -> None:
        super().__init__()
        self.words = words


@pytest.fixture(autouse=True)
def root(tmp_path: Path, places: Places, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository's folder with an image and data of size large, as far as is looked at them from outside."""
    for name in LARGE:
        (tmp_path / name).mkdir(parents=True)
    for name in ("podium.sqsh", "podium.sif"):
        (tmp_path / name).touch()
    for module in ("podium.launch.container", "podium.launch.mounts"):
        monkeypatch.setattr(f"{module}.WORKING_FOLDER", tmp_path)
    monkeypatch.setattr("podium.run.run_set.RUNS", places.runs)
    monkeypatch.setattr("podium.run.results.RESULTS", places.results)
    monkeypatch.setattr("podium.run.data.DATA", places.data)
    monkeypatch.setattr("podium.doctor.diagnose.examine", lambda *_: pytest.fail("this is not where it would run"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(config: RunConfig, words: list[str]) -> None:
        raise Became(config, words)

    monkeypatch.setattr(diagnose_module, "become", stop)


def found(system: str, *settings: str) -> dict[str, Finding]:
    findings = diagnose(system, None, settings, lambda _: None)
    assert findings is not None
    return {finding.rule: finding for finding in findings}


@pytest.mark.usefixtures("caught")
@pytest.mark.parametrize("system", ["dgxa100_n1", "dgxa100_n8", "dgxa100_n171", "academic_t4"])
def test_it_goes_on_where_the_run_would(system: str) -> None:
    done = CliRunner().invoke(app, ["doctor", system, "--json", "--set", "description.cooling=air, cold"])
    assert isinstance(done.exception, Became), done.output
    options = ["--set", "description.cooling=air, cold", "--json"]
    assert done.exception.words == wrapped(load_system(system), system, options, 0, "doctor")


def test_a_container_and_a_job_are_told_to_examine() -> None:
    options = ["--json"]
    docker, run = (wrapped(load_system("dgxa100_n1"), "dgxa100_n1", options, 0, name) for name in ("doctor", "run"))
    (there,) = (number for number, (a, b) in enumerate(zip(docker, run, strict=True)) if a != b)
    assert docker[there - 1 : there + 3] == ["podium", "doctor", "dgxa100_n1", "--json"]
    job = wrapped(load_system("dgxa100_n8"), "dgxa100_n8", options, 0, "doctor")
    assert "--doctor" in job[job.index("--chdir=" + str(Path.cwd())) : job.index("--")]
    assert "--doctor" not in wrapped(load_system("dgxa100_n8"), "dgxa100_n8", options, 0)


def test_without_the_launcher_what_is_seen_from_here_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    findings = found("dgxa100_n128", "max_samples=1000", "seed=3", "description.number_of_nodes=7")
    launcher = next(iter(findings.values()))
    assert (launcher.rule, launcher.severity) == ("launcher", "error")
    assert launcher.message == (
        "launch.launcher is slurm, but there is no sbatch here; install it: nothing was examined on its nodes, only "
        "what is seen from here"
    )
    assert launcher.advice
    verdicts = {check: finding.severity for check, finding in findings.items()}
    assert verdicts["mounts"] == verdicts["runs folder"] == "ok"
    assert verdicts["max_samples"] == verdicts["number of nodes"] == "error"
    assert verdicts["seed"] == verdicts["description"] == "warning"
    assert not set(verdicts) & {"device", "ranks", "paths", "data", "checkpoint", "host processor vcpu count"}


def test_a_job_that_is_not_taken(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "bin").mkdir()
    sbatch = root / "bin" / "sbatch"
    sbatch.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", f"{root / 'bin'}:/usr/bin:/bin")
    launcher = found("laptop", "launch.launcher=slurm")["launcher"]
    assert launcher.severity == "error"
    assert "sbatch did not take the job (exit code 1" in launcher.message


def test_an_interruption_is_none_of_the_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise Interrupted("interrupted; the Slurm job goes on")

    monkeypatch.setattr(diagnose_module, "become", interrupted)
    with pytest.raises(Interrupted):
        diagnose("dgxa100_n8", None, [], lambda _: None)


@pytest.mark.usefixtures("caught")
@pytest.mark.parametrize(
    ("system", "name", "words"),
    [
        ("dgxa100_n8", "podium.sqsh", "launch.container.image: {} does not exist"),
        ("academic_t4", "podium.sif", "launch.container.image: {} does not exist"),
        ("dgxa100_n1", "data", "data.store: /data/wikipedia in the container is {}/wikipedia here, which"),
        (
            "dgxa100_n1",
            "data/vocab.txt",
            "data.vocabulary: /data/vocab.txt in the container is {} here, which does not exist",
        ),
        (
            "dgxa100_n8",
            "data/large.safetensors",
            "initial_checkpoint: /data/large.safetensors in the container is {} here, which",
        ),
        (
            "academic_t4",
            "data/wikipedia_128",
            "phases.0.store: /data/wikipedia_128 in the container is {} here, which does not exist",
        ),
    ],
)
def test_what_a_container_lacks_is_told_before_it_starts(root: Path, system: str, name: str, words: str) -> None:
    (root / name).rename(root / "elsewhere")
    findings = found(system)
    assert findings["mounts"].severity == "error"
    assert words.format(root / name) in findings["mounts"].message
    assert "what its container is given is not all there" in findings["launcher"].message


@pytest.mark.usefixtures("caught")
def test_what_only_the_nodes_see_is_left_to_them(write_system: Any) -> None:
    """A job's nodes may have a disk /raid of their own; a container here has not."""
    container = {"runtime": "pyxis", "image": "/raid/podium.sqsh", "mounts": ["/raid/no:/data"]}
    launch = {"launch.launcher": "slurm", "launch.container": container}
    with pytest.raises(Became):
        found(str(write_system(launch)))
    launch = {"launch.launcher": "docker", "launch.container": container | {"runtime": "docker"}}
    assert found(str(write_system(launch)))["mounts"].severity == "error"


@pytest.mark.usefixtures("caught")
def test_a_path_that_is_under_no_mount_is_left_to_the_container(capsys: pytest.CaptureFixture[str]) -> None:
    """An image may hold it."""
    with pytest.raises(Became):
        found("dgxa100_n1", "data.store=/other/wikipedia", "data.vocabulary=/database/vocab.txt")
    warning = " ".join(capsys.readouterr().err.split())
    assert "data.store: /other/wikipedia and data.vocabulary: /database/vocab.txt are under no mount" in warning


def test_a_number_where_slurm_numbers_is_wrong_use() -> None:
    with pytest.raises(UsageError, match=r"^--node-rank: found 1, but launch\.launcher is slurm"):
        diagnose("dgxa100_n8", None, [], lambda _: None, node_rank=1)


def test_another_node_follows_the_first_and_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    followed: list[int] = []
    monkeypatch.setattr("podium.doctor.diagnose.follow", lambda config, rank, *_: followed.append(rank))
    settings = ["--set", "launch.nodes=4", "--set", "launch.rendezvous=a:29500"]
    done = CliRunner().invoke(app, ["doctor", "laptop", "--node-rank", "2", "--json", *settings])
    assert (done.exit_code, done.stdout) == (0, "")
    assert followed == [2]
