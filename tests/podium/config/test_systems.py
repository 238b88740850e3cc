"""The systems that come with Podium: every one loads, is described whole, and says what was published."""

import json
import tarfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from benchmarks.bert.sizes import SIZES
from podium.config.load import load_resolved, load_system, system_names, write_resolved
from podium.config.schema import RunConfig

PUBLISHED = Path(__file__).resolve().parents[4] / "shared" / "data"
WANTED = {
    "academic_t4",
    "dgxa100_n1",
    "dgxa100_n128",
    "dgxa100_n171",
    "dgxa100_n64",
    "dgxa100_n8",
    "h200_1x",
    "laptop",
    "laptop_2x",
}
CLOSED = {"dgxa100_n1", "dgxa100_n8", "dgxa100_n64"}

SETS = {
    "academic_t4": ("2.1", "dgxa100_ngc22.09_pytorch"),
    "dgxa100_n1": ("2.1", "dgxa100_ngc22.09_pytorch"),
    "dgxa100_n8": ("2.1", "8_node_64_A100_PaddlePaddle"),
    "dgxa100_n64": ("2.0", "dgxa100_n128_ngc22.04_pytorch"),
    "dgxa100_n128": ("2.0", "samsung_supercomputer21_dgxa100_n128_pytorch"),
    "dgxa100_n171": ("2.0", "samsung_supercomputer21_dgxa100_n171_pytorch"),
}
"""Round and system whose hyper-parameters each has."""

NOT_AS_LOGGED = {("dgxa100_n64", "wd"), ("dgxa100_n128", "decay_steps"), ("dgxa100_n171", "decay_steps")}
"""Said in the systems' files: a default was logged, and a rate that stays where it is before the logged steps end."""

HARDWARE = {
    "dgxa100_n1": "v2.1/NVIDIA/systems/dgxa100_ngc22.09_pytorch.json",
    "dgxa100_n8": "v2.1/NVIDIA/systems/dgxa100_n8_ngc22.09_pytorch.json",
    "dgxa100_n64": "v2.0/NVIDIA/systems/dgxa100_n128_ngc22.04_pytorch.json",
    "dgxa100_n128": "v2.0/Samsung/systems/samsung_supercomputer21_dgxa100_n128_pytorch.json",
    "dgxa100_n171": "v2.0/Samsung/systems/samsung_supercomputer21_dgxa100_n171_pytorch.json",
}


def test_these_are_the_systems() -> None:
    assert set(system_names()) >= WANTED
    assert {name for name in WANTED if load_system(name).division == "closed"} == CLOSED


@pytest.mark.parametrize("name", system_names())
def test_every_system_loads_resolves_and_is_described_as_it_is_launched(name: str, tmp_path: Path) -> None:
    config = load_system(name)
    write_resolved(config, tmp_path / "config.yaml")
    assert load_resolved(tmp_path / "config.yaml") == config
    assert config.model_size is SIZES[config.size]
    described, launched = config.description, config.launch
    assert described.system_name == name
    assert described.number_of_nodes == str(launched.nodes)
    assert described.accelerators_per_node == str(launched.processes_per_node if launched.device == "cuda" else 0)
    assert config.local_batch_size * launched.ranks == config.global_batch_size
    assert config.evaluation_interval <= config.max_samples
    if launched.container:
        inside = {mount.split(":")[1] for mount in launched.container.mounts}
        needed = (config.data.store, config.data.evaluation_store, config.data.vocabulary, config.initial_checkpoint)
        assert all(path and str(path.parents[-2]) in inside for path in needed)


@pytest.mark.parametrize("recipe", ["indexed", "random"])
@pytest.mark.parametrize("name", system_names())
def test_every_system_takes_unpadded_recipes(name: str, recipe: str) -> None:
    assert load_system(name, recipe).balancing == recipe


@cache
def sets() -> dict[tuple[str, str], dict[str, Any]]:
    path = PUBLISHED / "published_bert_hyperparameters_to_v2.1.json"
    if not path.is_file():
        pytest.skip(f"{path} is not here")
    return {(row["round"], row["system"]): row for row in json.loads(path.read_text(encoding="utf-8"))}


@pytest.mark.parametrize("name", SETS)
def test_hyper_parameters_are_the_published_ones(name: str) -> None:
    config, row = load_system(name), sets()[SETS[name]]
    ours = config.optimizer
    pairs = {
        "global_batch_size": config.global_batch_size,
        "lr": ours.learning_rate,
        "betas": [ours.beta1, ours.beta2],
        "eps": ours.epsilon,
        "wd": ours.weight_decay,
        "warmup_steps": ours.warmup_steps,
        "start_warmup_step": ours.start_warmup_step,
        "decay_steps": ours.decay_steps,
    }
    assert {key for key, value in pairs.items() if value != row[key]} == {k for n, k in NOT_AS_LOGGED if n == name}
    assert config.max_samples > row["samples_to_converge_max"]
    assert SETS[name][1] in Path(f"systems/{name}.yaml").read_text(encoding="utf-8") or name == "academic_t4"


@pytest.mark.parametrize("name", HARDWARE)
def test_hardware_is_the_published_one(name: str) -> None:
    version, _, _ = HARDWARE[name].partition("/")
    archive = PUBLISHED / f"published-bert-{version}.tar.xz"
    if not archive.is_file():
        pytest.skip(f"{archive} is not here")
    with tarfile.open(archive) as files:
        member = files.extractfile(HARDWARE[name])
        assert member is not None
        published = json.load(member)
    ours = load_system(name).description.model_dump(by_alias=True)
    keys = [key for key in ours if key.startswith(("host_", "accelerator")) or key in ("operating_system", "cooling")]
    assert len(keys) > 20
    assert {key: ours[key] for key in keys} == {key: published[key] or "not stated" for key in keys}


def test_the_adam_sets_fall_to_their_end(tmp_path: Path) -> None:
    """Samsung's, as facts gathered from their paper have it."""
    for name in ("dgxa100_n128", "dgxa100_n171"):
        config: RunConfig = load_system(name)
        ours = config.optimizer
        assert (ours.algorithm, ours.decay_steps, ours.end_learning_rate) == ("adamw", 179, 4.94549100544884e-5)
        assert -(-2_932_736 // config.global_batch_size) == 179
