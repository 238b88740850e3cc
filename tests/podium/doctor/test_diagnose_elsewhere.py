"""`podium doctor` in a container, or on the nodes of a Slurm job."""

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
from podium.launch.container import exec_launcher, launcher_argv
from podium.launch.node_group import run_worker_node

LARGE = ("data/wikipedia", "data/wikipedia_128", "data/evaluation", "data/vocab.txt", "data/large.safetensors")


class Started(Exception):
    """Command line that would have replaced this process."""

    def __init__(self, argv: list[str]) -> None:
        super().__init__()
        self.argv = argv


@pytest.fixture(autouse=True)
def root(tmp_path: Path, places: Places, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in place of the repository, with the images and data whose existence is checked."""
    for name in LARGE:
        (tmp_path / name).mkdir(parents=True)
    for name in ("podium.sqsh", "podium.sif"):
        (tmp_path / name).touch()
    for module in ("podium.launch.container", "podium.launch.mounts"):
        monkeypatch.setattr(f"{module}.WORKING_FOLDER", tmp_path)
    monkeypatch.setattr("podium.run.run_set.RUNS", places.runs)
    monkeypatch.setattr("podium.run.results.RESULTS", places.results)
    monkeypatch.setattr("podium.run.data.DATA", places.data)
    monkeypatch.setattr(
        "podium.doctor.diagnose.collect_context", lambda *_: pytest.fail("the diagnostics must not run on this machine")
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(config: RunConfig, argv: list[str]) -> None:
        raise Started(argv)

    monkeypatch.setattr(diagnose_module, exec_launcher.__name__, stop)


def found(system: str, *settings: str) -> dict[str, Finding]:
    findings = diagnose(system, None, settings, lambda _: None)
    assert findings is not None
    return {finding.rule: finding for finding in findings}


@pytest.mark.usefixtures("caught")
@pytest.mark.parametrize("system", ["dgxa100_n1", "dgxa100_n8", "dgxa100_n171", "academic_t4"])
def test_doctor_starts_the_launcher_of_the_run(system: str) -> None:
    done = CliRunner().invoke(app, ["doctor", system, "--json", "--set", "description.cooling=air, cold"])
    assert isinstance(done.exception, Started), done.output
    options = ["--set", "description.cooling=air, cold", "--json"]
    assert done.exception.argv == launcher_argv(load_system(system), system, options, 0, "doctor")


def test_container_and_job_run_the_doctor_command() -> None:
    options = ["--json"]
    docker, run = (
        launcher_argv(load_system("dgxa100_n1"), "dgxa100_n1", options, 0, name) for name in ("doctor", "run")
    )
    (place,) = (number for number, (a, b) in enumerate(zip(docker, run, strict=True)) if a != b)
    assert docker[place - 1 : place + 3] == ["podium", "doctor", "dgxa100_n1", "--json"]
    job = launcher_argv(load_system("dgxa100_n8"), "dgxa100_n8", options, 0, "doctor")
    assert "--doctor" in job[job.index("--chdir=" + str(Path.cwd())) : job.index("--")]
    assert "--doctor" not in launcher_argv(load_system("dgxa100_n8"), "dgxa100_n8", options, 0)


def test_missing_launcher_still_yields_the_local_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    findings = found("dgxa100_n128", "max_samples=1000", "seed=3", "description.number_of_nodes=7")
    launcher = next(iter(findings.values()))
    assert (launcher.rule, launcher.severity) == ("launcher", "error")
    assert launcher.message == (
        "launch.launcher is slurm, but sbatch is not installed here; install it: no diagnostics ran on its nodes, only "
        "checks on this machine"
    )
    assert launcher.advice
    verdicts = {check: finding.severity for check, finding in findings.items()}
    assert verdicts["mounts"] == verdicts["runs folder"] == "ok"
    assert verdicts["max_samples"] == verdicts["number of nodes"] == "error"
    assert verdicts["seed"] == verdicts["description"] == "warning"
    assert not set(verdicts) & {"device", "ranks", "paths", "data", "checkpoint", "host processor vcpu count"}


def test_refused_job_is_a_finding(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "bin").mkdir()
    sbatch = root / "bin" / "sbatch"
    sbatch.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", f"{root / 'bin'}:/usr/bin:/bin")
    launcher = found("laptop", "launch.launcher=slurm")["launcher"]
    assert launcher.severity == "error"
    assert "sbatch did not submit the job (exit code 1" in launcher.message


def test_interruption_is_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise Interrupted("interrupted; the Slurm job continues")

    monkeypatch.setattr(diagnose_module, exec_launcher.__name__, interrupted)
    with pytest.raises(Interrupted):
        diagnose("dgxa100_n8", None, [], lambda _: None)


@pytest.mark.usefixtures("caught")
@pytest.mark.parametrize(
    ("system", "name", "message"),
    [
        ("dgxa100_n8", "podium.sqsh", "launch.container.image: {} does not exist"),
        ("academic_t4", "podium.sif", "launch.container.image: {} does not exist"),
        ("dgxa100_n1", "data", "data.store: /data/wikipedia in the container is {}/wikipedia on this machine, which"),
        (
            "dgxa100_n1",
            "data/vocab.txt",
            "data.vocabulary: /data/vocab.txt in the container is {} on this machine, which does not exist",
        ),
        (
            "dgxa100_n8",
            "data/large.safetensors",
            "initial_checkpoint: /data/large.safetensors in the container is {} on this machine, which",
        ),
        (
            "academic_t4",
            "data/wikipedia_128",
            "phases.0.store: /data/wikipedia_128 in the container is {} on this machine, which does not exist",
        ),
    ],
)
def test_missing_files_of_a_container_are_found_before_it_starts(
    root: Path, system: str, name: str, message: str
) -> None:
    (root / name).rename(root / "elsewhere")
    findings = found(system)
    assert findings["mounts"].severity == "error"
    assert message.format(root / name) in findings["mounts"].message
    assert "the container's image, mounts or data are not all there" in findings["launcher"].message


@pytest.mark.usefixtures("caught")
def test_absolute_paths_of_a_job_are_not_checked_here(write_system: Any) -> None:
    """A job's nodes may have a local disk /raid; for a container on this machine it must exist here."""
    container = {"runtime": "pyxis", "image": "/raid/podium.sqsh", "mounts": ["/raid/no:/data"]}
    launch = {"launch.launcher": "slurm", "launch.container": container}
    with pytest.raises(Started):
        found(str(write_system(launch)))
    launch = {"launch.launcher": "docker", "launch.container": container | {"runtime": "docker"}}
    assert found(str(write_system(launch)))["mounts"].severity == "error"


@pytest.mark.usefixtures("caught")
def test_unmounted_path_is_only_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    """The image may contain it."""
    with pytest.raises(Started):
        found("dgxa100_n1", "data.store=/other/wikipedia", "data.vocabulary=/database/vocab.txt")
    warning = " ".join(capsys.readouterr().err.split())
    assert "data.store: /other/wikipedia and data.vocabulary: /database/vocab.txt are under no mount" in warning


def test_node_rank_with_slurm_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match=r"^--node-rank: found 1, but launch\.launcher is slurm"):
        diagnose("dgxa100_n8", None, [], lambda _: None, node_rank=1)


def test_worker_node_joins_the_first_and_prints_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks: list[int] = []
    monkeypatch.setattr(diagnose_module, run_worker_node.__name__, lambda config, rank, *_: ranks.append(rank))
    settings = ["--set", "launch.nodes=4", "--set", "launch.rendezvous=a:29500"]
    done = CliRunner().invoke(app, ["doctor", "laptop", "--node-rank", "2", "--json", *settings])
    assert (done.exit_code, done.stdout) == (0, "")
    assert ranks == [2]
