"""The configuration in a package: that of the runs, without names of the machine, and loadable again."""

from pathlib import Path
from typing import Any

import pytest

from podium.config.load import load_system
from podium.config.schema import Container, DataSettings, RunConfig
from podium.core.paths import CODE_FOLDER
from podium.launch.mounts import on_host
from podium.submission.package.files import render_system_file, submitted_config

STORES = DataSettings(
    store=Path("/lustre/wiki"), evaluation_store=Path("/lustre/eval"), vocabulary=Path("/lustre/words.txt")
)


def reload(config: RunConfig, tmp_path: Path) -> RunConfig:
    path = tmp_path / f"{config.system}.yaml"
    path.write_text(render_system_file(config), encoding="utf-8")
    return load_system(str(path))


@pytest.mark.parametrize("recipe", ["indexed", "presorted", "exchanged", "academic", "packed", "padded", "random"])
def test_every_key_survives_the_round_trip(open_config: RunConfig, tmp_path: Path, recipe: str) -> None:
    config = load_system("laptop", recipe, ["precision=fp32", "phases=[]", "capacity_overflow=null"])
    config = config.model_copy(update={"seed": 5})
    packaged = submitted_config(config, config)
    assert packaged.seed is None
    assert reload(packaged, tmp_path) == config.model_copy(update={"seed": None})


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("data/embedded/samples-0123/training", "embedded"),
        ("data/text/samples-0123/training", "store"),
        ("data/embedded/mine/training", "store"),
    ],
)
def test_samples_of_the_embedded_text_are_not_named_by_path(open_config: RunConfig, place: str, kind: str) -> None:
    data = {
        "store": CODE_FOLDER / place,
        "evaluation_store": CODE_FOLDER / place,
        "vocabulary": CODE_FOLDER / "data" / "vocab.txt",
    }
    config = open_config.model_copy(update={"data": DataSettings(**data)})
    packaged = submitted_config(config, config)
    assert packaged.data.kind == kind and ("data" in render_system_file(packaged)) is True
    if kind == "store":
        assert packaged.data.store == Path(place) and packaged.data.vocabulary == Path("data/vocab.txt")


def test_outside_paths_become_paths_in_the_package(open_config: RunConfig) -> None:
    config = open_config.model_copy(update={"data": STORES, "initial_checkpoint": Path("/lustre/large.safetensors")})
    packaged = submitted_config(config, config)
    assert packaged.data.store == Path("data/training") and packaged.data.evaluation_store == Path("data/evaluation")
    assert packaged.data.vocabulary == Path("data/vocab.txt")
    assert packaged.initial_checkpoint == Path("data/initial.safetensors")


def test_container_settings_are_those_of_the_system_file(write_system: Any, tmp_path: Path) -> None:
    container = {"runtime": "docker", "image": "podium:latest", "mounts": ["data:/data:ro"]}
    changes = {"launch.launcher": "docker", "launch.container": container}
    data = {"store": "/data/wikipedia", "evaluation_store": "/workspace/podium/data/e", "vocabulary": "/data/vocab.txt"}
    now = load_system(str(write_system(changes | {"bert.data": data})))
    inside = now.launch.model_copy(update={"launcher": "torchrun", "container": None})
    packaged = submitted_config(now.model_copy(update={"launch": inside}), now)
    assert packaged.launch == now.launch
    assert packaged.data.store == Path("/data/wikipedia") and packaged.data.evaluation_store == Path("data/e")
    assert on_host(packaged.data.store, packaged.launch) == Path("data/wikipedia")
    assert reload(packaged, tmp_path).launch.container == Container(**container)


def test_a_changed_system_file_does_not_replace_the_launch_settings(write_system: Any) -> None:
    config = load_system(str(write_system()))
    now = config.launch.model_copy(update={"launcher": "slurm", "processes_per_node": 2})
    packaged = submitted_config(config, config.model_copy(update={"launch": now}))
    assert packaged.launch == config.launch


def test_names_of_a_cluster_are_left_out(write_system: Any, tmp_path: Path) -> None:
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
    packaged = submitted_config(now, now)
    assert packaged.launch.rendezvous is None
    assert packaged.launch.slurm_options == ("--exclusive", "--time=60", "-t", "60", "--gres=gpu:8")
    assert packaged.launch.container is not None
    assert packaged.launch.container.image == "podium.sqsh"
    assert packaged.launch.container.mounts == ("data/data/bert:/data/bert:ro", "data/own:/own", "data:/plain")
    assert packaged.data.store is not None
    assert on_host(packaged.data.store, packaged.launch) == Path("data/data/bert/w")
    assert "secret" not in render_system_file(packaged)
    assert reload(packaged, tmp_path).launch == packaged.launch
