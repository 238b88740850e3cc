"""`indexed` balances tokens and cost at the same time, close to the lower bound."""

from typing import Literal
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.bert.lengths import wikipedia_histogram
from benchmarks.bert.sizes import LARGE
from podium.planning.balancing import indexed as indexed_module
from podium.planning.balancing.indexed import Columns, indexed, lpt
from podium.planning.balancing.interface import Assignment, AssignmentSpec, max_over_mean_lower_bound
from podium.planning.balancing.published import snake
from podium.planning.balancing.strategies import assign

PAIR_COST = 1 / (6 * 1024)  # of BERT-large: 12·24·1024 FLOPs a pair, 6·302.0M a token
COSTS = [PAIR_COST / 3, PAIR_COST, PAIR_COST * 3]


def wikipedia(count: int, seed: int) -> np.ndarray:
    histogram = wikipedia_histogram()
    return np.random.default_rng(seed).choice(len(histogram), count, p=histogram / histogram.sum()).astype(np.uint16)


def balance(assignment: Assignment, lengths: np.ndarray, spec: AssignmentSpec) -> tuple[float, float]:
    """max/mean of tokens and of cost."""
    tokens, costs = assignment.loads(lengths), assignment.loads(spec.costs(lengths))
    return float(tokens.max() / tokens.mean()), float(costs.max() / costs.mean())


def bound(lengths: np.ndarray, spec: AssignmentSpec) -> float:
    lengths = np.sort(lengths)[::-1]
    return max(max_over_mean_lower_bound(lengths, spec), max_over_mean_lower_bound(spec.costs(lengths), spec))


def means(spec: AssignmentSpec, local_batch: int, draws: int) -> tuple[float, float, float]:
    """Means over draws: max/mean of tokens, of cost, and the distance of the larger to the lower bound."""
    found = []
    for seed in range(draws):
        lengths = wikipedia(spec.parts * local_batch, seed)
        tokens, costs = balance(indexed(lengths, spec), lengths, spec)
        found.append((tokens, costs, max(tokens, costs) - bound(lengths, spec)))
    tokens, costs, above = np.mean(found, axis=0)
    return float(tokens), float(costs), float(above)


def test_pair_cost_is_that_of_bert_large() -> None:
    one, two, three = (LARGE.training_flops([tokens], masked=0, vocabulary_size=0) for tokens in (1, 2, 3))
    pair = (three - 2 * two + one) / 2
    assert pair / (two - one - 3 * pair) == pytest.approx(PAIR_COST, rel=1e-6)


@pytest.mark.parametrize("pair_cost", COSTS)
@pytest.mark.parametrize("counts", ["equal", "free"])
def test_1024_ranks_of_16(pair_cost: float, counts: Literal["equal", "free"]) -> None:
    tokens, costs, above = means(AssignmentSpec(1024, 8, pair_cost, counts=counts), 16, 20)
    assert max(tokens, costs) <= 1.001
    assert above <= 0.001


@pytest.mark.parametrize(("pair_cost", "most"), list(zip(COSTS, [1.003, 1.005, 1.012], strict=True)))
def test_4096_ranks_of_4_with_free_counts(pair_cost: float, most: float) -> None:
    tokens, costs, _ = means(AssignmentSpec(4096, 8, pair_cost, counts="free"), 4, 20)
    assert max(tokens, costs) <= most


@pytest.mark.parametrize("pair_cost", COSTS)
def test_4096_ranks_of_4_with_equal_counts_are_close_to_the_bound(pair_cost: float) -> None:
    """No assignment reaches 1.01: some parts have two of the longest quarter of samples, and two more."""
    spec = AssignmentSpec(4096, 8, pair_cost)
    tokens, _, above = means(spec, 4, 20)
    assert above <= 0.0015
    assert tokens <= 1.01


