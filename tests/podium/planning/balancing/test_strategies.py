"""Every strategy assigns every sample exactly once, for any ranks, epochs, partial batches and resumed runs."""

from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.bert.lengths import wikipedia_histogram
from podium.planning.balancing.interface import Assignment, AssignmentSpec
from podium.planning.balancing.strategies import STRATEGIES, assign
from podium.planning.samplers import Order, Sampler, StratifiedSampler

PAIR_COST = 1 / 6144
EVERY = sorted(STRATEGIES)


def wikipedia(count: int, seed: int = 0) -> np.ndarray:
    histogram = wikipedia_histogram()
    return np.random.default_rng(seed).choice(len(histogram), count, p=histogram / histogram.sum()).astype(np.uint16)


def is_whole(assignment: Assignment, count: int, parts: int) -> bool:
    return (
        sorted(assignment.order.tolist()) == list(range(count))
        and len(assignment.starts) == parts + 1
        and assignment.starts[0] == 0
        and assignment.starts[-1] == count
        and int(assignment.counts.min()) >= 1
    )


@given(
    strategy=st.sampled_from(EVERY),
    nodes=st.integers(1, 3),
    per_node=st.integers(1, 4),
    accumulation=st.integers(1, 4),
    micro_batch=st.integers(1, 7),
    extra=st.integers(0, 5),
    counts=st.sampled_from(["equal", "free"]),
    longest=st.sampled_from([1, 2, 9, 512]),
    seed=st.integers(0, 1000),
)
@settings(deadline=None, max_examples=300)
def test_every_position_is_assigned_once(
    strategy: str,
    nodes: int,
    per_node: int,
    accumulation: int,
    micro_batch: int,
    extra: int,
    counts: Literal["equal", "free"],
    longest: int,
    seed: int,
) -> None:
    spec = AssignmentSpec(nodes * per_node, per_node, PAIR_COST, sequence_cost=2.0, counts=counts)
    parts = spec.parts * accumulation
    equal = STRATEGIES[strategy].has_equal_counts(spec)
    count = parts * micro_batch + (0 if equal else extra)
    lengths = np.random.default_rng(seed).integers(1, longest + 1, count).astype(np.uint16)
    assignment = assign(strategy, lengths, spec, accumulation)
    assert is_whole(assignment, count, parts)
    if equal:
        assert set(assignment.counts.tolist()) == {micro_batch}
    again = assign(strategy, lengths.copy(), spec, accumulation)
    assert np.array_equal(again.order, assignment.order)
    assert np.array_equal(again.starts, assignment.starts)


