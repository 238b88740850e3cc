"""The DALI loader yields the same steps as the default one, and its process ends with it."""

import importlib.util
import multiprocessing
import pickle
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.bert.store import SampleStore
from implementations.pytorch.data.dali import DaliPrefetcher
from implementations.pytorch.data.reader import Step
from podium.core.errors import UsageError, WorkError
from podium.planning.balancing.interface import AssignmentSpec
from podium.planning.batch_plan import TrainingOrder, run_shapes
from tests.implementations.pytorch.data.plain_reader import read_step

DALI = importlib.util.find_spec("nvidia") is not None and importlib.util.find_spec("nvidia.dali") is not None
with_dali = pytest.mark.skipif(not DALI, reason="NVIDIA DALI is not installed (the extra `dali`)")


@pytest.fixture
def order(make_store: Callable[..., SampleStore], wikipedia_lengths: Callable[[int, int], np.ndarray]) -> TrainingOrder:
    return TrainingOrder(
        make_store(wikipedia_lengths(60, 1)),
        seed=4,
        strategy="indexed",
        global_batch_size=24,
        spec=AssignmentSpec(2, 2),
        accumulation_steps=2,
    )


def tensors(step: Step) -> list[torch.Tensor]:
    holders = [holder for batch in step.micro_batches for holder in (batch, *batch.groups)]
    return [value for holder in holders for value in vars(holder).values() if isinstance(value, torch.Tensor)]


@with_dali
@pytest.mark.parametrize(("count", "depth"), [(7, 3), (2, 4), (1, 1), (0, 2)])
def test_dali_yields_the_same_steps(order: TrainingOrder, count: int, depth: int) -> None:
    slots = run_shapes(order, 12).masked_slots
    with DaliPrefetcher(order, 1, range(3, 3 + count), depth, slots) as steps:
        found = list(steps)
    assert len(found) == count
    for number, step in enumerate(found, start=3):
        expected = read_step(order, number, 1, slots)
        assert step.global_batch.first_sample == expected.global_batch.first_sample
        assert np.array_equal(step.global_batch.indices, expected.global_batch.indices)
        for mine, other in zip(step.micro_batches, expected.micro_batches, strict=True):
            assert (mine.lengths, mine.masked_counts, mine.shape) == (other.lengths, other.masked_counts, other.shape)
        for one, another in zip(tensors(step), tensors(expected), strict=True):
            assert one.dtype == another.dtype
            assert torch.equal(one, another)


@with_dali
def test_early_exit_ends_the_process(order: TrainingOrder) -> None:
    loader = DaliPrefetcher(order, 0, range(1000), 2)
    with loader as steps:
        assert next(iter(steps)).global_batch.first_sample == 0
        wait_for_workers(1)
    wait_for_workers(0)
    loader.close()


@with_dali
def test_nothing_is_read_before_enter_and_errors_are_raised(order: TrainingOrder) -> None:
    assert isinstance(order.store, SampleStore)
    loader = DaliPrefetcher(order, 0, range(5), 2)
    order.store.paths[0].unlink()
    with pytest.raises(WorkError, match=r"samples\.h5: the shard cannot be opened"), loader as steps:
        list(steps)
    wait_for_workers(0)


@with_dali
def test_unexpected_error_in_the_process_is_raised(order: TrainingOrder) -> None:
    """Here: a shape for which no number of masked slots was given."""
    with pytest.raises(KeyError), DaliPrefetcher(order, 0, range(5), 2, masked_slots={}) as steps:
        list(steps)
    wait_for_workers(0)


def wait_for_workers(count: int) -> None:
    """Wait until this process has `count` child processes."""
    end = time.monotonic() + 20
    while len(multiprocessing.active_children()) != count:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_missing_dali_is_a_usage_error(order: TrainingOrder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    with pytest.raises(UsageError, match=r"loader: found dali.*'\.\[dali\]'`, or use loader=own"):
        DaliPrefetcher(order, 0, range(5), 2)


def test_pickled_store_reads_the_same_samples(order: TrainingOrder, tmp_path: Path) -> None:
    """A store is pickled as the paths of its shards, without samples that were read."""
    store = order.store
    assert isinstance(store, SampleStore)
    store.read(3)
    pickled = pickle.dumps(store)
    assert len(pickled) < 1000
    other = pickle.loads(pickled)
    assert other.paths == store.paths
    assert np.array_equal(other.read(5).token_ids, store.read(5).token_ids)
