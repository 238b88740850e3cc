"""The evaluation samples of one rank, in batches of similar lengths to limit padding and load imbalance."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from benchmarks.bert.preparation.prepare import pick_evaluation_indices
from benchmarks.bert.store import SampleStore
from benchmarks.bert.store_reader import BulkReader
from implementations.pytorch.data.batch import RaggedBatch, collate
from podium.planning.balancing.interface import AssignmentSpec
from podium.planning.balancing.strategies import assign
from podium.planning.batch_plan import SHAPE_STEP


def evaluation_batches(
    store: SampleStore,
    rank: int,
    spec: AssignmentSpec,
    *,
    samples: int,
    local_batch_size: int,
    slot_width: int | None,
    reader: Callable[[SampleStore], BulkReader] = BulkReader,
) -> list[RaggedBatch]:
    """Return one rank's evaluation batches, longest samples first.

    The `samples` that MLPerf's reference picks are assigned to the ranks, which are the parts of `spec`, such that the
    ranks' costs are balanced. With `slot_width` (padded batches) all samples cost the same. Ranks may have no batches
    if there are fewer samples than ranks. Raises UsageError if the store has too few samples.
    """
    store.require_samples(samples, "evaluation.samples")
    picked = pick_evaluation_indices(len(store), samples)
    lengths = store.lengths[picked].astype(np.int64)
    computed = lengths if slot_width is None else np.full_like(lengths, slot_width)
    mine = evaluation_share(computed, rank, replace(spec, counts="free"))
    mine = mine[np.argsort(-lengths[mine], kind="stable")]
    with reader(store) as bulk:
        return [
            collate(bulk.gather(picked[mine[first : first + local_batch_size]]), slot_width, SHAPE_STEP)
            for first in range(0, len(mine), local_batch_size)
        ]


def evaluation_share(lengths: np.ndarray, rank: int, spec: AssignmentSpec) -> np.ndarray:
    """Return the positions, int64, that one rank evaluates among samples with these lengths (int64 [n])."""
    if len(lengths) < spec.parts:
        return np.arange(rank, len(lengths), spec.parts)
    return assign("indexed", lengths, spec).part(rank)
