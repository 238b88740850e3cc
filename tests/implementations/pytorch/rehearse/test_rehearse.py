"""Rehearsal of one rank: its part of each step, and the batch plan of every system and recipe."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.bert.length_index import FILE
from benchmarks.bert.records import record_lengths
from benchmarks.bert.store import SampleStore, join_stores
from implementations.pytorch.build_run import build_order, replays_graphs
from implementations.pytorch.distributed.process_group import rehearsal_process_group
from implementations.pytorch.rehearse.__main__ import rehearse
from implementations.pytorch.rehearse.reader import SyntheticReader, synthetic_samples
from implementations.pytorch.rehearse.settings import left_out, on_cpu
from implementations.pytorch.rehearse.trainer import RehearsalTrainer
from podium.config.load import system_names
from podium.config.schema import RunConfig
from podium.core.errors import PodiumError, UsageError
from podium.core.paths import CODE_FOLDER
from podium.planning.hardware import expected_attention
from podium.run.rehearsal import with_synthetic_data
from podium.run.run_set import RunRequest

IMPORTS = {"seconds": 1.0, "cpu_seconds": 1.0, "own_bytes": 1}
RECIPES = sorted(path.stem for path in (CODE_FOLDER / "implementations/pytorch/recipes").glob("*.yaml"))
Make = Callable[..., RunConfig]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    folder = tmp_path_factory.mktemp("rehearsal")

    def make(system: str, recipe: str | None = None, *settings: str, samples: int = 30_000) -> RunConfig:
        config = RunRequest(system, settings, recipe).config
        return with_synthetic_data(config.model_copy(update={"seed": 1}), folder, samples, lambda _: None)

    return make


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def rehearsed_bytes(config: RunConfig, rank: int, steps: int) -> float:
    """Return the mean bytes per step of a rank's records, computed from the sample order."""
    assert config.data.store is not None
    store = SampleStore(config.data.store)
    order = build_order(on_cpu(config), store, config.model_size.vocabulary_size, torch.device("cpu"))
    wholes = [order.global_batch(number) for number in range(steps)]
    parts = [(whole, part) for whole in wholes for part in whole.micro_batches(rank)]
    return 2 * sum(record_lengths(whole.lengths[p], whole.masked_counts[p]).sum() for whole, p in parts) / steps


@pytest.mark.parametrize(("recipe", "rank"), [("indexed", 255), ("exchanged", 3), ("presorted", 0)])
def test_a_rank_processes_its_part_of_every_step(make: Make, recipe: str, rank: int) -> None:
    ranks = 256
    settings = (f"launch.processes_per_node={ranks // 4}", f"global_batch_size={4 * ranks}", "exchange_steps=3")
    config = make("laptop", recipe, *settings, "launch.nodes=4")
    found = rehearse(config, rank, 3, IMPORTS)
    assert (found["rank"], found["ranks"], found["steps"]) == (rank, ranks, 3)
    assert found["read"]["sample_bytes_a_step"] == pytest.approx(rehearsed_bytes(config, rank, 3))
    assert found["evaluation"] == {"samples": found["evaluation"]["samples"], "batches": 1, "ranks_without": 0}
    assert 1 <= found["evaluation"]["samples"] <= 12  # of 1,000, assigned by cost
    assert found["shapes"] is None
    parts = {"global batch", "layout of this rank's part", "totals", "metrics", "metrics of the step before"}
    assert found["host"]["parts"].keys() == parts | ({"exchange plan"} if recipe == "exchanged" else set())
    assert found["memory"]["index_bytes"] >= 2 * 30_000
    assert found["memory"]["node_bytes"] == 64 * found["memory"]["own_bytes"] + found["memory"]["file_bytes"]
    assert 0 <= found["read"]["store_disk_bytes"] <= found["read"]["disk_bytes"]
    assert found["start"]["seconds"] < sum(part["seconds"] for part in found["start"]["parts"].values())


def test_ranks_without_evaluation_samples_are_counted(make: Make) -> None:
    config = make("laptop", None, "launch.processes_per_node=40", "global_batch_size=40", "evaluation.samples=7")
    found = rehearse(config, 39, 1, IMPORTS)
    assert found["evaluation"] == {"samples": 0, "batches": 0, "ranks_without": 33}


@pytest.mark.slow
def test_asynchronous_evaluation_is_prepared(make: Make) -> None:
    """With a smaller vocabulary than the system's, which is MLPerf's."""
    settings = ("evaluation.overlap=training", "cuda_graph=none", "evaluation.samples=50", "global_batch_size=4")
    config = make("h200_1x", "random", *settings)
    assert rehearse(config, 0, 1, IMPORTS)["steps"] == 1


def test_the_error_of_a_missing_length_index_names_it(make: Make, tmp_path: Path) -> None:
    config = make("laptop")
    gone = config.data.model_copy(update={"store": tmp_path})
    with pytest.raises(UsageError, match=f"{FILE}: there is no such length index"):
        rehearse(config.model_copy(update={"data": gone}), 0, 1, IMPORTS)


