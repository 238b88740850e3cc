"""Configuration of a resumed run."""

from pathlib import Path
from typing import Any

import pytest

from podium.config.load import load_resumed, load_system, write_resolved
from podium.config.run_folder import RunFolder
from podium.config.schema import RunConfig
from podium.core.errors import UsageError

JOB = ("launch.launcher=torchrun", "launch.container=null", "launch.slurm_options=[]")


@pytest.fixture
def store_run(tmp_path: Path) -> Any:
    """Factory of the folder of a run that was started with these settings."""

    def store(system: str, *settings: str) -> tuple[RunFolder, RunConfig]:
        config = load_system(system, settings=settings)
        write_resolved(config, RunFolder(tmp_path).config)
        return RunFolder(tmp_path), config

    return store


def test_resumed_run_has_its_stored_configuration(store_run: Any) -> None:
    settings = ("recipe=padded", "launch.processes_per_node=2", "launch.timeout_seconds=5", "dropout=0")
    folder, config = store_run("laptop", *settings)
    assert load_resumed(folder, "laptop") == config


def test_placement_of_a_resumed_run_is_the_systems(store_run: Any) -> None:
    """The stored configuration was written inside the job, where the launcher is torchrun."""
    folder, config = store_run("dgxa100_n8", *JOB, "launch.rendezvous=gone:23456", "launch.nodes=8")
    assert config.launch.launcher == "torchrun"
    assert load_resumed(folder, "dgxa100_n8").launch == load_system("dgxa100_n8").launch.model_copy(
        update={"rendezvous": "gone:23456"}
    )
    inside = ("launch.rendezvous=n1:20000", "launch.nodes=8")
    found = load_resumed(folder, "dgxa100_n8", [*JOB, *inside])
    assert found == config.model_copy(update={"launch": config.launch.model_copy(update={"rendezvous": "n1:20000"})})


def test_launch_options_of_a_resumed_run_can_be_overridden(store_run: Any) -> None:
    folder, config = store_run("laptop")
    new = {"binding": "cores", "caches": "samples", "max_restarts": 3, "timeout_seconds": 7.5, "rendezvous": "a:1"}
    found = load_resumed(folder, "laptop", [f"launch.{key}={value}" for key, value in new.items()])
    assert found == config.model_copy(update={"launch": config.launch.model_copy(update=new)})
    image = ["launch.launcher=docker", "launch.container.runtime=docker", "launch.container.image=x"]
    container = load_resumed(folder, "laptop", image).launch.container
    assert container is not None and container.image == "x"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("launch.nodes=3", "launch.nodes: found 3, but the run was started with 1; with --resume leave it out"),
        ("launch.processes_per_node=2", "launch.processes_per_node: found 2, but the run was started with 1; "),
        ("launch.threads_per_process=1", "launch.threads_per_process: found 1, but the run was started with 2"),
        (
            "dropout=0",
            "dropout: a resumed run keeps its configuration; with --resume leave it out, or start another run",
        ),
        ("optimizer.beta1=0.5", "optimizer: a resumed run keeps its configuration"),
        ("bert.seed=3", "seed: a resumed run keeps its configuration"),
        ("launch=3", "launch: a resumed run keeps its configuration"),
        ("launch.bindings=none", "launch.bindings: there is no such key (did you mean binding?)"),
        ("launch.timeout_seconds=0", "launch.timeout_seconds: found 0; allowed: greater than 0"),
    ],
)
def test_settings_that_affect_results_are_refused_on_resume(store_run: Any, setting: str, message: str) -> None:
    folder, _ = store_run("laptop", "launch.threads_per_process=2")
    with pytest.raises(UsageError) as caught:
        load_resumed(folder, "laptop", [setting])
    assert message in str(caught.value)
    assert str(caught.value).startswith(("--set ", "--set "))


def test_thread_count_can_be_overridden_on_a_gpu(store_run: Any) -> None:
    folder, _ = store_run("h200_1x")
    assert load_resumed(folder, "h200_1x", ["launch.threads_per_process=3"]).launch.threads == 3


def test_resumed_run_of_another_system_is_refused(store_run: Any, write_system: Any) -> None:
    path = str(write_system({}))
    folder, config = store_run(path)
    assert load_resumed(folder, path) == config
    with pytest.raises(UsageError, match="is a run of mine, not of laptop; name mine"):
        load_resumed(folder, "laptop")


def test_folder_without_a_configuration_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"holds no config\.yaml; name the folder of a run, runs/SYSTEM"):
        load_resumed(RunFolder(tmp_path), "laptop")
