"""The evaluation samples: all of them, once, over any number of ranks."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from benchmarks.bert.store import SampleStore
from benchmarks.errors import UsageError
from implementations.pytorch.data.evaluation import evaluation_batches


@pytest.fixture
def store(make_store: Callable[..., SampleStore], wikipedia_lengths: Callable[[int, int], np.ndarray]) -> SampleStore:
    return make_store(wikipedia_lengths(50, 2))


@pytest.mark.parametrize("ranks", [1, 2, 3, 7, 20])
@pytest.mark.parametrize("samples", [1, 5, 33, 50])
@pytest.mark.parametrize("slot_width", [None, 512])
def test_the_ranks_together_hold_each_picked_sample_once(
    store: SampleStore, ranks: int, samples: int, slot_width: int | None
) -> None:
    picked = [i * 50 // samples for i in range(samples)]
    expected = Counter(tuple(store.read(i).token_ids.tolist()) for i in picked)
    found: Counter[tuple[int, ...]] = Counter()
    counts = []
    for rank in range(ranks):
        batches = evaluation_batches(
            store, samples=samples, rank=rank, ranks=ranks, local_batch_size=4, slot_width=slot_width
        )
        counts.append(sum(batch.sequences for batch in batches))
        assert all(batch.sequences == 4 for batch in batches[:-1])
        for batch in batches:
            for start, length in zip(batch.sequence_starts.tolist(), batch.lengths, strict=False):
                found[tuple(batch.token_ids[start : start + length].tolist())] += 1
    assert found == expected
    assert max(counts) - min(counts) <= 1


def test_a_rank_evaluates_the_longest_first(store: SampleStore) -> None:
    batches = evaluation_batches(store, samples=50, rank=0, ranks=2, local_batch_size=6, slot_width=None)
    lengths = [length for batch in batches for length in batch.lengths]
    assert lengths == sorted(lengths, reverse=True)


def test_too_few_samples_are_said(store: SampleStore) -> None:
    with pytest.raises(UsageError, match=r"holds 50 samples, evaluation\.samples is 51"):
        evaluation_batches(store, samples=51, rank=0, ranks=1, local_batch_size=4, slot_width=None)
