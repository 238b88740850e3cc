"""Reading in the background changes no step, and ends when the loader is closed or an error occurs."""

import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from benchmarks.bert.store import SampleStore
from implementations.pytorch.data import loader
from implementations.pytorch.data.batch import RaggedBatch
from implementations.pytorch.data.loader import Prefetcher
from implementations.pytorch.data.reader import Step, StepReader
from podium.core.errors import WorkError
from podium.planning.balancing.interface import AssignmentSpec
from podium.planning.batch_plan import GlobalBatch, TrainingOrder, run_shapes
from tests.implementations.pytorch.data.plain_reader import read_step

Lengths = Callable[[int, int], np.ndarray]
StoreMaker = Callable[..., SampleStore]
DEADLINE = 20.0


@pytest.fixture
def order(make_store: StoreMaker, wikipedia_lengths: Lengths) -> TrainingOrder:
    return TrainingOrder(
        make_store(wikipedia_lengths(60, 1)),
        seed=4,
        strategy="indexed",
        global_batch_size=24,
        spec=AssignmentSpec(2, 2),
        accumulation_steps=2,
    )


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert prefetchers() == 0


def prefetchers() -> int:
    return sum(thread.name == "prefetch" for thread in threading.enumerate())


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("depth", [1, 3, 50])
@pytest.mark.parametrize("window", [0, 3])
def test_prefetched_steps_are_in_order(order: TrainingOrder, depth: int, window: int) -> None:
    with Prefetcher(order, 1, range(2, 9), depth, window=window) as steps:
        found = list(steps)
    assert [step.global_batch.first_sample for step in found] == [24 * number for number in range(2, 9)]
    for number, step in zip(range(2, 9), found, strict=True):
        expected = read_step(order, number, 1)
        for mine, other in zip(step.micro_batches, expected.micro_batches, strict=True):
            for one, another in zip(mine.tensors(), other.tensors(), strict=True):
                assert torch.equal(one, another)


def test_masked_slots_are_passed_to_the_reader(order: TrainingOrder) -> None:
    slots = run_shapes(order, 3).masked_slots
    with Prefetcher(order, 0, range(3), 2, slots) as steps:
        shapes = [batch.shape for step in steps for batch in step.micro_batches]
    expected = [batch.shape for number in range(3) for batch in read_step(order, number, 0, slots).micro_batches]
    assert shapes == expected
    assert shapes != [batch.shape for number in range(3) for batch in read_step(order, number, 0).micro_batches]


@pytest.mark.parametrize("on_gpu", [True, False])
def test_batches_are_pinned_only_for_a_gpu(order: TrainingOrder, monkeypatch: pytest.MonkeyPatch, on_gpu: bool) -> None:
    copied: list[tuple[RaggedBatch, str]] = []

    def pin(batch: RaggedBatch) -> RaggedBatch:
        copied.append((batch, threading.current_thread().name))
        return batch

    monkeypatch.setattr(RaggedBatch, RaggedBatch.pin_memory.__name__, pin)
    with Prefetcher(order, 0, range(3), 2, pin_memory=on_gpu) as steps:
        taken = [batch for step in steps for batch in step.micro_batches]
    assert [id(batch) for batch, _ in copied] == [id(batch) for batch in taken if on_gpu]
    assert {thread for _, thread in copied} <= {"prefetch"}


def test_empty_range_of_steps_ends_at_once(order: TrainingOrder) -> None:
    with Prefetcher(order, 0, range(0), 2) as steps:
        assert list(steps) == []


@pytest.mark.parametrize(("window", "found"), [(0, "memory-mapped"), (4, "opened")])
def test_unreadable_shard_is_raised_by_the_iteration(order: TrainingOrder, window: int, found: str) -> None:
    assert isinstance(order.store, SampleStore)
    prefetcher = Prefetcher(order, 0, range(5), 2, window=window)
    order.store.paths[0].unlink()
    with pytest.raises(WorkError, match=rf"samples\.h5: the shard cannot be {found}"), prefetcher as steps:
        list(steps)


def test_steps_before_an_error_are_yielded(order: TrainingOrder, monkeypatch: pytest.MonkeyPatch) -> None:
    read = StepReader.read

    def fail_at_two(reader: StepReader, global_batch: GlobalBatch) -> Step:
        if global_batch.first_sample == 48:
            raise WorkError("damaged")
        return read(reader, global_batch)

    monkeypatch.setattr(StepReader, "read", fail_at_two)
    taken = []
    with pytest.raises(WorkError, match="damaged"), Prefetcher(order, 0, range(5), 1) as steps:
        for step in steps:
            taken.append(step.global_batch.first_sample)
    assert taken == [0, 24]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """First samples of the steps that were read."""
    read, noted = StepReader.read, []
    monkeypatch.setattr(
        StepReader,
        "read",
        lambda self, global_batch: (noted.append(global_batch.first_sample), read(self, global_batch))[1],
    )
    return noted


@pytest.mark.parametrize("take", [0, 1])
def test_close_ends_the_thread_with_a_full_queue(order: TrainingOrder, reads: list[int], take: int) -> None:
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


def test_the_reader_is_closed_with_the_thread(order: TrainingOrder, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    close = StepReader.close
    monkeypatch.setattr(
        StepReader, "close", lambda self: (closed.append(threading.current_thread().name), close(self))[1]
    )
    with Prefetcher(order, 0, range(1000), 1) as steps:
        next(iter(steps))
    assert closed == ["prefetch"]


def test_nothing_is_read_before_enter(order: TrainingOrder, reads: list[int]) -> None:
    prefetcher = Prefetcher(order, 0, range(10), 1)
    assert (reads, prefetchers()) == ([], 0)
    with prefetcher as steps:
        assert len(list(steps)) == 10


def test_reader_thread_pauses_only_after_a_full_queue(
    order: TrainingOrder, reads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    rests: list[float] = []

    class Clock:
        sleep = staticmethod(rests.append)

    monkeypatch.setattr(loader, "time", Clock)
    with Prefetcher(order, 0, range(20), 50) as steps:
        assert len(list(steps)) == 20
    assert rests == []
    reads.clear()
    with Prefetcher(order, 0, range(8), 2) as steps:
        wait_until(lambda: len(reads) == 3)  # the third finds no room
        for _ in steps:
            time.sleep(0.02)
    assert rests
    assert set(rests) == {loader.REST_SECONDS}


def test_error_in_the_consumer_ends_the_thread(order: TrainingOrder) -> None:
    with pytest.raises(KeyError), Prefetcher(order, 0, range(1000), 1) as steps:
        for _ in steps:
            raise KeyError


def test_close_twice_or_before_the_start_does_nothing(order: TrainingOrder) -> None:
    prefetcher = Prefetcher(order, 0, range(10), 1)
    prefetcher.close()
    prefetcher.close()
    assert prefetchers() == 0
