"""The configuration that a run goes on with."""

from pathlib import Path
from typing import Any

import pytest

from podium.config.load import load_resumed, load_system, write_resolved
from podium.config.run_folder import RunFolder
from podium.config.schema import RunConfig
from podium.core.errors import UsageError

JOB = ("launch.launcher=torchrun", "launch.container=null", "launch.slurm_options=[]")


@pytest.fixture
def kept(tmp_path: Path) -> Any:
    """The folder of a run that was made with these settings."""

    def keep(system: str, *settings: str) -> tuple[RunFolder, RunConfig]:
        config = load_system(system, settings=settings)
        write_resolved(config, RunFolder(tmp_path).config)
        return RunFolder(tmp_path), config

    return keep


def test_a_run_goes_on_as_it_was_configured(kept: Any) -> None:
    settings = ("recipe=padded", "launch.processes_per_node=2", "launch.timeout_seconds=5", "dropout=0")
    folder, config = kept("laptop", *settings)
    assert load_resumed(folder, "laptop") == config


def test_where_it_goes_on_is_what_the_system_says(kept: Any) -> None:
    """What is kept is what was said inside the job."""
    folder, config = kept("dgxa100_n8", *JOB, "launch.rendezvous=gone:23456", "launch.nodes=8")
    assert config.launch.launcher == "torchrun"
    assert load_resumed(folder, "dgxa100_n8").launch == load_system("dgxa100_n8").launch.model_copy(
        update={"rendezvous": "gone:23456"}
    )
    inside = ("launch.rendezvous=n1:20000", "launch.nodes=8")
    found = load_resumed(folder, "dgxa100_n8", [*JOB, *inside])
    assert found == config.model_copy(update={"launch": config.launch.model_copy(update={"rendezvous": "n1:20000"})})


def test_how_it_is_started_may_be_set_anew(kept: Any) -> None:
    folder, config = kept("laptop")
    new = {"binding": "cores", "caches": "samples", "max_restarts": 3, "timeout_seconds": 7.5, "rendezvous": "a:1"}
    found = load_resumed(folder, "laptop", [f"launch.{key}={value}" for key, value in new.items()])
    assert found == config.model_copy(update={"launch": config.launch.model_copy(update=new)})
    image = ["launch.launcher=docker", "launch.container.runtime=docker", "launch.container.image=x"]
    container = load_resumed(folder, "laptop", image).launch.container
    assert container is not None and container.image == "x"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("launch.nodes=3", "launch.nodes: found 3, but the run was made with 1; with --resume leave it out"),
        ("launch.processes_per_node=2", "launch.processes_per_node: found 2, but the run was made with 1; "),
        ("launch.threads_per_process=1", "launch.threads_per_process: found 1, but the run was made with 2"),
        ("dropout=0", "dropout: a run goes on as it was configured; with --resume leave it out, or start another run"),
        ("optimizer.beta1=0.5", "optimizer: a run goes on as it was configured"),
        ("bert.seed=3", "seed: a run goes on as it was configured"),
        ("launch=3", "launch: a run goes on as it was configured"),
        ("launch.bindings=none", "launch.bindings: there is no such key (did you mean binding?)"),
        ("launch.timeout_seconds=0", "launch.timeout_seconds: found 0; allowed: greater than 0"),
    ],
)
def test_what_would_change_its_numbers_may_not(kept: Any, setting: str, message: str) -> None:
    folder, _ = kept("laptop", "launch.threads_per_process=2")
    with pytest.raises(UsageError) as caught:
        load_resumed(folder, "laptop", [setting])
    assert message in str(caught.value)
    assert str(caught.value).startswith(("--set ", "--set: "))


def test_threads_change_no_number_of_a_gpu(kept: Any) -> None:
    folder, _ = kept("h200_1x")
    assert load_resumed(folder, "h200_1x", ["launch.threads_per_process=3"]).launch.threads == 3


def test_a_system_of_ones_own_is_named_by_its_path(kept: Any, write_system: Any) -> None:
    path = str(write_system({}))
    folder, config = kept(path)
    assert load_resumed(folder, path) == config
    with pytest.raises(UsageError, match="is a run of mine, and laptop is named; name mine"):
        load_resumed(folder, "laptop")


def test_a_folder_without_a_configuration_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"holds no config\.yaml; name the folder of a run, runs/SYSTEM"):
        load_resumed(RunFolder(tmp_path), "laptop")
