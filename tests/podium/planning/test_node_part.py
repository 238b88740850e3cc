"""What a node needs of a store: the parts of its ranks, and nothing where ranks draw from everywhere."""

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.bert.preparation.settings import GenerationSettings
from benchmarks.bert.store import EVALUATION, Origin, renew_manifest, write_shard
from podium.core.errors import UsageError
from podium.planning.node_part import node_ranges
from podium.planning.samplers import part_bounds
from tests.benchmarks.bert.test_store import make_samples

SAMPLES = 24
Ask = Callable[..., list[tuple[int, int]] | None]


def make_store(folder: Path, selection: str) -> Path:
    folder.mkdir()
    for number, name in enumerate("abc"):
        origin = Origin.of_text(name, "ef" * 32, "ab" * 32, GenerationSettings())
        samples = make_samples([9 + number] * 8, seed=number)
        write_shard(folder / f"{name}.h5", samples, Origin(**{**vars(origin), "selection": selection}))
    renew_manifest(folder)
    return folder


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return make_store(tmp_path / "store", "whole")


@pytest.fixture
def ask(store: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """(node rank, further settings): of three nodes with two processes each, a part of the data a rank."""
    monkeypatch.delenv("SLURM_NODEID", raising=False)

    def ranges(node_rank: int | None, *more: str, of: Path = store) -> list[tuple[int, int]] | None:
        nodes = ("launch.nodes=3", "launch.processes_per_node=2", "launch.rendezvous=node0:29500")
        settings = ["shards=per_rank", "global_batch_size=48", "balancing=random", *nodes, *more]
        return node_ranges(of, "laptop", None, settings, node_rank)

    return ranges


def test_nodes_share_the_samples_as_ranks_do(ask: Ask) -> None:
    assert [ask(node) for node in range(3)] == [[(0, 8)], [(8, 16)], [(16, 24)]]
    bounds = part_bounds(SAMPLES, 10).tolist()
    five = ("launch.nodes=5", "global_batch_size=40")
    assert [ask(node, *five) for node in range(5)] == [[(bounds[2 * n], bounds[2 * n + 2])] for n in range(5)]


def test_everything_is_needed_where_ranks_draw_from_everywhere(ask: Ask, tmp_path: Path) -> None:
    assert ask(1, "shards=shared") is None
    assert ask(1, of=make_store(tmp_path / "evaluation", EVALUATION)) is None


def test_a_slurm_step_names_the_node(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"--node-rank: laptop has 3 nodes, and SLURM_NODEID is not set; give 0 to 2"):
        ask(None)
    assert ask(None, "launch.nodes=1") == [(0, SAMPLES)]
    monkeypatch.setenv("SLURM_NODEID", "2")
    assert ask(None) == [(16, 24)]
    assert ask(0) == [(0, 8)]


def test_a_node_that_the_system_does_not_have_is_refused(ask: Ask) -> None:
    with pytest.raises(UsageError, match=r"--node-rank: found 3, allowed is 0 to 2"):
        ask(3)