def test_parts_that_are_not_rehearsed_are_listed(make: Make) -> None:
    left = " ".join(left_out(make("laptop", None, "checkpoint.every_samples=100")))
    assert "checkpoints" in left and "communication" in left
    assert "DALI" not in left and "initial weights" not in left
    config = make("dgxa100_n8").model_copy(update={"loader": "dali"})
    assert on_cpu(config).loader == "own"
    left = " ".join(left_out(config))
    assert "DALI (Podium's own loader" in left and "initial weights" in left and "checkpoints" not in left


def test_files_of_a_rehearsal_are_in_the_given_folder(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`podium rehearse` removes that folder, however this process ends."""
    found: list[Path] = []
    monkeypatch.setattr(RehearsalTrainer, "rehearse", lambda trainer: found.append(trainer.folder.path) or stop())

    def stop() -> None:
        raise UsageError("stopped")

    with pytest.raises(UsageError, match="stopped"):
        rehearse(make("laptop"), 0, 1, IMPORTS, tmp_path)
    assert [path.parent for path in found] == [tmp_path]


def test_more_ranks_than_samples_are_an_error(make: Make) -> None:
    settings = ("launch.processes_per_node=64", "global_batch_size=64")
    with pytest.raises(UsageError, match="64 ranks cannot each have a part of 50 samples"):
        rehearse(make("laptop", "exchanged", *settings, samples=50), 0, 1, IMPORTS)


def test_batches_are_those_of_the_systems_device(make: Make) -> None:
    config = make("dgxa100_n8")
    assert expected_attention(config) == "flash"
    assert replays_graphs(config, "cuda", "flash")
    assert on_cpu(config).shape_step == 512
    assert on_cpu(config).wire == config.wire == "fp16"
    assert not replays_graphs(config, "cpu", "grouped")
    assert expected_attention(make("academic_t4", "indexed")) == "nested"
    assert on_cpu(make("laptop")).shape_step == 64


def test_collectives_assume_that_all_ranks_have_equal_values() -> None:
    with rehearsal_process_group(3, 512) as processes:
        assert (processes.rank, processes.ranks, processes.first) == (3, 512, False)
        assert processes.all_reduce_sum([1.5, 2.0]) == [768.0, 1024.0]
        assert processes.all_reduce_max(7) == 7
        assert processes.gather({"host": "a"}) == [{"host": "a"}] * 512
        assert processes.broadcast([1], 0) == [1]
        tensor = torch.ones(2)
        processes.all_reduce_sum_async(tensor).wait()
        assert tensor.tolist() == [512.0, 512.0]
        processes.barrier()


def test_synthetic_samples_are_valid(make: Make) -> None:
    lengths, masked = np.array([3, 512, 20]), np.array([2, 76, 3])
    samples = synthetic_samples(lengths, masked)
    assert np.diff(samples.sample_offsets).tolist() == lengths.tolist()
    for number, (first, end) in enumerate(zip(samples.masked_offsets, samples.masked_offsets[1:], strict=False)):
        positions = samples.masked_positions[first:end].tolist()
        assert positions == sorted(set(positions))
        assert 1 <= positions[0] <= positions[-1] < lengths[number]
    store = make("laptop").data.store
    assert store is not None
    with SyntheticReader(SampleStore(store)) as reader:
        found = reader.gather(np.array([5, 29_999, 5]))
        assert np.diff(found.sample_offsets).tolist() == SampleStore(store).lengths[[5, 29_999, 5]].tolist()
        assert reader.prefetch(np.array([5, 29_999])) >= 2 * int(np.diff(found.sample_offsets)[:2].sum())


@pytest.mark.parametrize("system", system_names())
def test_every_accepted_configuration_has_a_batch_plan(make: Make, system: str) -> None:
    """With every recipe: the first batch of the system's last rank."""
    accepted = 0
    for recipe in (None, *RECIPES):
        try:
            config = make(system, recipe)
        except PodiumError:
            continue  # `podium run` rejects it too
        accepted += 1
        store = join_stores([SampleStore(folder) for folder in config.stores])
        changed = on_cpu(config)
        order = build_order(changed, store, config.model_size.vocabulary_size, torch.device("cpu"))
        whole, rank = order.global_batch(0), config.launch.ranks - 1
        layouts = [*order.layouts(whole, rank)]
        assert sum(part.stop - part.start for part, _ in layouts) > 0
        assert all(slots % order.shape_step == 0 for _, (_, slots, *_) in layouts)
    assert accepted >= 2


@pytest.mark.exhaustive
@pytest.mark.parametrize("system", system_names())
@pytest.mark.parametrize("recipe", [None, *RECIPES])
def test_every_accepted_configuration_can_be_rehearsed(make: Make, system: str, recipe: str | None) -> None:
    try:
        config = make(system, recipe, samples=400_000)
    except PodiumError:
        pytest.skip("podium run rejects it")
    found: dict[str, Any] = rehearse(config, config.launch.ranks - 1, 2, IMPORTS)
    assert found["steps"] == 2
