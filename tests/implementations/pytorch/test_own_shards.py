"""Nodes that have only their part of the data train like nodes that have all of it; a missing shard is named."""

import json
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.bert.length_index import FILE
from benchmarks.bert.manifest import MANIFEST, NodePart
from benchmarks.bert.shard import SUFFIX
from benchmarks.bert.store import SampleStore
from podium.config.load import load_resolved, load_system, write_resolved
from podium.config.run_folder import RunFolder
from podium.config.schema import DataSettings, RunConfig
from podium.planning.costs import with_measured_costs

IN_ORDER = ["balancing=padded", "attention=padded", "shards=per_rank"]
SHORT = ["target_accuracy=null", "max_samples=32", "evaluation.samples=16", "seed=3"]
NODES = ["launch.processes_per_node=1", "launch.nodes=2", "launch.threads_per_process=1"]


@pytest.fixture
def data(warm_project: Path) -> DataSettings:
    (resolved,) = (warm_project / "runs").rglob("config.yaml")
    return load_resolved(resolved).data


def copy_part(store: Path, target: Path, node: int) -> Path:
    """Copy the part of a store that one of two nodes reads."""
    target.mkdir()
    for name in (MANIFEST, FILE, *names_of(store, node)):
        shutil.copy(store / name, target)
    return target


def names_of(store: Path, node: int) -> list[str]:
    """Return the file names of the shards that one of two nodes reads."""
    opened = SampleStore(store, NodePart(node, 2))
    return [opened.paths[number].name for number in opened.present]


def with_store(config: RunConfig, data: DataSettings, store: Path) -> RunConfig:
    return config.model_copy(update={"data": data.model_copy(update={"store": store})})


@pytest.fixture
def train(
    tmp_path: Path, start_ranks: Callable[..., None], rank_environments: Callable[[int], list]
) -> Callable[..., RunFolder]:
    """(name, configurations of two nodes) → the folder of a run with one rank on each node."""

    def start(name: str, configs: list[RunConfig], exit_code: int = 0) -> RunFolder:
        folder = RunFolder(tmp_path / name)
        folder.path.mkdir()
        for node, config in enumerate(configs):
            write_resolved(config, tmp_path / f"{name}_{node}.yaml")
        arguments = [(tmp_path / f"{name}_{node}.yaml", folder.path, "--caches-cleared") for node in (0, 1)]
        start_ranks("implementations.pytorch.train", arguments, rank_environments(2), exit_code)
        return folder

    return start


@pytest.mark.parametrize(("recipe", "options"), [("exchanged", []), ("indexed", IN_ORDER)])
def test_nodes_with_only_their_shards_have_the_losses_of_nodes_with_all(
    data: DataSettings, tmp_path: Path, train: Callable[..., RunFolder], recipe: str, options: list[str]
) -> None:
    assert data.store is not None
    config = with_measured_costs(load_system("laptop", recipe, [*options, *SHORT, *NODES]))
    assert config.reads_own_part
    parts = [copy_part(data.store, tmp_path / f"node_{node}", node) for node in (0, 1)]
    shards = [{path.name for path in part.glob(f"*{SUFFIX}")} for part in parts]
    assert shards[0] != shards[1] and len(shards[0] | shards[1]) > max(map(len, shards))  # each lacks some of the other
    with_all = train("all", [with_store(config, data, data.store)] * 2)
    own = train("own", [with_store(config, data, part) for part in parts])
    losses = []
    for folder in (with_all, own):
        lines = [json.loads(line) for line in folder.metrics.read_text(encoding="utf-8").splitlines()]
        losses.append([(line["samples"], line["loss"]) for line in lines if "loss" in line])
    assert len(losses[0]) >= 2
    assert losses[0] == losses[1]


def test_a_node_that_lacks_a_shard_of_its_part_is_named(
    data: DataSettings, tmp_path: Path, train: Callable[..., RunFolder]
) -> None:
    assert data.store is not None
    config = with_measured_costs(load_system("laptop", "exchanged", [*SHORT, *NODES]))
    parts = [copy_part(data.store, tmp_path / f"node_{node}", 0) for node in (0, 1)]
    failure = train("lacking", [with_store(config, data, part) for part in parts], 1).read_failure(final_only=True)
    missing = next(name for name in names_of(data.store, 1) if name not in names_of(data.store, 0))
    message = (
        f"not every rank can open the data: rank 1 on {socket.gethostname()}: {parts[1] / missing} is missing, manif"
    )
    assert str(failure).startswith(message)
