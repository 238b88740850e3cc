"""The batch plan from the length index, compared with the batches that are read."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from benchmarks.bert.store import SampleStore
from podium.planning.balancing.interface import AssignmentSpec
from podium.planning.batch_plan import TrainingOrder
from tests.implementations.pytorch.data.plain_reader import read_step

Lengths = Callable[[int, int], np.ndarray]
StoreMaker = Callable[..., SampleStore]


def make_order(store: SampleStore, strategy: str = "indexed", ranks: int = 2, accumulation: int = 2) -> TrainingOrder:
    return TrainingOrder(
        store,
        seed=4,
        strategy=strategy,
        global_batch_size=24,
        spec=AssignmentSpec(ranks, ranks),
        accumulation_steps=accumulation,
    )


@pytest.fixture
def store(make_store: StoreMaker, wikipedia_lengths: Lengths) -> SampleStore:
    return make_store(wikipedia_lengths(60, 1))


@pytest.mark.parametrize("strategy", ["indexed", "random", "padded"])
@pytest.mark.parametrize(("ranks", "accumulation"), [(1, 1), (2, 2), (3, 4)])
def test_planned_batches_equal_those_read(store: SampleStore, strategy: str, ranks: int, accumulation: int) -> None:
    order = make_order(store, strategy, ranks, accumulation)
    for number in range(4):
        whole = order.global_batch(number)
        steps = [read_step(order, number, rank) for rank in range(ranks)]
        batches = [[*step.micro_batches] for step in steps]
        flat = [batch for mine in batches for batch in mine]
        assert all(len(mine) == accumulation for mine in batches)
        assert {batch.sequences for batch in flat} == {24 // ranks // accumulation}
        assert whole.first_sample == 24 * number
        assert whole.samples == 24
        assert order.micro_batch_size == 24 // ranks // accumulation
        assert whole.tokens == sum(batch.tokens for batch in flat)
        assert whole.masked == sum(batch.masked for batch in flat)
        assert whole.slots == sum(batch.slots for batch in flat)
        by_rank = [sum(batch.tokens for batch in mine) for mine in batches]
        assert whole.max_over_mean_tokens == pytest.approx(max(by_rank) / np.mean(by_rank))
        assert all(np.array_equal(step.global_batch.indices, whole.indices) for step in steps)
        if strategy == "padded":
            assert whole.slots == 24 * 512


@pytest.mark.parametrize("strategy", ["indexed", "random", "padded"])
def test_every_sample_is_planned_once_per_epoch(store: SampleStore, strategy: str) -> None:
    """60 samples in steps of 24: two epochs in five steps, for any number of ranks."""
    for ranks in (1, 2, 4):
        order = make_order(store, strategy, ranks, 1)
        taken = np.concatenate([order.global_batch(step).indices for step in range(5)])
        assert np.bincount(taken, minlength=60).tolist() == [2] * 60


def test_global_batch_does_not_depend_on_ranks_and_strategy(store: SampleStore) -> None:
    batches = [
        np.sort(make_order(store, strategy, ranks, accumulation).global_batch(3).indices).tolist()
        for strategy in ("indexed", "random", "padded")
        for ranks, accumulation in ((1, 1), (4, 3))
    ]
    assert all(batch == batches[0] for batch in batches)


def test_global_batch_needs_only_the_length_index(store: SampleStore, tmp_path: Path) -> None:
    expected = make_order(store).global_batch(0).indices
    store.paths[0].unlink()
    assert np.array_equal(make_order(store).global_batch(0).indices, expected)
