"""Packing by non-negative least squares."""

from itertools import combinations_with_replacement

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.bert.lengths import wikipedia_histogram
from podium.planning.packing import full_rows, least_squares_packs, non_negative_least_squares


def test_all_ways_of_filling_a_row() -> None:
    expected = {
        tuple(sorted(way, reverse=True)) for way in combinations_with_replacement(range(21), 3) if sum(way) == 20
    }
    ways = [tuple(way) for way in full_rows(20).tolist()]
    assert set(ways) == expected
    assert len(ways) == len(expected)
    assert len(full_rows(512)) == 22_102


def matrix(ways: np.ndarray, lengths: int) -> np.ndarray:
    columns = np.stack([np.bincount(way, minlength=lengths) for way in ways], axis=1).astype(np.float64)
    columns[0] = 0
    return columns


@pytest.mark.parametrize("seed", range(4))
def test_the_solution_meets_the_conditions_of_a_minimum(seed: int) -> None:
    """Karush-Kuhn-Tucker conditions: no gradient is negative, and none is positive where x is positive."""
    ways = full_rows(24)
    wanted = np.random.default_rng(seed).integers(0, 100, 25)
    wanted[0] = 0
    x = non_negative_least_squares(ways, wanted)
    columns = matrix(ways, 25)
    gradient = columns.T @ (columns @ x - wanted)
    assert (x >= 0).all()
    assert gradient.min() > -0.5
    assert np.abs(x * gradient).max() < 0.5 * x.max()
    assert np.linalg.norm(columns @ x - wanted) < 0.5 * np.linalg.norm(wanted)


def test_perfectly_packable_histogram_is_packed_well() -> None:
    ways = full_rows(24)
    wanted = matrix(ways, 25) @ np.random.default_rng(0).integers(0, 50, len(ways))
    packs = least_squares_packs(wanted.astype(np.int64), 24)
    assert np.array_equal(packs.histogram(), wanted)
    assert packs.efficiency > 0.97


@given(st.lists(st.integers(0, 60), min_size=12, max_size=12))
@settings(deadline=None, max_examples=30)
def test_every_sequence_is_packed_once_with_at_most_three_per_row(counts: list[int]) -> None:
    histogram = np.array([0, *counts])
    packs = least_squares_packs(histogram, 12)
    assert packs.histogram().tolist() == histogram.tolist()
    for kind in packs.counts:
        assert 1 <= len(kind) <= 3
        assert sum(kind) <= 12


def test_wikipedia_is_packed_as_published() -> None:
    histogram = wikipedia_histogram()
    packs = least_squares_packs(histogram, 512)
    assert np.array_equal(packs.histogram(), histogram)
    assert 100 * packs.efficiency == pytest.approx(99.75, abs=0.2)
    assert packs.sequences / packs.rows == pytest.approx(1.999, abs=0.005)
    assert max(len(kind) for kind in packs.counts) == 3


def test_empty_histogram_has_no_rows() -> None:
    assert least_squares_packs(np.zeros(5, dtype=np.int64), 12).rows == 0
    with pytest.raises(ValueError, match="none of length 0"):
        least_squares_packs(np.array([1, 1]), 12)
