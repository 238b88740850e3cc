"""The configuration of a package: what the runs were, as it can be run again from there."""

from pathlib import Path
from typing import Any

import pytest

from podium.config.load import load_system
from podium.config.schema import Container, DataSettings, RunConfig
from podium.core.paths import CODE_FOLDER
from podium.launch.mounts import on_host
from podium.submission.package.files import submitted, system_file

STORES = DataSettings(
    store=Path("/lustre/wiki"), evaluation_store=Path("/lustre/eval"), vocabulary=Path("/lustre/words.txt")
)


def again(config: RunConfig, tmp_path: Path) -> RunConfig:
    path = tmp_path / f"{config.system}.yaml"
    path.write_text(system_file(config), encoding="utf-8")
    return load_system(str(path))


@pytest.mark.parametrize("recipe", ["indexed", "presorted", "exchanged", "academic", "packed", "padded", "random"])
def test_every_key_comes_back(open_config: RunConfig, tmp_path: Path, recipe: str) -> None:
    config = load_system("laptop", recipe, ["precision=fp32", "phases=[]", "capacity_overflow=null"])
    config = config.model_copy(update={"seed": 5})
    told = submitted(config, config)
    assert told.seed is None
    assert again(told, tmp_path) == config.model_copy(update={"seed": None})


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("data/embedded/samples-0123/training", "embedded"),
        ("data/text/samples-0123/training", "store"),
        ("data/embedded/mine/training", "store"),
    ],
)
def test_samples_of_the_embedded_text_are_made_again(open_config: RunConfig, place: str, kind: str) -> None:
    data = {
        "store": CODE_FOLDER / place,
        "evaluation_store": CODE_FOLDER / place,
        "vocabulary": CODE_FOLDER / "data" / "vocab.txt",
    }
    config = open_config.model_copy(update={"data": DataSettings(**data)})
    told = submitted(config, config)
    assert told.data.kind == kind and ("data" in system_file(told)) is True
    if kind == "store":
        assert told.data.store == Path(place) and told.data.vocabulary == Path("data/vocab.txt")


def test_paths_of_elsewhere_get_a_place_in_the_package(open_config: RunConfig) -> None:
    config = open_config.model_copy(update={"data": STORES, "initial_checkpoint": Path("/lustre/large.safetensors")})
    told = submitted(config, config)
    assert told.data.store == Path("data/training") and told.data.evaluation_store == Path("data/evaluation")
    assert told.data.vocabulary == Path("data/vocab.txt")
    assert told.initial_checkpoint == Path("data/initial.safetensors")


def test_a_run_in_a_container_is_entered_as_the_systems_file_says(write_system: Any, tmp_path: Path) -> None:
    container = {"runtime": "docker", "image": "podium:latest", "mounts": ["data:/data:ro"]}
    changes = {"launch.launcher": "docker", "launch.container": container}
    data = {"store": "/data/wikipedia", "evaluation_store": "/workspace/podium/data/e", "vocabulary": "/data/vocab.txt"}
    now = load_system(str(write_system(changes | {"bert.data": data})))
    inside = now.launch.model_copy(update={"launcher": "torchrun", "container": None})
    told = submitted(now.model_copy(update={"launch": inside}), now)
    assert told.launch == now.launch
    assert told.data.store == Path("/data/wikipedia") and told.data.evaluation_store == Path("data/e")
    assert on_host(told.data.store, told.launch) == Path("data/wikipedia")
    assert again(told, tmp_path).launch.container == Container(**container)


def test_a_systems_file_that_has_changed_since_does_not_say_how_runs_were_started(write_system: Any) -> None:
    config = load_system(str(write_system()))
    now = config.launch.model_copy(update={"launcher": "slurm", "processes_per_node": 2})
    told = submitted(config, config.model_copy(update={"launch": now}))
    assert told.launch == config.launch


def test_names_of_a_cluster_stay_there(write_system: Any, tmp_path: Path) -> None:
    container = {
        "runtime": "pyxis",
        "image": "/lustre/groups/secret/podium.sqsh",
        "mounts": ["/lustre/groups/secret:/data/bert:ro", "../secret:/own", "data:/plain"],
    }
    slurm = ["--exclusive", "--account=secret", "-psecret", "-w", "secret1", "--time=60", "-t", "60", "--gres=gpu:8"]
    changes = {
        "launch.launcher": "slurm",
        "launch.container": container,
        "launch.rendezvous": "secret.cluster.internal:29500",
        "launch.slurm_options": [*slurm, "--mail-user=secret@secret", "--reservation=secret"],
    }
    now = load_system(str(write_system(changes | {"bert.data": {
        "store": "/data/bert/w", "evaluation_store": "/data/bert/e", "vocabulary": "/own/vocab.txt"
    }})))  # fmt: skip
    told = submitted(now, now)
    assert told.launch.rendezvous is None
    assert told.launch.slurm_options == ("--exclusive", "--time=60", "-t", "60", "--gres=gpu:8")
    assert told.launch.container is not None
    assert told.launch.container.image == "podium.sqsh"
    assert told.launch.container.mounts == ("data/data/bert:/data/bert:ro", "data/own:/own", "data:/plain")
    assert told.data.store is not None
    assert on_host(told.data.store, told.launch) == Path("data/data/bert/w")
    assert "secret" not in system_file(told)
    assert again(told, tmp_path).launch == told.launch
