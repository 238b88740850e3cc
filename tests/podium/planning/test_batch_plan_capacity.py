"""Capacity: one shape for a whole run, with every sample kept and overflowing ones deferred to the next step."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.bert.lengths import quantiles, wikipedia_histogram
from benchmarks.bert.store import SampleStore
from implementations.pytorch.bench.variants import Lengths
from podium.planning.balancing.interface import Assignment, AssignmentSpec
from podium.planning.batch_plan import Capacity, TrainingOrder, capacity_for, fit_to_capacity, run_shapes
from tests.implementations.pytorch.data.plain_reader import read_step


def even(samples: int, parts: int) -> Assignment:
    return Assignment.from_rows(np.arange(samples).reshape(parts, -1))


def sizes_of(tokens: list[int]) -> np.ndarray:
    return np.stack([np.array(tokens), np.maximum(np.array(tokens) // 10, 1), np.ones(len(tokens), dtype=int)])


@settings(max_examples=200, deadline=None)
@given(
    tokens=st.lists(st.integers(1, 90), min_size=12, max_size=12),
    carried_over=st.lists(st.integers(1, 90), max_size=5),
    parts=st.sampled_from([1, 2, 3, 6]),
    room=st.integers(0, 400),
    masked=st.integers(9, 60),
    sequences=st.integers(1, 14),
)
def test_every_sample_is_kept_and_no_part_exceeds_the_capacity(
    tokens: list[int], carried_over: list[int], parts: int, room: int, masked: int, sequences: int
) -> None:
    capacity, sizes = Capacity(91 + room, masked, sequences), sizes_of(tokens + carried_over)
    fitted = fit_to_capacity(even(12, parts), sizes, len(carried_over), capacity)
    assert sorted([*fitted.assignment.order, *fitted.deferred]) == list(range(12 + len(carried_over)))
    for size, limit in zip(sizes, capacity.limits, strict=True):
        loads = fitted.assignment.loads(size[: 12 + len(carried_over)])
        assert loads.max() <= limit
        room_left = limit - loads
        if size is sizes[0] and len(fitted.deferred) and capacity.masked > 50 and capacity.sequences > 12:
            assert room_left.max() < sizes[0][fitted.deferred].min()  # deferred samples fit nowhere
    assert list(fitted.deferred) == sorted(fitted.deferred)
    again = fit_to_capacity(even(12, parts), sizes, len(carried_over), capacity)
    assert np.array_equal(again.assignment.order, fitted.assignment.order)


def test_assignment_that_fits_is_unchanged() -> None:
    assignment = even(6, 2)
    fitted = fit_to_capacity(assignment, sizes_of([5, 6, 7, 8, 9, 10]), 0, Capacity(28, 9, 3))
    assert fitted.assignment is assignment
    assert (fitted.moved, len(fitted.deferred)) == (0, 0)


def test_shortest_sufficient_sequence_moves_to_the_part_with_most_room() -> None:
    """Part 0 has 50 tokens of 41: of 20, 10, 9 and 11 the 9 is sufficient. Part 2 has more room than part 1."""
    fitted = fit_to_capacity(
        Assignment.from_parts([np.arange(4), np.array([4]), np.array([5])]),
        sizes_of([20, 10, 9, 11, 30, 25]),
        0,
        Capacity(42, 99, 9),
    )
    assert [fitted.assignment.part(p).tolist() for p in range(3)] == [[0, 1, 3], [4], [5, 2]]
    assert (fitted.moved, fitted.deferred.tolist()) == (1, [])


def test_sequences_carried_over_are_placed_first() -> None:
    """There is room for one of two sequences: the one carried over is placed, not the evicted one."""
    fitted = fit_to_capacity(
        Assignment.from_parts([np.array([0, 1]), np.array([2])]), sizes_of([30, 12, 28, 12]), 1, Capacity(42, 99, 9)
    )
    assert fitted.assignment.part(1).tolist() == [2, 3]
    assert fitted.deferred.tolist() == [1]


def test_capacity_follows_from_the_overflow_probability() -> None:
    loads = np.random.default_rng(0).normal([5000, 700, 16], [100, 20, 0], (2000, 3))
    rare, often = (capacity_for(loads, overflow, 64) for overflow in (0.003, 0.3))
    assert rare.tokens % 64 == 0
    assert rare.masked % 8 == 0
    assert rare.sequences == 17  # the maximum and one more, for a sequence that moves
    assert 5000 + 2.7 * 100 < rare.tokens < 5000 + 2.9 * 100 + 64
    assert 5000 + 0.5 * 100 < often.tokens < 5000 + 0.6 * 100 + 64
    varying = loads + np.random.default_rng(1).normal(0, [0, 0, 2], (2000, 3))
    assert capacity_for(varying, 0.3, 64).tokens > often.tokens
    assert capacity_for(varying, 0.3, 64).sequences in (19, 20)


def order_of(strategy: str, overflow: float | None, **changed: object) -> TrainingOrder:
    lengths = np.random.default_rng(1).permutation(quantiles(wikipedia_histogram(), 6000))
    return TrainingOrder(
        Lengths(lengths),
        seed=3,
        strategy=strategy,
        global_batch_size=32,
        spec=AssignmentSpec(4, 4, **changed),  # type: ignore[arg-type]
        accumulation_steps=1,
        capacity_overflow=overflow,
    )


@pytest.mark.parametrize(
    ("strategy", "changed"),
    [("random", {}), ("indexed", {}), ("indexed", {"counts": "free"}), ("exchanged", {}), ("presorted", {})],
)
def test_every_sample_is_planned_once_per_epoch_or_shortly_after(strategy: str, changed: dict[str, str]) -> None:
    order = order_of(strategy, 0.25, **changed)
    assert order.capacity is not None
    taken, expected, moved = [], [], 0
    for step in range(150):
        whole = order.global_batch(step)
        moved += whole.moved
        taken.append(whole.indices)
        expected.append(order.sampler.samples(32 * step, 32))
        assert (whole.micro_batch_slots == order.capacity.tokens).all()
        for values, limit in zip((whole.lengths, whole.masked_counts), order.capacity.limits[:2], strict=True):
            assert np.diff(np.concatenate([[0], np.cumsum(values)])[whole.starts]).max() <= limit
        assert np.diff(whole.starts).max() <= order.capacity.sequences
    carried_over = Counter(np.concatenate(expected).tolist())
    carried_over.subtract(np.concatenate(taken).tolist())
    assert min(carried_over.values()) == 0
    assert carried_over.total() < 32
    assert moved > 0


def test_step_does_not_depend_on_the_first_step_of_a_run() -> None:
    """Sequences carried over into a step are computed from the steps before, in any order of calls."""
    whole = order_of("indexed", 0.25)
    steps = [whole.global_batch(step) for step in range(40)]
    resumed = order_of("indexed", 0.25)
    for step in (39, 7, 38, 0):
        again = resumed.global_batch(step)
        assert np.array_equal(again.indices, steps[step].indices)
        assert again.moved == steps[step].moved
    assert any(len(step.indices) > 32 for step in steps)


@pytest.mark.parametrize("strategy", ["random", "indexed"])
@pytest.mark.parametrize("overflow", [0.02, 0.2])
def test_share_of_overflowing_steps_is_as_configured(strategy: str, overflow: float) -> None:
    """Slots are rounded up, here by a third of a standard deviation, so that fewer steps overflow."""
    order = order_of(strategy, overflow)
    overflowing = np.mean([order.global_batch(step).moved > 0 for step in range(500)])
    assert 0.25 * overflow <= overflowing <= 1.5 * overflow


def test_run_with_capacity_has_one_shape(
    make_store: Callable[..., SampleStore], wikipedia_lengths: Callable[..., np.ndarray]
) -> None:
    store = make_store(wikipedia_lengths(60, 1))
    order = TrainingOrder(
        store,
        seed=4,
        strategy="random",
        global_batch_size=8,
        spec=AssignmentSpec(2, 2),
        accumulation_steps=1,
        capacity_overflow=0.3,
    )
    shapes = run_shapes(order, 30)
    assert order.capacity is not None
    assert dict(shapes.masked_slots) == {order.capacity.tokens: order.capacity.masked}
    batches = [read_step(order, step, 0, shapes.masked_slots).micro_batches[0] for step in range(30)]
    assert {batch.shape for batch in batches} == {
        (order.capacity.tokens, order.capacity.masked, order.capacity.sequences)
    }
    assert len({batch.sequences for batch in batches}) > 1 or all(batch.sequences == 4 for batch in batches)
    tokens = {
        (step, rank): read_step(order, step, rank, shapes.masked_slots).micro_batches[0].tokens
        for step in range(30)
        for rank in range(2)
    }
    (example,) = shapes.examples.values()
    assert tokens[example] == min(tokens.values())
