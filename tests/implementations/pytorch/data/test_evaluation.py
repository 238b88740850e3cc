"""Evaluation samples: each is evaluated once, with any number of ranks."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from benchmarks.bert.store import SampleStore
from implementations.pytorch.data.evaluation import assign_evaluation, evaluation_batches
from podium.core.errors import UsageError
from podium.planning.balancing.interface import AssignmentSpec
from podium.planning.balancing.published import snake


@pytest.fixture
def store(make_store: Callable[..., SampleStore], wikipedia_lengths: Callable[[int, int], np.ndarray]) -> SampleStore:
    return make_store(wikipedia_lengths(50, 2))


@pytest.mark.parametrize("ranks", [1, 2, 3, 7, 20])
@pytest.mark.parametrize("samples", [1, 5, 33, 50])
@pytest.mark.parametrize("slot_width", [None, 512])
def test_each_picked_sample_is_on_exactly_one_rank(
    store: SampleStore, ranks: int, samples: int, slot_width: int | None
) -> None:
    picked = [i * 50 // samples for i in range(samples)]
    expected = Counter(tuple(store.read(i).token_ids.tolist()) for i in picked)
    found: Counter[tuple[int, ...]] = Counter()
    counts = []
    for rank in range(ranks):
        batches = evaluation_batches(
            store, rank, AssignmentSpec(ranks, ranks), samples=samples, local_batch_size=4, slot_width=slot_width
        )
        counts.append(sum(batch.sequences for batch in batches))
        assert all(batch.sequences == 4 for batch in batches[:-1])
        for batch in batches:
            for start, length in zip(batch.sequence_starts.tolist(), batch.lengths, strict=False):
                found[tuple(batch.token_ids[start : start + length].tolist())] += 1
    assert found == expected
    if slot_width is not None:  # all cost the same
        assert max(counts) - min(counts) <= 1


def test_evaluation_batches_are_sorted_by_length(store: SampleStore) -> None:
    batches = evaluation_batches(store, 0, AssignmentSpec(2, 2), samples=50, local_batch_size=6, slot_width=None)
    lengths = [length for batch in batches for length in batch.lengths]
    assert lengths == sorted(lengths, reverse=True)


def test_too_few_samples_are_a_usage_error(store: SampleStore) -> None:
    with pytest.raises(UsageError, match=r"holds 50 samples, evaluation\.samples is 51"):
        evaluation_batches(store, 0, AssignmentSpec(1, 1), samples=51, local_batch_size=4, slot_width=None)


@pytest.mark.parametrize("ranks", [2, 8, 64])
def test_costs_of_ranks_are_balanced(ranks: int, wikipedia_lengths: Callable[[int, int], np.ndarray]) -> None:
    """With as many samples as MLPerf evaluates; the snake assignment by length is less balanced."""
    lengths = wikipedia_lengths(10_000, 1).astype(np.int64)
    spec = AssignmentSpec(ranks, ranks, pair_cost=3e-4, sequence_cost=2.0, counts="free")
    costs = spec.costs(lengths)
    assignment = assign_evaluation(lengths, spec)
    shares = [assignment.part(rank) for rank in range(ranks)]
    assert np.array_equal(np.sort(np.concatenate(shares)), np.arange(10_000))
    loads = np.array([costs[share].sum() for share in shares])
    assert loads.max() / loads.mean() < 1.001
    multiple = 10_000 // ranks * ranks
    plain = costs[:multiple][snake(lengths[:multiple], ranks)].sum(axis=1)
    plain[: 10_000 - multiple] += costs[multiple:]
    assert loads.max() <= plain.max()


def test_pair_and_sequence_costs_change_the_assignment(store: SampleStore) -> None:
    shares = {
        tuple(
            tuple(batch.lengths)
            for batch in evaluation_batches(
                store, 0, AssignmentSpec(3, 3, pair, one), samples=50, local_batch_size=50, slot_width=None
            )
        )
        for pair, one in ((0.0, 0.0), (0.1, 0.0), (0.0, 5000.0))
    }
    assert len(shares) == 3