@pytest.mark.parametrize("strategy", EVERY)
@pytest.mark.parametrize("accumulation", [1, 2])
def test_every_sample_is_assigned_once_per_epoch(strategy: str, accumulation: int) -> None:
    """997 samples in batches of 64: no epoch but the 64th ends with a batch. Any step can be computed alone."""
    lengths, batch, ranks = wikipedia(997), 64, 4
    spec = AssignmentSpec(ranks, 2, PAIR_COST)

    def order() -> Order:
        if STRATEGIES[strategy].strata:
            return StratifiedSampler(lengths, batch=batch // ranks // accumulation, seed=5, max_length=512)
        return Sampler(len(lengths), 5)

    def assigned(sampler: Order, step: int) -> tuple[np.ndarray, list[list[int]]]:
        drawn = sampler.samples(step * batch, batch)
        assignment = assign(strategy, lengths[drawn], spec, accumulation)
        taken = drawn[assignment.order]
        return taken, [drawn[assignment.part(p)].tolist() for p in range(assignment.parts)]

    whole, steps = order(), 50
    runs = [assigned(whole, step) for step in range(steps)]
    taken = np.concatenate([samples for samples, _ in runs])
    times = np.bincount(taken, minlength=997)
    stratum_of = (lengths - 1) // 128 if STRATEGIES[strategy].strata else np.zeros(997, dtype=np.int64)
    for stratum in np.unique(stratum_of):
        inside = times[stratum_of == stratum]
        epochs = int(inside.sum()) // len(inside)
        assert epochs >= 2
        assert set(inside.tolist()) <= {epochs, epochs + 1}
        assert int((inside == epochs + 1).sum()) == int(inside.sum()) - epochs * len(inside)
    for step in (0, 7, 31, 49):
        assert assigned(order(), step)[1] == runs[step][1]


@pytest.mark.parametrize("strategy", [name for name in EVERY if STRATEGIES[name].counts == "equal"] + ["indexed"])
@pytest.mark.parametrize(
    ("batch", "ranks", "accumulation"), [(7, 2, 1), (8, 3, 1), (8, 2, 3), (1, 2, 1), (12, 4, 2), (0, 2, 1)]
)
def test_batch_that_cannot_be_split_evenly_is_an_error(
    strategy: str, batch: int, ranks: int, accumulation: int
) -> None:
    message = f"batch of {batch} cannot be split evenly over {ranks} ranks × {accumulation}"
    with pytest.raises(ValueError, match=message):
        assign(strategy, np.full(batch, 9, dtype=np.uint16), AssignmentSpec(ranks, 1), accumulation)


@pytest.mark.parametrize("strategy", ["packed", "indexed"])
def test_free_counts_need_one_sample_per_part(strategy: str) -> None:
    spec = AssignmentSpec(3, 3, counts="free")
    assert is_whole(assign(strategy, np.full(6, 9, dtype=np.uint16), spec, 2), 6, 6)
    with pytest.raises(ValueError, match="batch of 5 cannot be split over 3 ranks × 2"):
        assign(strategy, np.full(5, 9, dtype=np.uint16), spec, 2)


@pytest.mark.parametrize("strategy", EVERY)
def test_sample_without_tokens_is_an_error(strategy: str) -> None:
    with pytest.raises(ValueError, match="at least one token"):
        assign(strategy, np.array([4, 0]), AssignmentSpec(1, 1))


@pytest.mark.parametrize("strategy", ["packed", "indexed"])
@pytest.mark.parametrize("least", [2, 3])
def test_every_part_has_the_minimum_count(strategy: str, least: int) -> None:
    lengths = np.array([512, 512, 512, *[3] * 30], dtype=np.uint16)
    assignment = assign(strategy, lengths, AssignmentSpec(4, 4, PAIR_COST, counts="free", min_samples=least))
    assert is_whole(assignment, 33, 4)
    assert int(assignment.counts.min()) >= least


@pytest.mark.parametrize("strategy", ["random", "padded", "stratified"])
def test_unsorted_strategies_keep_the_order_of_samples(strategy: str) -> None:
    assignment = assign(strategy, np.arange(1, 13, dtype=np.uint16), AssignmentSpec(2, 2), 3)
    assert assignment.order.tolist() == list(range(12))
    assert assignment.starts.tolist() == [0, 2, 4, 6, 8, 10, 12]


def test_micro_batches_are_assigned_within_their_rank() -> None:
    lengths = wikipedia(96)
    spec = AssignmentSpec(4, 2, PAIR_COST)
    for strategy in EVERY:
        ranks, both = assign(strategy, lengths, spec), assign(strategy, lengths, spec, 2)
        for rank in range(4):
            mine = np.concatenate([both.part(2 * rank), both.part(2 * rank + 1)])
            if STRATEGIES[strategy].has_equal_counts(spec):
                assert sorted(mine.tolist()) == sorted(ranks.part(rank).tolist())
            else:
                assert len(both.part(2 * rank)) >= 1
        tokens = both.loads(lengths).reshape(4, 2)
        if strategy == "indexed":
            assert float((tokens.max(axis=1) / tokens.mean(axis=1)).max()) < 1.02


def test_strata_make_local_batches_of_fixed_counts() -> None:
    lengths = wikipedia(5000)
    sampler = StratifiedSampler(lengths, batch=16, seed=1, max_length=512)
    drawn = sampler.samples(3 * 512, 512)
    for accumulation in (1, 4):
        assignment = assign("stratified", lengths[drawn], AssignmentSpec(32 // accumulation, 8), accumulation)
        for part in range(32):
            taken = (lengths[drawn[assignment.part(part)]].astype(np.int64) - 1) // 128
            assert np.bincount(taken, minlength=4).tolist() == sampler.counts.tolist()


def test_strategy_table() -> None:
    assert [name for name in EVERY if STRATEGIES[name].pads] == ["padded"]
    assert [name for name in EVERY if STRATEGIES[name].strata] == ["presorted", "stratified"]
    assert [name for name in EVERY if STRATEGIES[name].rows] == ["packed"]
    assert {name: STRATEGIES[name].communication for name in EVERY if STRATEGIES[name].exchange != "none"} == {
        "exchanged": "samples of all ranks",
        "presorted": "samples of a node",
    }
    assert STRATEGIES["indexed"].communication == "none"


def test_bytes_per_step_are_those_of_an_all_gather() -> None:
    lengths, spec = np.array([100, 512, 1, 20], dtype=np.uint16), AssignmentSpec(4, 2)
    one_copy = (200 + 4 * 15 + 3) + (1024 + 4 * 76 + 3) + (2 + 4 + 3) + (40 + 4 * 3 + 3)
    assert STRATEGIES["exchanged"].bytes_per_step(lengths, spec) == one_copy / 4 * 3
    assert STRATEGIES["presorted"].bytes_per_step(lengths, spec) == one_copy / 4
    assert STRATEGIES["indexed"].bytes_per_step(lengths, spec) == 0


@pytest.mark.parametrize("counts", ["equal", "free"])
def test_micro_batches_do_not_change_the_balance_of_ranks(counts: Literal["equal", "free"]) -> None:
    """A rank's micro-batches have equal numbers of samples, to within one."""
    lengths = np.random.default_rng(2).integers(5, 513, 64 * 16)
    spec = AssignmentSpec(64, 8, pair_cost=1e-4, counts=counts)
    once, split = (assign("indexed", lengths, spec, steps) for steps in (1, 4))
    assert np.array_equal(split.loads(lengths).reshape(64, 4).sum(axis=1), once.loads(lengths))
    numbers = split.counts.reshape(64, 4)
    assert (numbers.max(axis=1) - numbers.min(axis=1) <= 1).all()
    tokens = split.loads(lengths).reshape(64, 4)
    assert (tokens.max(axis=1) < 1.5 * tokens.min(axis=1)).mean() > 0.9
