"""From the length index to steps: what every rank knows is what is read, and reading ahead changes nothing."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from benchmarks.bert.store import SampleStore
from benchmarks.errors import WorkError
from implementations.pytorch.data.loader import Prefetcher, TrainingOrder

Lengths = Callable[[int, int], np.ndarray]
StoreMaker = Callable[..., SampleStore]
DEADLINE = 20.0


def make_order(store: SampleStore, strategy: str = "indexed", ranks: int = 2, accumulation: int = 2) -> TrainingOrder:
    return TrainingOrder(
        store, seed=4, strategy=strategy, global_batch_size=24, ranks=ranks, accumulation_steps=accumulation
    )


@pytest.fixture
def store(make_store: StoreMaker, wikipedia_lengths: Lengths) -> SampleStore:
    return make_store(wikipedia_lengths(60, 1))


@pytest.mark.parametrize("strategy", ["indexed", "random", "padded"])
@pytest.mark.parametrize(("ranks", "accumulation"), [(1, 1), (2, 2), (3, 4)])
def test_what_is_known_beforehand_is_what_is_read(
    store: SampleStore, strategy: str, ranks: int, accumulation: int
) -> None:
    order = make_order(store, strategy, ranks, accumulation)
    for number in range(4):
        whole = order.global_batch(number)
        steps = [order.read(number, rank) for rank in range(ranks)]
        batches = [[*step.micro_batches] for step in steps]
        flat = [batch for mine in batches for batch in mine]
        assert all(len(mine) == accumulation for mine in batches)
        assert {batch.sequences for batch in flat} == {24 // ranks // accumulation}
        assert whole.first_sample == 24 * number
        assert whole.samples == 24
        assert whole.tokens == sum(batch.tokens for batch in flat)
        assert whole.masked == sum(batch.masked for batch in flat)
        assert whole.slots == sum(batch.slots for batch in flat)
        by_rank = [sum(batch.tokens for batch in mine) for mine in batches]
        assert whole.max_over_mean_tokens == pytest.approx(max(by_rank) / np.mean(by_rank))
        assert all(np.array_equal(step.whole.indices, whole.indices) for step in steps)
        if strategy == "padded":
            assert whole.slots == 24 * 512


@pytest.mark.parametrize("strategy", ["indexed", "random", "padded"])
def test_every_sample_is_trained_on_once_an_epoch(store: SampleStore, strategy: str) -> None:
    """60 samples in steps of 24: two epochs in five steps, whatever the number of ranks."""
    for ranks in (1, 2, 4):
        order = make_order(store, strategy, ranks, 1)
        taken = np.concatenate([order.global_batch(step).indices.ravel() for step in range(5)])
        assert np.bincount(taken, minlength=60).tolist() == [2] * 60


def test_ranks_and_strategies_share_out_the_same_global_batch(store: SampleStore) -> None:
    batches = [
        np.sort(make_order(store, strategy, ranks, accumulation).global_batch(3).indices.ravel()).tolist()
        for strategy in ("indexed", "random", "padded")
        for ranks, accumulation in ((1, 1), (4, 3))
    ]
    assert all(batch == batches[0] for batch in batches)


@pytest.mark.parametrize("depth", [1, 3, 50])
def test_reading_ahead_gives_exactly_the_steps_in_order(store: SampleStore, depth: int) -> None:
    order = make_order(store)
    with Prefetcher(order, 1, range(2, 9), depth) as steps:
        found = list(steps)
    assert [step.whole.first_sample for step in found] == [24 * number for number in range(2, 9)]
    for number, step in zip(range(2, 9), found, strict=True):
        expected = order.read(number, 1)
        for mine, other in zip(step.micro_batches, expected.micro_batches, strict=True):
            assert mine.token_ids.tolist() == other.token_ids.tolist()
            assert mine.masked_labels.tolist() == other.masked_labels.tolist()
    assert prefetchers() == 0


def test_no_steps_end_at_once(store: SampleStore) -> None:
    with Prefetcher(make_order(store), 0, range(0), 2) as steps:
        assert list(steps) == []


def test_a_shard_that_cannot_be_read_is_told_where_the_steps_are_taken(store: SampleStore) -> None:
    store.paths[0].unlink()
    with (
        pytest.raises(WorkError, match=r"samples\.h5: the shard cannot be memory-mapped"),
        Prefetcher(make_order(store), 0, range(5), 2) as steps,
    ):
        list(steps)
    assert prefetchers() == 0


def test_steps_before_an_error_are_still_taken(store: SampleStore, monkeypatch: pytest.MonkeyPatch) -> None:
    order = make_order(store)
    read = order.read

    def fail_at_two(step: int, rank: int, masked_slots: object) -> object:
        if step == 2:
            raise WorkError("damaged")
        return read(step, rank)

    monkeypatch.setattr(order, "read", fail_at_two)
    taken = []
    with pytest.raises(WorkError, match="damaged"), Prefetcher(order, 0, range(5), 1) as steps:
        for step in steps:
            taken.append(step.whole.first_sample)
    assert taken == [0, 24]
    assert prefetchers() == 0


def prefetchers() -> int:
    return sum(thread.name == "prefetch" for thread in threading.enumerate())


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("take", [0, 1])
def test_closing_ends_the_thread_though_the_queue_is_full(
    store: SampleStore, monkeypatch: pytest.MonkeyPatch, take: int
) -> None:
    order, reads = make_order(store), []
    read = order.read
    monkeypatch.setattr(order, "read", lambda step, rank, _: (reads.append(step), read(step, rank))[1])
    prefetcher = Prefetcher(order, 0, range(1000), depth=2)
    iterator = iter(prefetcher.__enter__())
    for _ in range(take):
        next(iterator)
    wait_until(lambda: len(reads) == 3 + take)  # two in the queue, one in hand
    time.sleep(0.05)
    assert len(reads) == 3 + take
    assert prefetchers() == 1
    closing = threading.Thread(target=prefetcher.close, daemon=True)
    closing.start()
    closing.join(DEADLINE)
    assert not closing.is_alive()
    assert prefetchers() == 0


def test_an_error_of_the_taker_ends_the_thread(store: SampleStore) -> None:
    with pytest.raises(KeyError), Prefetcher(make_order(store), 0, range(1000), 1) as steps:
        for _ in steps:
            raise KeyError
    assert prefetchers() == 0


def test_closing_twice_or_before_the_start_is_nothing(store: SampleStore) -> None:
    prefetcher = Prefetcher(make_order(store), 0, range(10), 1)
    prefetcher.close()
    prefetcher.close()
    assert prefetchers() == 0


def test_only_the_index_is_needed_to_know_a_global_batch(store: SampleStore, tmp_path: Path) -> None:
    expected = make_order(store).global_batch(0).indices
    store.paths[0].unlink()
    assert np.array_equal(make_order(store).global_batch(0).indices, expected)
