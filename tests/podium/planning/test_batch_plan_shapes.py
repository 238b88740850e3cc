"""The shapes of a run are known before it starts: exactly those of its batches."""

from collections.abc import Callable

import numpy as np
import pytest

from benchmarks.bert.store import SampleStore
from podium.planning.balancing.interface import AssignmentSpec
from podium.planning.batch_plan import TrainingOrder, run_shapes
from tests.implementations.pytorch.data.plain_reader import read_step


@pytest.mark.parametrize("strategy", ["indexed", "random", "padded"])
@pytest.mark.parametrize("rank", [0, 1])
def test_run_shapes_are_exactly_those_of_the_batches(
    strategy: str, rank: int, make_store: Callable[..., SampleStore]
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
    shapes = run_shapes(order, rank, 20)  # into the third epoch
    met: dict[int, int] = {}
    for number in range(20):
        for batch in read_step(order, number, rank, shapes.masked_slots).micro_batches:
            slots, masked, _ = batch.shape
            assert masked == shapes.masked_slots[slots]
            assert masked % 4 == 0
            met[slots] = max(met.get(slots, 0), batch.masked)
    assert met.keys() == shapes.masked_slots.keys() == shapes.examples.keys()
    for slots, masked in met.items():
        assert masked <= shapes.masked_slots[slots] < masked + 4
        example = read_step(order, shapes.examples[slots], rank).micro_batches
        assert slots in {batch.slots for batch in example}
    if strategy == "padded":
        assert set(met) == {round(-(-2 * store.max_sequence_length // 32) * 32)}
