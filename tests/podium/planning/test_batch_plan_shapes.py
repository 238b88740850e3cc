"""The shapes of a run are known before it starts: exactly those of its batches."""

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

from benchmarks.bert.store import SampleStore
from podium.planning.balancing.interface import AssignmentSpec
from podium.planning.batch_plan import TrainingOrder, run_shapes
from tests.implementations.pytorch.data.plain_reader import read_step


@pytest.mark.parametrize("strategy", ["indexed", "random", "padded"])
def test_run_shapes_are_exactly_those_of_the_batches_of_all_ranks(
    strategy: str, make_store: Callable[..., SampleStore]
) -> None:
    store = make_store(np.random.default_rng(1).integers(5, 90, 64))
    order = TrainingOrder(
        store,
        seed=3,
        strategy=strategy,
        global_batch_size=8,
        spec=AssignmentSpec(2, 2),
        accumulation_steps=2,
        shape_step=32,
    )
    shapes = run_shapes(order, 20)  # into the third epoch
    met: dict[int, int] = {}
    fewest: dict[int, int] = {}
    by_rank: tuple[set[int], set[int]] = (set(), set())
    for number, rank in product(range(20), range(2)):
        for batch in read_step(order, number, rank, shapes.masked_slots).micro_batches:
            slots, masked, _ = batch.shape
            assert masked == shapes.masked_slots[slots]
            assert masked % 4 == 0
            met[slots] = max(met.get(slots, 0), batch.masked)
            fewest[slots] = min(fewest.get(slots, batch.tokens), batch.tokens)
            by_rank[rank].add(slots)
    assert list(shapes.masked_slots) == list(shapes.examples) == sorted(met, reverse=True)
    for slots, masked in met.items():
        assert masked <= shapes.masked_slots[slots] < masked + 4
        step, rank = shapes.examples[slots]
        example = read_step(order, step, rank).micro_batches
        assert (slots, fewest[slots]) in {(batch.slots, batch.tokens) for batch in example}
    if strategy == "padded":
        assert set(met) == {round(-(-2 * store.max_sequence_length // 32) * 32)}
    if strategy == "random":
        assert by_rank[0] != by_rank[1], "the test needs ranks with different shapes"
