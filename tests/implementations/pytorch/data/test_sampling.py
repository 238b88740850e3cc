"""The order of samples: a permutation an epoch, a function of the seed, without pattern."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from implementations.pytorch.data.sampling import Sampler

SIZES = [1, 2, 3, 4, 5, *(2**n + d for n in (3, 4, 5, 8, 10, 13, 16) for d in (-1, 0, 1)), 100_000]


@pytest.mark.parametrize("size", SIZES)
def test_every_sample_comes_once_an_epoch(size: int) -> None:
    sampler = Sampler(size, seed=3)
    for epoch in (0, 1, 5):
        assert np.array_equal(np.sort(sampler.samples(epoch * size, size)), np.arange(size))


@given(st.integers(1, 3000), st.integers(0, 2**63 - 1), st.integers(0, 4))
@settings(deadline=None)
def test_every_sample_comes_once_whatever_size_and_seed(size: int, seed: int, epoch: int) -> None:
    assert set(Sampler(size, seed).samples(epoch * size, size).tolist()) == set(range(size))


@given(st.integers(1, 700), st.integers(0, 2**32), st.integers(0, 400), st.integers(0, 200))
@settings(deadline=None)
def test_any_slice_is_that_slice_of_the_whole(size: int, seed: int, first: int, count: int) -> None:
    whole = Sampler(size, seed).samples(0, first + count)
    assert np.array_equal(Sampler(size, seed).samples(first, count), whole[first:])


def test_one_sample_at_a_time_is_the_same_order() -> None:
    sampler = Sampler(37, seed=5)
    assert [int(sampler.samples(i, 1)[0]) for i in range(100)] == sampler.samples(0, 100).tolist()


@pytest.mark.parametrize("size", [20, 64, 1000, 100_000])
def test_seeds_and_epochs_have_orders_of_their_own(size: int) -> None:
    orders = [Sampler(size, seed).samples(epoch * size, size) for seed in (0, 1, 2, 2**40) for epoch in range(4)]
    assert len({order.tobytes() for order in orders}) == 16
    assert not any(np.array_equal(order, np.arange(size)) for order in orders)


def test_an_epoch_is_not_the_epoch_of_another_seed() -> None:
    """(seed, epoch) may not be mixed to a sum."""
    assert not np.array_equal(Sampler(500, 1).samples(500, 500), Sampler(500, 0).samples(1000, 500))
    assert not np.array_equal(Sampler(500, 1).samples(0, 500), Sampler(500, 0).samples(500, 500))


@pytest.mark.parametrize("size", [10, 16, 100, 1000])
def test_a_sample_comes_at_any_place_equally_often(size: int) -> None:
    """Pearson's statistic of the place of each of ten samples over 2,000 seeds in ten classes: 9 degrees of freedom."""
    seeds = 2000
    expected = np.bincount(np.arange(size) * 10 // size) * seeds / size
    places = np.array([np.argsort(Sampler(size, seed).samples(0, size)) for seed in range(seeds)])
    for sample in np.linspace(0, size - 1, 10).astype(int):
        counts = np.bincount(places[:, sample] * 10 // size, minlength=10)
        assert np.sum((counts - expected) ** 2 / expected) < 33.7, counts  # p = 0.0001


def test_neighbours_in_the_order_are_not_neighbours_in_the_data() -> None:
    size = 50_000
    order = Sampler(size, seed=11).samples(0, size)
    assert abs(np.abs(np.diff(order)).mean() / size - 1 / 3) < 0.01  # of two independent uniform numbers
    assert abs(np.corrcoef(np.arange(size), order)[0, 1]) < 0.02
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.02
    assert np.sum(np.diff(order) == 1) < 10  # 1 is expected


@pytest.mark.parametrize("size", [1, 3, 2**31])
def test_indices_are_int64_within_the_data(size: int) -> None:
    indices = Sampler(size, seed=2**62).samples(2**40, 1000)
    assert indices.dtype == np.int64
    assert indices.min() >= 0
    assert indices.max() < size


def test_no_samples_asked_for_are_none() -> None:
    assert Sampler(5, 0).samples(3, 0).shape == (0,)


@pytest.mark.parametrize("size", [0, -1])
def test_an_order_of_nothing_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match="at least one sample"):
        Sampler(size, 0)
