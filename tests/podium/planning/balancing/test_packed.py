"""Rows packed within a global batch: nearly full, with every sequence once, and assigned evenly."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.bert.lengths import wikipedia_histogram
from podium.planning.balancing.interface import AssignmentSpec
from podium.planning.balancing.packed import pack_batch, packed
from podium.planning.balancing.strategies import assign

PAIR_COST = 1 / 6144


def wikipedia(count: int, seed: int) -> np.ndarray:
    histogram = wikipedia_histogram()
    return np.random.default_rng(seed).choice(len(histogram), count, p=histogram / histogram.sum()).astype(np.uint16)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=80), st.sampled_from([40, 64]))
@settings(deadline=None)
def test_rows_have_every_sequence_once_and_do_not_overflow(lengths: list[int], row_tokens: int) -> None:
    batch = np.array(lengths, dtype=np.uint16)
    rows = pack_batch(batch, row_tokens)
    assert sorted(rows.order.tolist()) == list(range(len(lengths)))
    assert rows.counts.min() >= 1
    tokens = rows.loads(batch)
    assert tokens.max() <= row_tokens
    assert rows.parts <= 2 * sum(lengths) / row_tokens + 1  # at most one row is not half full


@pytest.mark.parametrize(("batch", "published"), [(448, 0.994), (3072, 0.999)])
def test_rows_of_a_batch_are_full(batch: int, published: float) -> None:
    found = []
    for seed in range(20):
        lengths = wikipedia(batch, seed)
        found.append(int(lengths.sum()) / (pack_batch(lengths, 512).parts * 512))
    assert np.mean(found) == pytest.approx(published, abs=0.002)


@pytest.mark.parametrize(("ranks", "local_batch"), [(8, 56), (64, 16), (32, 2)])
def test_parts_have_equal_numbers_of_rows_and_equal_cost(ranks: int, local_batch: int) -> None:
    lengths, spec = wikipedia(ranks * local_batch, 3), AssignmentSpec(ranks, 8, PAIR_COST)
    assignment = packed(lengths, spec)
    rows = -(-pack_batch(lengths, 512).parts // ranks)
    costs = assignment.loads(spec.costs(lengths))
    in_rows = [row_count(lengths[assignment.part(p)]) for p in range(ranks)]
    assert max(in_rows) <= rows
    assert min(in_rows) >= rows - 1
    assert int(assignment.loads(lengths).max()) <= rows * 512
    whole_rows = pack_batch(lengths, 512).parts % ranks == 0
    assert float(costs.max() / costs.mean()) < (1.02 if whole_rows else 1.0 + 1.2 / (rows - 1 or 1))


def row_count(lengths: np.ndarray) -> int:
    """The fewest rows that sequences in this order can be cut to."""
    rows, room = 0, 0
    for length in lengths.tolist():
        if length > room:
            rows, room = rows + 1, 512
        room -= length
    return rows


def test_sequences_of_a_part_are_in_row_order() -> None:
    lengths = np.array([300, 200, 212, 312, 100], dtype=np.uint16)
    rows = pack_batch(lengths, 512)
    assert [rows.part(p).tolist() for p in range(rows.parts)] in ([[3, 1], [0, 2], [4]], [[0, 2], [3, 1], [4]])
    order = packed(lengths, AssignmentSpec(1, 1)).order.tolist()
    assert [order[:2], order[2:4], order[4:]] in ([[3, 1], [0, 2], [4]], [[0, 2], [3, 1], [4]])


def test_full_rows_are_assigned_by_cost() -> None:
    """Two rows each of 1, 2, 4, 8, 16 and 32 sequences, all full: the first two rows have most of all pairs."""
    lengths = np.concatenate([np.full(2 * 512 // length, length) for length in (512, 256, 128, 64, 32, 16)])
    assignment = packed(lengths, AssignmentSpec(4, 4, pair_cost=1.0))
    assert assignment.loads(lengths).tolist() == [3 * 512] * 4
    assert assignment.loads(lengths * lengths).max() <= 512 * (512 + 32 + 32)


def test_minimum_count_holds_for_a_part_with_one_costly_row() -> None:
    """One row costs more than any three others: by cost alone its part would have only empty rows besides."""
    lengths = np.array([512] + [260] * 8)
    assert packed(lengths, AssignmentSpec(4, 4, pair_cost=1.0)).counts.min() == 1
    assert packed(lengths, AssignmentSpec(4, 4, pair_cost=1.0, min_samples=2)).counts.min() == 2


@pytest.mark.parametrize("least", [1, 2])
def test_fewer_rows_than_parts_are_split(least: int) -> None:
    lengths = np.array([9, 8, 7, 6, 5, 4, 3, 2], dtype=np.uint16)
    assignment = packed(lengths, AssignmentSpec(4, 4, PAIR_COST, min_samples=least))
    assert sorted(assignment.order.tolist()) == list(range(8))
    assert int(assignment.counts.min()) >= least


def test_sequence_longer_than_a_row_is_an_error() -> None:
    with pytest.raises(ValueError, match="length 0 to 100"):
        assign("packed", np.array([100, 101]), AssignmentSpec(1, 1, row_tokens=100))
    assert assign("packed", np.array([100, 99]), AssignmentSpec(1, 1, row_tokens=100)).counts.tolist() == [2]


@pytest.mark.parametrize("pair_cost", [0.0, PAIR_COST, 1e6])
def test_extreme_pair_costs_are_supported(pair_cost: float) -> None:
    lengths = wikipedia(64, 5)
    assert sorted(assign("packed", lengths, AssignmentSpec(4, 4, pair_cost), 2).order.tolist()) == list(range(64))