@pytest.mark.parametrize(("ranks", "local_batch"), [(8, 56), (64, 48), (1368, 12)])
def test_other_published_sizes(ranks: int, local_batch: int) -> None:
    tokens, costs, _ = means(AssignmentSpec(ranks, 8, PAIR_COST), local_batch, 10)
    assert max(tokens, costs) <= 1.0008


def test_two_ranks_of_8() -> None:
    """Few assignments are possible; a snake is measured for comparison."""
    spec, found, plain = AssignmentSpec(2, 2, PAIR_COST), [], []
    for seed in range(20):
        lengths = wikipedia(16, seed)
        found.append(max(balance(indexed(lengths, spec), lengths, spec)))
        plain.append(max(balance(Assignment.from_rows(snake(lengths, 2)), lengths, spec)))
    assert np.mean(found) <= 1.004
    assert np.mean(plain) > 1.01


def test_indexed_beats_snake_and_lpt() -> None:
    lengths, spec = wikipedia(4096 * 4, 0), AssignmentSpec(4096, 8, PAIR_COST, counts="free")
    assert max(balance(Assignment.from_rows(snake(lengths, 4096)), lengths, spec)) > 1.1
    assert max(balance(lpt(lengths, spec), lengths, spec)) > 1.02
    assert max(balance(indexed(lengths, spec), lengths, spec)) < 1.005


def test_rounds_improve_the_score() -> None:
    lengths, spec = wikipedia(4096 * 4, 0), AssignmentSpec(4096, 8, PAIR_COST, counts="free")
    columns = Columns(lengths, spec, 5)
    before = columns.score
    columns.refine(1.0)
    assert before > 1.05
    assert columns.score < 1.005


def test_swaps_improve_small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = AssignmentSpec(2, 2, PAIR_COST)
    with_swaps = means(spec, 8, 20)
    monkeypatch.setattr(indexed_module, "MAX_SWAPS", 0)
    assert max(means(spec, 8, 20)[:2]) > max(with_swaps[:2]) + 0.004


def test_incremental_loads_equal_the_sums_of_samples() -> None:
    lengths, spec = wikipedia(60, 1), AssignmentSpec(12, 12, PAIR_COST, sequence_cost=7.0, counts="free")
    columns = Columns(lengths, spec, 6)
    columns.refine(1.0)
    assignment = columns.assignment(60)
    assert np.array_equal(columns.tokens, assignment.loads(lengths))
    assert columns.costs / columns._samples.unit == pytest.approx(assignment.loads(spec.costs(lengths)), rel=1e-6)
    assert columns.score == pytest.approx(max(balance(assignment, lengths, spec)), rel=1e-6)


def test_pairs_of_tokens_are_balanced() -> None:
    lengths, costly = wikipedia(1024 * 16, 0), AssignmentSpec(1024, 8, pair_cost=0.01)
    blind = indexed(lengths, AssignmentSpec(1024, 8))
    assert balance(blind, lengths, costly)[1] > 1.005
    assert balance(indexed(lengths, costly), lengths, costly)[1] < 1.0015


def test_sequence_costs_are_balanced() -> None:
    """Ten samples of 100 tokens and 100 of 10: by tokens alone one part could have all the short ones."""
    lengths = np.array([100] * 10 + [10] * 100)
    spec = AssignmentSpec(2, 2, sequence_cost=50.0, counts="free")
    assignment = indexed(lengths, spec)
    assert balance(assignment, lengths, spec) == (1.0, 1.0)
    assert assignment.counts.tolist() == [55, 55]


