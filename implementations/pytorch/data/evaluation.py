"""The evaluation samples of one rank, in batches of similar length, which keeps padding and work imbalance small."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from benchmarks.bert.preparation.prepare import evaluation_pick
from benchmarks.bert.store import SampleStore
from benchmarks.bert.store_reader import BulkReader
from implementations.pytorch.data.batch import RaggedBatch, collate
from podium.planning.balancing.interface import Deal
from podium.planning.balancing.strategies import assign
from podium.planning.batch_plan import SHAPE_STEP


def evaluation_batches(
    store: SampleStore,
    rank: int,
    deal: Deal,
    *,
    samples: int,
    local_batch_size: int,
    slot_width: int | None,
    reader: Callable[[SampleStore], BulkReader] = BulkReader,
) -> list[RaggedBatch]:
    """One rank's share of the `samples` that the reference picks, dealt out evenly by what they cost.

    Costs are those of the `deal`, whose parts are the ranks; with `slot_width` all samples cost the same. Where there
    are fewer samples than ranks, some ranks have none. Raises UsageError if the store holds too few samples.
    """
    store.require_samples(samples, "evaluation.samples")
    picked = evaluation_pick(len(store), samples)
    lengths = store.lengths[picked].astype(np.int64)
    computed = lengths if slot_width is None else np.full_like(lengths, slot_width)
    mine = evaluation_share(computed, rank, replace(deal, counts="free"))
    mine = mine[np.argsort(-lengths[mine], kind="stable")]
    with reader(store) as bulk:
        return [
            collate(bulk.gather(picked[mine[first : first + local_batch_size]]), slot_width, SHAPE_STEP)
            for first in range(0, len(mine), local_batch_size)
        ]


def evaluation_share(lengths: np.ndarray, rank: int, deal: Deal) -> np.ndarray:
    """The positions among samples of these lengths [n] that one of the deal's parts evaluates."""
    if len(lengths) < deal.parts:
        return np.arange(rank, len(lengths), deal.parts)
    return assign("indexed", lengths, deal).part(rank)
