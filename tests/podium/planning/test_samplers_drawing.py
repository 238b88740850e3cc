"""Order of samples with a part of the dataset for each rank, with phases of sequence length, and by strata."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podium.core.errors import UsageError
from podium.planning import samplers as module
from podium.planning.balancing.interface import AssignmentSpec
from podium.planning.batch_plan import TrainingOrder
from podium.planning.samplers import (
    Phase,
    Sampler,
    ShardedSampler,
    StratifiedSampler,
    build_order,
    part_bounds,
    permute,
)

MIXED = np.random.default_rng(0).choice([5, 100, 128, 129, 300, 512], 997).astype(np.uint16)
# Two stores, one after the other: the samples of 512 tokens at most, and those of the first phase.
SHORT = np.random.default_rng(1).choice([5, 100, 128], 311).astype(np.uint16)
JOINED = np.concatenate([MIXED, SHORT])
FIRST, SECOND = (len(MIXED), len(JOINED)), (0, len(MIXED))


def two_phases(samples: int, accumulation_steps: int | None = None) -> list[Phase]:
    return [Phase(128, samples, *FIRST, accumulation_steps), Phase(512, None, *SECOND)]


class Index:
    """A length index in memory, without a store."""

    def __init__(self, lengths: np.ndarray) -> None:
        self.lengths = lengths
        self.masked_counts = np.maximum(1, lengths // 7).astype(np.uint16)
        self.max_sequence_length = 512

    def __len__(self) -> int:
        return len(self.lengths)


@pytest.mark.parametrize("samples", [7, 64, 1001])
@pytest.mark.parametrize("ranks", [2, 3, 7])
def test_parts_are_consecutive_runs_of_equal_size(samples: int, ranks: int) -> None:
    bounds = part_bounds(samples, ranks)
    assert (bounds[0], bounds[-1], len(bounds)) == (0, samples, ranks + 1)
    assert np.diff(bounds).max() - np.diff(bounds).min() <= 1


@pytest.mark.parametrize(("samples", "ranks", "batch"), [(1000, 4, 8), (997, 3, 5), (60, 7, 4)])
def test_rank_draws_each_sample_of_its_part_once_per_epoch(samples: int, ranks: int, batch: int) -> None:
    bounds = part_bounds(samples, ranks)
    batches = 3 * -(-samples // (ranks * batch)) + 3
    drawn = ShardedSampler(bounds, batch=batch, seed=5).samples(0, batches * ranks * batch)
    by_rank = drawn.reshape(batches, ranks, batch).transpose(1, 0, 2).reshape(ranks, -1)
    orders = set()
    for rank, sequence in enumerate(by_rank):
        size = bounds[rank + 1] - bounds[rank]
        for epoch in range(2):
            mine = sequence[epoch * size : (epoch + 1) * size]
            assert np.array_equal(np.sort(mine), np.arange(bounds[rank], bounds[rank + 1]))
            orders.add((mine[: size - 1] - bounds[rank]).tobytes())
    assert len(orders) == 2 * ranks, "two ranks or two epochs have one order"


@given(st.integers(0, 3000), st.integers(0, 200), st.sampled_from([(1, 4), (3, 5), (4, 1)]), st.integers(0, 3))
@settings(deadline=None)
def test_any_slice_of_a_sharded_order_is_that_slice_of_the_whole(
    first: int, count: int, shape: tuple[int, int], seed: int
) -> None:
    ranks, batch = shape
    order = build_order(
        len(JOINED), seed=seed, ranks=ranks, local_batch=batch, shards="per_rank", phases=two_phases(700)
    )
    assert np.array_equal(order.samples(first, count), order.samples(0, first + count)[first:])


def test_single_rank_draws_in_the_order_without_parts() -> None:
    shared, parts = (
        build_order(len(MIXED), seed=9, ranks=1, local_batch=8, shards=shards) for shards in ("shared", "per_rank")
    )
    assert np.array_equal(shared.samples(5, 3000), parts.samples(5, 3000))
    assert np.array_equal(shared.samples(0, 100), Sampler(len(MIXED), 9).samples(0, 100))


def test_orders_depend_on_the_seed() -> None:
    for phases in ([], two_phases(40)):
        for shards in ("shared", "per_rank"):
            samples = len(JOINED)
            one, two = (
                build_order(samples, seed=seed, ranks=2, local_batch=4, shards=shards, phases=phases).samples(0, 80)
                for seed in (1, 2)
            )
            assert (one[:40] != two[:40]).any()
            assert (one[40:] != two[40:]).any()


@pytest.mark.parametrize("shards", ["shared", "per_rank"])
def test_phase_draws_each_sample_of_its_store_once_per_epoch(shards: str) -> None:
    ranks, batch = 4, 3
    order = build_order(len(JOINED), seed=1, ranks=ranks, local_batch=batch, shards=shards, phases=two_phases(1000))
    first = order.samples(0, 1008)  # 1000 in whole batches of 12
    later = order.samples(1008, 12 * 300)
    for drawn, (start, stop) in ((first, FIRST), (later, SECOND)):
        assert (drawn.min(), drawn.max()) == (start, stop - 1)
        parts = ranks if shards == "per_rank" else 1
        bounds = start + part_bounds(stop - start, parts)
        by_rank = drawn.reshape(-1, parts, batch * ranks // parts).transpose(1, 0, 2).reshape(parts, -1)
        for rank, sequence in enumerate(by_rank):
            own = np.arange(bounds[rank], bounds[rank + 1])
            assert np.array_equal(np.sort(sequence[: len(own)]), own)
    one_more = build_order(len(JOINED), seed=1, ranks=ranks, local_batch=batch, shards=shards, phases=two_phases(1009))
    assert (one_more.samples(1008, 12) >= len(MIXED)).all()


def test_part_without_samples_is_an_error() -> None:
    with pytest.raises(UsageError, match=r"shards: found per_rank, but 3 ranks cannot each have a part of 2 samples;"):
        build_order(50, seed=0, ranks=3, local_batch=1, shards="per_rank", phases=[Phase(128, 8, 48), Phase(512, None)])
    with pytest.raises(ValueError, match="at least one sample each"):
        ShardedSampler(np.array([0, 4, 4]), batch=2, seed=0)


def test_the_published_counts_of_strata_are_drawn() -> None:
    lengths = np.repeat([64, 200, 300, 500], [3694, 1969, 1173, 3164])  # Wikipedia's shares
    own = StratifiedSampler(lengths, batch=12, seed=0, max_length=512)
    published = StratifiedSampler(lengths, batch=12, seed=0, max_length=512, counts=[4, 2, 2, 4])
    assert own.counts.tolist() == [5, 2, 1, 4]
    drawn = (lengths[published.samples(0, 12 * 50)].astype(int) - 1) // 128
    assert (drawn.reshape(50, 12) == [0, 0, 0, 0, 1, 1, 2, 2, 3, 3, 3, 3]).all()


@pytest.mark.parametrize("counts", [[3, 1, 0, 0], [2, 0, 1, 1], [4, 0, 0, 0], [2, 1, 1, 0]])
def test_counts_that_do_not_match_the_data_are_an_error(counts: list[int]) -> None:
    lengths = np.array([10, 20, 200, 500] * 8)
    with pytest.raises(
        UsageError, match=r"strata_counts: found \[.*\], but the .* in stratum [234] do not match its [01] slots"
    ):
        StratifiedSampler(lengths, batch=4, seed=0, max_length=512, counts=counts)


@pytest.mark.parametrize(("accumulation", "of_first"), [(1, None), (2, None), (4, 1), (1, 2)])
def test_unbalanced_rank_trains_only_on_its_part_of_the_phase(accumulation: int, of_first: int | None) -> None:
    order = TrainingOrder(
        Index(JOINED),
        seed=3,
        strategy="padded",
        global_batch_size=24,
        spec=AssignmentSpec(3, 3),
        accumulation_steps=accumulation,
        shards="per_rank",
        phases=two_phases(48, of_first),
    )
    assert order.first_steps() == [0, 2]
    for step in range(6):
        whole = order.global_batch(step)
        width, steps, (start, stop) = (
            (128, of_first or accumulation, FIRST) if step < 2 else (512, accumulation, SECOND)
        )
        bounds = start + part_bounds(stop - start, 3)
        assert whole.micro_batch_slots.shape == (3, steps)
        assert (whole.micro_batch_slots == 8 // steps * width).all()
        for rank in range(3):
            assert len(whole.micro_batches(rank)) == steps
            for part in whole.micro_batches(rank):
                mine = whole.indices[part]
                assert ((bounds[rank] <= mine) & (mine < bounds[rank + 1])).all()
            assert {layout[0] for _, layout in order.layouts(whole, rank)} == {width}


@pytest.mark.parametrize("strategy", ["exchanged", "indexed", "packed", "random"])
def test_strategies_without_strata_balance_both_phases(strategy: str) -> None:
    order = TrainingOrder(
        Index(JOINED),
        seed=3,
        strategy=strategy,
        global_batch_size=24,
        spec=AssignmentSpec(3, 3),
        accumulation_steps=2,
        phases=two_phases(48, 1),
    )
    for step in range(4):
        whole = order.global_batch(step)
        assert ((whole.indices >= len(MIXED)) == (step < 2)).all()
        assert whole.lengths.max() <= (128 if step < 2 else 512)
        assert np.array_equal(np.sort(whole.indices), np.sort(order.sampler.samples(step * 24, 24)))
        assert whole.micro_batch_slots.shape == (3, 1 if step < 2 else 2)
        assert order.width_at(step * 24) is None


@pytest.mark.parametrize("strategy", ["exchanged", "indexed", "padded"])
def test_batch_has_the_drawing_positions_of_its_samples(strategy: str) -> None:
    order = TrainingOrder(
        Index(MIXED), seed=3, strategy=strategy, global_batch_size=24, spec=AssignmentSpec(3, 3), accumulation_steps=2
    )
    for step in (0, 5):
        whole = order.global_batch(step)
        assert np.array_equal(order.sampler.samples(step * 24, 24)[whole.positions], whole.indices)


@pytest.mark.parametrize(("samples", "ranks", "batch"), [(57, 8, 5), (1000, 4, 3), (8, 8, 2), (20, 1, 4)])
def test_rank_draws_with_its_keys_in_every_epoch(samples: int, ranks: int, batch: int) -> None:
    bounds = part_bounds(samples, ranks)
    drawn = ShardedSampler(bounds, batch=batch, seed=5).samples(3, 40 * ranks * batch)
    for place, index in enumerate(drawn.tolist(), start=3):
        local_batch, slot = divmod(place, batch)
        number, rank = local_batch // ranks * batch + slot, local_batch % ranks
        size = int(bounds[rank + 1] - bounds[rank])
        epoch, position = divmod(number, size)
        keys = module._keys(5, epoch, 1 + rank) if ranks > 1 else module._keys(5, epoch)
        largest = int(np.diff(bounds).max())
        place_in_part = permute(
            np.array([position], np.uint64), np.array([size], np.uint64), largest, keys[None], np.zeros(1, np.uint64)
        )
        assert index == bounds[rank] + int(place_in_part[0])
    assert len(ShardedSampler(bounds, batch=batch, seed=5).samples(9, 0)) == 0
