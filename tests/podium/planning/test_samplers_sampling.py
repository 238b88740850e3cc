"""Order of samples: in each epoch a seeded permutation of all samples, or of a stratum, without visible pattern."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podium.core.errors import UsageError
from podium.planning.samplers import Sampler, StratifiedSampler, apportion, stratum_bounds

SIZES = [1, 2, 3, 4, 5, *(2**n + d for n in (3, 4, 5, 8, 10, 13, 16) for d in (-1, 0, 1)), 100_000]


@pytest.mark.parametrize("size", SIZES)
def test_every_sample_is_drawn_once_per_epoch(size: int) -> None:
    sampler = Sampler(size, seed=3)
    for epoch in (0, 1, 5):
        assert np.array_equal(np.sort(sampler.samples(epoch * size, size)), np.arange(size))


@given(st.integers(1, 3000), st.integers(0, 2**63 - 1), st.integers(0, 4))
@settings(deadline=None)
def test_every_sample_is_drawn_once_for_any_size_and_seed(size: int, seed: int, epoch: int) -> None:
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
def test_seeds_and_epochs_have_different_orders(size: int) -> None:
    orders = [Sampler(size, seed).samples(epoch * size, size) for seed in (0, 1, 2, 2**40) for epoch in range(4)]
    assert len({order.tobytes() for order in orders}) == 16
    assert not any(np.array_equal(order, np.arange(size)) for order in orders)


def test_epochs_of_different_seeds_differ() -> None:
    """Seed and epoch must not be combined by their sum."""
    assert not np.array_equal(Sampler(500, 1).samples(500, 500), Sampler(500, 0).samples(1000, 500))
    assert not np.array_equal(Sampler(500, 1).samples(0, 500), Sampler(500, 0).samples(500, 500))


@pytest.mark.parametrize("size", [10, 16, 100, 1000])
def test_samples_are_uniformly_distributed_over_positions(size: int) -> None:
    """Chi-squared test of the position of each of ten samples over 2,000 seeds in ten classes: 9 degrees of freedom."""
    seeds = 2000
    expected = np.bincount(np.arange(size) * 10 // size) * seeds / size
    places = np.array([np.argsort(Sampler(size, seed).samples(0, size)) for seed in range(seeds)])
    for sample in np.linspace(0, size - 1, 10).astype(int):
        counts = np.bincount(places[:, sample] * 10 // size, minlength=10)
        assert np.sum((counts - expected) ** 2 / expected) < 33.7, counts  # p = 0.0001


def test_neighbours_in_the_order_are_uncorrelated_in_the_data() -> None:
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


def test_zero_samples_are_an_empty_array() -> None:
    assert Sampler(5, 0).samples(3, 0).shape == (0,)


@pytest.mark.parametrize("size", [0, -1])
def test_empty_dataset_is_an_error(size: int) -> None:
    with pytest.raises(ValueError, match="at least one sample"):
        Sampler(size, 0)


MIXED = (
    np.random.default_rng(0).choice([5, 128, 129, 256, 300, 384, 385, 512], 1003).astype(np.uint16)
)  # ends of each stratum


def strata_of(lengths: np.ndarray) -> np.ndarray:
    stratum: np.ndarray = (lengths.astype(np.int64) - 1) // 128
    return stratum


def stratified(batch: int = 16, seed: int = 3, counts: list[int] | None = None) -> StratifiedSampler:
    return StratifiedSampler(MIXED, batch=batch, seed=seed, max_length=512, counts=counts)


def test_every_local_batch_has_its_counts_in_the_order_of_strata() -> None:
    sampler = stratified()
    drawn = strata_of(MIXED[sampler.samples(0, 16 * 200)]).reshape(200, 16)
    assert sampler.counts.sum() == 16
    assert sampler.counts.min() > 0
    assert (drawn == np.repeat(np.arange(4), sampler.counts)).all()


@pytest.mark.parametrize("counts", [None, [1, 2, 3, 10]])
def test_every_sample_of_a_stratum_is_drawn_once_per_stratum_epoch(counts: list[int] | None) -> None:
    drawn = stratified(counts=counts).samples(0, 16 * 600)
    for stratum in range(4):
        own = np.flatnonzero(strata_of(MIXED) == stratum)
        sequence = drawn[strata_of(MIXED[drawn]) == stratum]
        epochs = len(sequence) // len(own)
        assert epochs >= 2
        for epoch in range(epochs):
            assert np.array_equal(np.sort(sequence[epoch * len(own) : (epoch + 1) * len(own)]), own)
        assert len(set(sequence[epochs * len(own) :].tolist())) == len(sequence) - epochs * len(own)
        assert not np.array_equal(sequence[: len(own)], sequence[len(own) : 2 * len(own)])


@pytest.mark.parametrize("lengths", [MIXED, MIXED[MIXED > 128]])
def test_mean_of_equals_the_mean_of_many_batches(lengths: np.ndarray) -> None:
    """Strata are weighted by their slots; an empty one has none."""
    sampler = StratifiedSampler(lengths, batch=5, seed=3, max_length=512)
    drawn = lengths[sampler.samples(0, 5 * 40_000)].mean()
    assert sampler.mean_of(lengths) == pytest.approx(drawn, rel=1e-3)
    assert sampler.mean_of(lengths) != pytest.approx(lengths.mean(), rel=1e-2)


@given(st.integers(0, 5000), st.integers(0, 100), st.sampled_from([5, 12, 16, 31]))
@settings(deadline=None)
def test_any_slice_of_a_stratified_order_is_that_slice_of_the_whole(first: int, count: int, batch: int) -> None:
    whole = stratified(batch).samples(0, first + count)
    assert np.array_equal(stratified(batch).samples(first, count), whole[first:])


def test_strata_of_equal_size_have_different_orders() -> None:
    lengths = np.repeat([100, 200, 300, 400], 64)
    drawn = StratifiedSampler(lengths, batch=4, seed=0, max_length=512).samples(0, 4 * 64)
    orders = {(drawn[stratum::4] - 64 * stratum).tobytes() for stratum in range(4)}
    assert len(orders) == 4
    assert not np.array_equal(drawn, StratifiedSampler(lengths, batch=4, seed=1, max_length=512).samples(0, 4 * 64))


def test_strata_are_quarters_of_the_longest_length() -> None:
    assert stratum_bounds(512).tolist() == [128, 256, 384, 512]
    assert stratum_bounds(128).tolist() == [32, 64, 96, 128]
    assert stratum_bounds(50).tolist() == [12, 25, 37, 50]


@pytest.mark.parametrize(
    ("sizes", "places", "counts"),
    [
        ([3694, 1969, 1173, 3164], 16, [6, 3, 2, 5]),
        ([1, 1, 1, 1], 6, [2, 2, 1, 1]),
        ([0, 5, 0, 5], 4, [0, 2, 0, 2]),
        ([9, 1], 3, [3, 0]),
        ([60_000_000, 30_000_000, 18_000_000, 48_726_829], 48, [18, 9, 6, 15]),
    ],
)
def test_shares_go_to_the_largest_remainders(sizes: list[int], places: int, counts: list[int]) -> None:
    assert apportion(np.array(sizes), places).tolist() == counts


@given(st.lists(st.integers(0, 10**8), min_size=1, max_size=6).filter(any), st.integers(1, 4096))
def test_shares_are_whole_and_within_one_of_proportional(sizes: list[int], places: int) -> None:
    counts = apportion(np.array(sizes), places)
    assert counts.sum() == places
    assert (np.abs(counts - np.array(sizes) * places / sum(sizes)) < 1 + 1e-9).all()
    assert not counts[np.array(sizes) == 0].any()


def test_a_stratum_without_samples_has_no_slot() -> None:
    lengths = np.array([100, 300, 101, 301, 102])
    sampler = StratifiedSampler(lengths, batch=5, seed=0, max_length=512)
    assert sampler.counts.tolist() == [3, 0, 2, 0]
    assert sorted(sampler.samples(0, 5).tolist()) == [0, 1, 2, 3, 4]


def test_stratum_without_slots_is_an_error_that_suggests_a_batch_size() -> None:
    lengths = np.array([100] * 60 + [200] * 30 + [300] * 4 + [500] * 60)
    with pytest.raises(
        UsageError, match=r"batches of 8, .* 4 samples of 257 to 384 tokens; .* such as (\d+);"
    ) as refused:
        StratifiedSampler(lengths, batch=8, seed=0, max_length=512)
    advised = int(str(refused.value).split("such as ")[1].split(";")[0])
    assert StratifiedSampler(lengths, batch=advised, seed=0, max_length=512).counts.min() == 1
    with pytest.raises(UsageError):
        StratifiedSampler(lengths, batch=advised - 1, seed=0, max_length=512)
    with pytest.raises(UsageError, match=r"strata_counts: .* up to 128 tokens in stratum 1 do not match its 0 slots"):
        StratifiedSampler(lengths, batch=4, seed=0, max_length=512, counts=[0, 1, 1, 2])


def test_one_rare_sample_is_an_error_without_a_long_search() -> None:
    """The suggested batch is sure to draw it; the search for a smaller one is bounded."""
    with pytest.raises(UsageError, match="such as 200000;"):
        StratifiedSampler(np.array([100] * 199_999 + [500]), batch=8, seed=0, max_length=512)


@pytest.mark.parametrize(
    ("lengths", "batch", "counts"),
    [
        ([], 4, None),
        ([5], 0, None),
        ([0, 5], 4, None),
        ([5, 513], 4, None),
        ([5, 200], 4, [3, 1]),
        ([5, 200], 4, [2, 1, 0, 0]),
        ([5, 200], 4, [5, -1, 0, 0]),
    ],
)
def test_invalid_strata_are_an_error(lengths: list[int], batch: int, counts: list[int] | None) -> None:
    with pytest.raises(ValueError, match=r"stratified sampler needs|do not add up to a batch of"):
        StratifiedSampler(np.array(lengths, dtype=np.int64), batch=batch, seed=0, max_length=512, counts=counts)


def test_zero_stratified_samples_are_an_empty_array() -> None:
    assert stratified().samples(3, 0).shape == (0,)
    assert stratified().samples(0, 5).dtype == np.int64
