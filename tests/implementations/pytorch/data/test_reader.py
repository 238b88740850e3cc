"""Read-ahead: steps equal those that are read sample by sample, and samples are prefetched in time."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.bert.store import SampleStore
from benchmarks.bert.store_reader import BulkReader
from implementations.pytorch.data.reader import PLANS_PER_STEP, WINDOW, Step, StepReader
from podium.planning.balancing.interface import AssignmentSpec
from podium.planning.batch_plan import TrainingOrder, run_shapes
from tests.implementations.pytorch.data.plain_reader import read_step

BATCH = 12


@pytest.fixture(scope="module")
def store(
    tmp_path_factory: pytest.TempPathFactory,
    write_store: Callable[..., Path],
    wikipedia_lengths: Callable[[int, int], np.ndarray],
) -> SampleStore:
    """70 samples in two shards."""
    folder = tmp_path_factory.mktemp("reading")
    counts = {"one": 50, "two": 20}
    return SampleStore([write_store(folder / name, wikipedia_lengths(n, n), n) for name, n in counts.items()])


def make_order(
    store: SampleStore, strategy: str = "indexed", ranks: int = 2, accumulation: int = 2, overflow: float | None = None
) -> TrainingOrder:
    return TrainingOrder(
        store,
        seed=4,
        strategy=strategy,
        global_batch_size=BATCH,
        spec=AssignmentSpec(ranks, ranks),
        accumulation_steps=accumulation,
        capacity_overflow=overflow,
    )


def tensors(step: Step) -> list[torch.Tensor]:
    holders = [holder for batch in step.micro_batches for holder in (batch, *batch.groups)]
    return [value for holder in holders for value in vars(holder).values() if isinstance(value, torch.Tensor)]


def assert_same(found: Step, expected: Step) -> None:
    assert found.global_batch.first_sample == expected.global_batch.first_sample
    assert np.array_equal(found.global_batch.indices, expected.global_batch.indices)
    for one, other in zip(found.micro_batches, expected.micro_batches, strict=True):
        assert (one.lengths, one.masked_counts, one.slot_width) == (
            other.lengths,
            other.masked_counts,
            other.slot_width,
        )
        assert [(g.rows, g.width, g.start) for g in one.groups] == [(g.rows, g.width, g.start) for g in other.groups]
    for mine, another in zip(tensors(found), tensors(expected), strict=True):
        assert mine.dtype == another.dtype
        assert torch.equal(mine, another)


@given(
    first=st.integers(0, 9),
    count=st.integers(0, 7),
    window=st.sampled_from([0, 1, 2, 3, 4, 5, WINDOW]),
    strategy=st.sampled_from(["indexed", "random", "padded", "exchanged", "packed"]),
    ranks=st.sampled_from([1, 2]),
    accumulation=st.sampled_from([1, 3]),
)
@settings(deadline=None, max_examples=40)
def test_read_ahead_does_not_change_steps(
    store: SampleStore, first: int, count: int, window: int, strategy: str, ranks: int, accumulation: int
) -> None:
    order = make_order(store, strategy, ranks, accumulation)
    numbers = range(first, first + count)
    with StepReader(order, ranks - 1, window=window) as reader:
        found = list(reader.steps(numbers))
    assert len(found) == count
    for number, step in zip(numbers, found, strict=True):
        assert_same(step, read_step(make_order(store, strategy, ranks, accumulation), number, ranks - 1))


def test_masked_slots_are_used(store: SampleStore) -> None:
    order = make_order(store)
    shapes = run_shapes(order, 6)
    with StepReader(order, 1, shapes.masked_slots) as reader:
        for number, step in enumerate(reader.steps(range(6))):
            assert_same(step, read_step(order, number, 1, shapes.masked_slots))


def test_deferred_sequences_are_read_in_their_later_step(store: SampleStore) -> None:
    """With a capacity a step depends on the steps before it, which are planned before they are read."""
    order, plain = make_order(store, overflow=0.5), make_order(store, overflow=0.5)
    with StepReader(order, 1, window=5) as reader:
        found = list(reader.steps(range(12)))
    assert sum(step.global_batch.moved for step in found) > 0
    for number, step in enumerate(found):
        assert_same(step, read_step(plain, number, 1))


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """Calls that plan, prefetch and read, in order, with their arguments."""
    events: list[tuple[str, Any]] = []

    def noted(kind: type, name: str) -> None:
        plain = getattr(kind, name)

        def call(self: Any, argument: Any) -> Any:
            events.append((name, argument))
            return plain(self, argument)

        monkeypatch.setattr(kind, name, call)

    noted(TrainingOrder, "global_batch")
    noted(BulkReader, "prefetch")
    noted(BulkReader, "gather")
    return events


@pytest.mark.parametrize("window", [1, 2, 7, WINDOW])
def test_every_sample_is_prefetched_once_before_it_is_read(
    store: SampleStore, events: list[tuple[str, Any]], window: int
) -> None:
    count = 80
    order = make_order(store)
    with StepReader(order, 1, window=window) as reader:
        events.clear()
        for _ in reader.steps(range(count)):
            pass
    prefetched = np.concatenate([argument for name, argument in events if name == "prefetch"])
    read = np.concatenate([argument for name, argument in events if name == "gather"])
    assert prefetched.tolist() == read.tolist()
    size, so_far = BATCH // 2, {"global_batch": 0, "prefetch": 0, "gather": 0}
    for name, argument in events:
        so_far[name] += 1 if name == "global_batch" else len(argument)
        if name == "gather":
            assert so_far["gather"] <= so_far["prefetch"] <= so_far["global_batch"] * size
            taken = -(-so_far["gather"] // size)
            assert so_far["global_batch"] < taken + window


def test_many_steps_are_prefetched_at_a_time_and_early(store: SampleStore, events: list[tuple[str, Any]]) -> None:
    with StepReader(make_order(store, accumulation=1), 0, window=16) as reader:
        events.clear()
        for _ in reader.steps(range(200)):
            pass
    size, prefetched, read = BATCH // 2, 0, 0
    requests = 0
    for name, argument in events:
        if name == "prefetch":
            requests += 1
            prefetched += len(argument) // size
        elif name == "gather":
            read += 1
            if 20 <= read <= 180:
                assert prefetched - read >= 7
    assert requests <= 200 // 8 + 10


def test_first_step_waits_for_few_plans(store: SampleStore, events: list[tuple[str, Any]]) -> None:
    with StepReader(make_order(store), 0) as reader:
        events.clear()
        steps = reader.steps(range(100))
        next(steps)
        assert [name for name, _ in events].count("global_batch") == PLANS_PER_STEP
        for _ in range(WINDOW + 5):
            next(steps)
        assert [name for name, _ in events].count("global_batch") == 2 * WINDOW + 5


def test_window_of_zero_disables_prefetching(store: SampleStore, events: list[tuple[str, Any]]) -> None:
    with StepReader(make_order(store), 0, window=0) as reader:
        events.clear()
        next(reader.steps(range(9)))
    assert [name for name, _ in events] == ["global_batch", "gather", "gather"]


def test_constructor_prefetches_and_reads_nothing(store: SampleStore, events: list[tuple[str, Any]]) -> None:
    StepReader(make_order(store), 0).close()
    assert [len(argument) for _, argument in events] == [0]
