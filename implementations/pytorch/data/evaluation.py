"""The evaluation samples of one rank, in batches of similar length so that little is wasted on any of them."""

import numpy as np

from benchmarks.bert.bulk import BulkReader
from benchmarks.bert.preparation.evaluation import evaluation_pick
from benchmarks.bert.store import SampleStore
from implementations.pytorch.data.balancing import snake
from implementations.pytorch.data.batch import SHAPE_STEP, RaggedBatch, collate_flat


def evaluation_batches(
    store: SampleStore, *, samples: int, rank: int, ranks: int, local_batch_size: int, slot_width: int | None
) -> list[RaggedBatch]:
    """One rank's share of the `samples` that the reference picks, dealt out over ranks by length.

    Ranks get equal counts but for a remainder of one. Raises UsageError if the store holds too few samples.
    """
    store.require_samples(samples, "evaluation.samples")
    picked = evaluation_pick(len(store), samples)
    lengths = store.lengths[picked].astype(np.int64)
    whole = samples // ranks * ranks
    mine = list(snake(lengths[:whole], ranks)[rank]) + [i for i in range(whole + rank, min(samples, whole + rank + 1))]
    mine.sort(key=lambda i: -lengths[i])
    with BulkReader(store) as reader:
        return [
            collate_flat(reader.gather(picked[mine[first : first + local_batch_size]]), slot_width, SHAPE_STEP)
            for first in range(0, len(mine), local_batch_size)
        ]
