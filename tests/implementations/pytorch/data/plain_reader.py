"""Reference implementation of reading steps, sample by sample, that every loader is compared with."""

from collections.abc import Mapping

from benchmarks.bert.store import SampleStore
from implementations.pytorch.data.batch import collate
from implementations.pytorch.data.reader import Step
from podium.planning.batch_plan import TrainingOrder


def read_step(order: TrainingOrder, step: int, rank: int, masked_slots: Mapping[int, int] | None = None) -> Step:
    """One rank's part of a step.

    `masked_slots` is that of `TrainingOrder.layouts`.
    """
    store = order.store
    assert isinstance(store, SampleStore), "a length index alone holds no samples"
    global_batch = order.global_batch(step)
    batches = (
        collate([store.read(index) for index in global_batch.indices[part].tolist()], *layout)
        for part, layout in order.layouts(global_batch, rank, masked_slots)
    )
    return Step(tuple(batches), global_batch)
