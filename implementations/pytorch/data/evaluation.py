"""The evaluation samples of each rank, in batches of similar lengths to limit padding and load imbalance."""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

import numpy as np

from benchmarks.bert.preparation.prepare import pick_evaluation_indices
from benchmarks.bert.store import SampleStore
from benchmarks.bert.store_reader import BulkReader
from implementations.pytorch.data.batch import RaggedBatch, collate
from implementations.pytorch.data.synthetic import synthetic_sample
from podium.planning.balancing.interface import Assignment, AssignmentSpec
from podium.planning.balancing.strategies import assign
from podium.planning.batch_plan import SHAPE_STEP, SHAPE_STEPS, Layout, round_up

Reader = Callable[[SampleStore], BulkReader]
SHAPES = 16  # approximate number of shapes of evaluation batches for CUDA graphs, each of which is captured


class EvaluationPlan:
    """Evaluation batches of all ranks, longest samples first, from the length index alone.

    The samples that MLPerf's reference picks are assigned to the ranks, which are the parts of `spec`, such that the
    ranks' costs are balanced. Ranks may have no batches if there are fewer samples than ranks.
    """

    def __init__(
        self,
        store: SampleStore,
        spec: AssignmentSpec,
        *,
        samples: int,
        local_batch_size: int,
        slot_width: int | None,
        for_graphs: bool = False,
    ) -> None:
        """Plan the evaluation of `samples` samples.

        With `slot_width` (padded batches) all samples cost the same. With `for_graphs` batches have few shapes, which
        follow from their numbers of tokens. Raises UsageError if the store has too few samples.
        """
        store.require_samples(samples, "evaluation.samples")
        self._store, self._slot_width, self._for_graphs = store, slot_width, for_graphs
        self._local_batch_size = local_batch_size
        self._picked = pick_evaluation_indices(len(store), samples)
        self._lengths = store.lengths[self._picked].astype(np.int64)
        self._slots = self._lengths if slot_width is None else np.full_like(self._lengths, slot_width)
        self._assignment = assign_evaluation(self._slots, replace(spec, counts="free"))

    def _batches(self, rank: int) -> list[np.ndarray]:
        """Return the positions among the picked samples of each of a rank's batches."""
        mine = self._assignment.part(rank)
        mine = mine[np.argsort(-self._lengths[mine], kind="stable")]
        return [mine[first : first + self._local_batch_size] for first in range(0, len(mine), self._local_batch_size)]

    @cached_property
    def _sequence_slots(self) -> int:
        """Sequences of every batch for graphs, with those without tokens."""
        return min(self._local_batch_size, int(self._assignment.counts.max()))

    @cached_property
    def _shape_step(self) -> int:
        """Multiple that token slots of batches for graphs are rounded up to: a sixteenth of the largest batch."""
        batches = (batch for rank in range(self._assignment.parts) for batch in self._batches(rank))
        largest = max(int(self._slots[batch].sum()) for batch in batches)
        return min(SHAPE_STEPS["cuda"], round_up(largest, SHAPES * SHAPE_STEP) // SHAPES)

    def _token_slots(self, batch: np.ndarray) -> int:
        """Token slots of a batch for graphs. Sequences without tokens need one slot after all others."""
        tokens = int(self._slots[batch].sum()) + (len(batch) < self._sequence_slots)
        return round_up(tokens, self._shape_step)

    @cached_property
    def _of_shape(self) -> dict[int, tuple[int, np.ndarray]]:
        """Masked slots, and the batch with the fewest tokens, by token slots of all ranks' batches, largest first."""
        masked_counts = self._store.masked_counts[self._picked].astype(np.int64)
        masked_slots: dict[int, int] = {}
        fewest: dict[int, np.ndarray] = {}
        for rank in range(self._assignment.parts):
            for batch in self._batches(rank):
                slots = self._token_slots(batch)
                masked = round_up(int(masked_counts[batch].sum()), SHAPE_STEP)
                masked_slots[slots] = max(masked, masked_slots.get(slots, 0))
                if slots not in fewest or self._slots[batch].sum() < self._slots[fewest[slots]].sum():
                    fewest[slots] = batch
        return {slots: (masked_slots[slots], fewest[slots]) for slots in sorted(fewest, reverse=True)}

    def _layout(self, batch: np.ndarray) -> Layout | tuple[int | None, int]:
        """Return the arguments of `collate` for a batch."""
        if not self._for_graphs:
            return self._slot_width, SHAPE_STEP
        slots = self._token_slots(batch)
        return self._slot_width, slots, self._of_shape[slots][0], None, self._sequence_slots

    def read(self, rank: int, reader: Reader = BulkReader) -> list[RaggedBatch]:
        """Read a rank's samples and collate them into batches."""
        with reader(self._store) as bulk:
            return [collate(bulk.gather(self._picked[part]), *self._layout(part)) for part in self._batches(rank)]

    def examples(self, vocabulary: int) -> list[RaggedBatch]:
        """Return a synthetic batch of each shape of all ranks' batches: the same shapes in the same order on each rank.

        Of the batches of a shape it has the lengths of the one with the fewest tokens: an attention launch recorded
        with it has enough work space for all. `vocabulary` is the vocabulary size. Needs a plan for graphs.
        """
        assert self._for_graphs
        rng = np.random.default_rng(0)
        examples = []
        for _, batch in self._of_shape.values():
            masked_counts = self._store.masked_counts[self._picked[batch]]
            counts = zip(self._lengths[batch].tolist(), masked_counts.tolist(), strict=True)
            samples = [synthetic_sample(length, masked, vocabulary, rng) for length, masked in counts]
            examples.append(collate(samples, *self._layout(batch)))
        return examples


def evaluation_batches(
    store: SampleStore,
    rank: int,
    spec: AssignmentSpec,
    *,
    samples: int,
    local_batch_size: int,
    slot_width: int | None,
) -> list[RaggedBatch]:
    """Return one rank's evaluation batches. The arguments are those of `EvaluationPlan`."""
    return EvaluationPlan(store, spec, samples=samples, local_batch_size=local_batch_size, slot_width=slot_width).read(
        rank
    )


def assign_evaluation(lengths: np.ndarray, spec: AssignmentSpec) -> Assignment:
    """Assign evaluation samples of these lengths (int64 [n]) to ranks, some of which may have none."""
    if len(lengths) < spec.parts:
        return Assignment.from_part_ids(np.arange(len(lengths)), spec.parts)
    return assign("indexed", lengths, spec)