@given(
    st.lists(st.integers(1, 512), min_size=1, max_size=60),
    st.integers(1, 6),
    st.sampled_from([0.0, PAIR_COST, 0.01, 1e6]),
    st.sampled_from([0.0, 30.0]),
)
@settings(deadline=None, max_examples=200)
def test_free_counts_are_close_to_lpt_or_the_bound(
    lengths: list[int], parts: int, pair_cost: float, sequence_cost: float
) -> None:
    """Also for very uneven lengths, such as one of 512 and many of 1, for which no number of places fits."""
    if len(lengths) < parts:
        return
    uneven, spec = np.array(lengths), AssignmentSpec(parts, 1, pair_cost, sequence_cost, counts="free")
    found = indexed(uneven, spec)
    assert sorted(found.order.tolist()) == list(range(len(lengths)))
    plain = lpt(uneven, spec)
    assert max(balance(found, uneven, spec)) <= max(
        1.051 * bound(uneven, spec), max(balance(plain, uneven, spec)) + 1e-6
    )


def test_swaps_never_worsen_the_score(monkeypatch: pytest.MonkeyPatch) -> None:
    def scores() -> list[float]:
        found = []
        for seed in range(30):
            columns = Columns(wikipedia(9, seed), AssignmentSpec(3, 3, PAIR_COST), 3)
            columns.refine(1.0)
            found.append(columns.score)
        return found

    swapped = scores()
    monkeypatch.setattr(indexed_module, "MAX_SWAPS", 0)
    pairs = list(zip(swapped, scores(), strict=True))
    assert all(after <= before for after, before in pairs)
    assert any(after < before for after, before in pairs)


@pytest.mark.parametrize("parts", [2, 3, 4])
def test_one_long_sample_is_the_only_one_of_its_part(parts: int) -> None:
    lengths, spec = np.array([512] + [5] * 99), AssignmentSpec(parts, parts, 0.001, counts="free")
    assignment = indexed(lengths, spec)
    assert assignment.counts.min() == 1
    assert max(balance(assignment, lengths, spec)) == pytest.approx(bound(lengths, spec))


def test_minimum_count_holds_for_a_part_with_one_long_sample() -> None:
    lengths, spec = np.array([512] + [5] * 99), AssignmentSpec(3, 3, 0.001, counts="free", min_samples=4)
    assignment = indexed(lengths, spec)
    assert sorted(assignment.order.tolist()) == list(range(100))
    assert assignment.counts.min() == 4


def test_lpt_assigns_by_cost() -> None:
    lengths = np.array([3, 10, 4, 4, 9])
    assert [lpt(lengths, AssignmentSpec(2, 2)).part(p).tolist() for p in (0, 1)] == [[1, 3], [0, 2, 4]]
    costly = lpt(np.array([10, 6, 6]), AssignmentSpec(2, 2, pair_cost=1.0))
    assert [costly.part(p).tolist() for p in (0, 1)] == [[0], [1, 2]]


@pytest.mark.parametrize("parts", [1, 5])
def test_one_sample_per_part_and_a_single_part(parts: int) -> None:
    lengths = np.array([7, 300, 2, 512, 9][:parts])
    assert indexed(lengths, AssignmentSpec(parts, 1)).counts.tolist() == [1] * parts
    assert indexed(np.array([3, 2, 1]), AssignmentSpec(1, 1)).counts.tolist() == [3]


@pytest.mark.parametrize(
    ("ranks", "local_batch", "counts", "checksum"),
    [
        (64, 48, "equal", 2081952175),
        (1024, 16, "equal", 2593314051),
        (4096, 4, "free", 1508919411),
        (3, 5, "free", 271275558),
    ],
)
def test_assignment_has_the_same_checksum_on_every_machine(
    ranks: int, local_batch: int, counts: Literal["equal", "free"], checksum: int
) -> None:
    """Ranks with different assignments would train on some samples twice and on others never."""
    numbers = np.arange(ranks * local_batch, dtype=np.int64)
    lengths = (1 + numbers * numbers % 7919 * 31 % 512).astype(np.uint16)
    assignment = assign("indexed", lengths, AssignmentSpec(ranks, 1, PAIR_COST, 3.0, counts=counts))
    assert crc32(assignment.order.tobytes() + assignment.starts.tobytes()) == checksum
