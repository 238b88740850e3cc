"""Who takes which samples: every one is taken once, and `indexed` gives all ranks the same work."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from implementations.pytorch.data.balancing import STRATEGIES, assign

Lengths = Callable[[int, int], np.ndarray]


@given(
    strategy=st.sampled_from(sorted(STRATEGIES)),
    ranks=st.integers(1, 9),
    accumulation=st.integers(1, 5),
    micro_batch=st.integers(1, 7),
    seed=st.integers(0, 1000),
)
@settings(deadline=None)
def test_every_position_is_taken_once(
    strategy: str, ranks: int, accumulation: int, micro_batch: int, seed: int
) -> None:
    lengths = np.random.default_rng(seed).integers(1, 513, ranks * accumulation * micro_batch).astype(np.uint16)
    positions = assign(strategy, lengths, ranks, accumulation)
    assert positions.shape == (ranks, accumulation, micro_batch)
    assert sorted(positions.ravel().tolist()) == list(range(len(lengths)))
    assert np.array_equal(positions, assign(strategy, lengths, ranks, accumulation))


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
@pytest.mark.parametrize(("batch", "ranks", "accumulation"), [(7, 2, 1), (8, 3, 1), (8, 2, 3), (1, 2, 1), (12, 4, 2)])
def test_what_cannot_be_shared_evenly_is_refused(strategy: str, batch: int, ranks: int, accumulation: int) -> None:
    with pytest.raises(
        ValueError, match=f"batch of {batch} cannot be split evenly over {ranks} ranks × {accumulation}"
    ):
        assign(strategy, np.full(batch, 9, dtype=np.uint16), ranks, accumulation)


def max_over_mean(lengths: np.ndarray, positions: np.ndarray) -> float:
    tokens = lengths.astype(np.int64)[positions].reshape(len(positions), -1).sum(axis=1)
    return float(tokens.max() / tokens.mean())


def test_indexed_is_balanced_on_wikipedia(wikipedia_lengths: Lengths) -> None:
    """8 ranks of 56 samples; `random` is measured beside it, so that the comparison means something."""
    indexed, random = [], []
    for seed in range(20):
        lengths = wikipedia_lengths(8 * 56, seed)
        indexed.append(max_over_mean(lengths, assign("indexed", lengths, 8, 1)))
        random.append(max_over_mean(lengths, assign("random", lengths, 8, 1)))
    assert max(indexed) <= 1.01
    assert min(random) > max(indexed)
    assert np.mean(random) > 1.05


def test_indexed_balances_the_micro_batches_too(wikipedia_lengths: Lengths) -> None:
    for seed in range(5):
        lengths = wikipedia_lengths(4 * 4 * 28, seed)
        positions = assign("indexed", lengths, 4, 4)
        assert max_over_mean(lengths, positions) <= 1.01
        for mine in positions:
            assert max_over_mean(lengths, mine) <= 1.04


@given(st.lists(st.integers(1, 512), min_size=2, max_size=60), st.integers(2, 6))
@settings(deadline=None)
def test_indexed_differs_by_one_round_at_most(lengths: list[int], ranks: int) -> None:
    """The snake's bound: two ranks differ by at most the longest sample minus the shortest."""
    padded = np.array(lengths[: len(lengths) // ranks * ranks], dtype=np.uint16)
    if not len(padded):
        return
    tokens = padded.astype(np.int64)[assign("indexed", padded, ranks, 1)].sum(axis=(1, 2))
    assert tokens.max() - tokens.min() <= int(padded.max()) - int(padded.min())


def test_the_snake_goes_there_and_back_again() -> None:
    lengths = np.array([1, 2, 3, 4, 5, 6, 7, 8, 9], dtype=np.uint16)
    taken = lengths[assign("indexed", lengths, 3, 1)[:, 0]]
    assert taken.tolist() == [[9, 4, 3], [8, 5, 2], [7, 6, 1]]


def test_ties_keep_their_order() -> None:
    positions = assign("indexed", np.full(6, 100, dtype=np.uint16), 2, 1)
    assert positions[:, 0].tolist() == [[0, 3, 4], [1, 2, 5]]


@pytest.mark.parametrize("strategy", ["random", "padded"])
def test_the_others_take_samples_as_they_come(strategy: str) -> None:
    positions = assign(strategy, np.arange(1, 13, dtype=np.uint16), 2, 3)
    assert positions.ravel().tolist() == list(range(12))


def test_only_padded_pads() -> None:
    assert [name for name, strategy in STRATEGIES.items() if strategy.pads] == ["padded"]
