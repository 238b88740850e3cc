"""Assignments and specifications, and the lower bound compared with the best of all assignments of small batches."""

from itertools import product
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podium.planning.balancing.interface import Assignment, AssignmentSpec, max_over_mean_lower_bound
from podium.planning.balancing.strategies import assign


def test_from_rows_gives_each_part_a_row() -> None:
    assignment = Assignment.from_rows(np.array([[4, 0, 2], [1, 5, 3]]))
    assert assignment.parts == 2
    assert assignment.part(0).tolist() == [4, 0, 2]
    assert assignment.part(1).tolist() == [1, 5, 3]
    assert assignment.counts.tolist() == [3, 3]
    assert assignment.order.dtype == assignment.starts.dtype == np.int64


def test_from_part_ids_keeps_order_and_allows_empty_parts() -> None:
    assignment = Assignment.from_part_ids(np.array([2, 0, 2, 0, 0]), 4)
    assert [assignment.part(p).tolist() for p in range(4)] == [[1, 3, 4], [], [0, 2], []]
    assert assignment.counts.tolist() == [3, 0, 2, 0]


def test_from_parts_keeps_the_parts() -> None:
    assignment = Assignment.from_parts([np.array([3]), np.array([], dtype=np.int64), np.array([0, 2, 1])])
    assert [assignment.part(p).tolist() for p in range(3)] == [[3], [], [0, 2, 1]]


def test_loads_are_sums_and_0_for_empty_parts() -> None:
    assignment = Assignment.from_part_ids(np.array([2, 0, 2, 0, 0]), 4)
    assert assignment.loads(np.array([1, 10, 100, 1000, 60000], dtype=np.uint16)).tolist() == [61010, 0, 101, 0]
    assert assignment.loads(np.array([1, 10, 100, 1000, 60000], dtype=np.uint16)).dtype == np.int64
    assert assignment.loads(np.array([0.5, 1, 2, 4, 8])).tolist() == [13, 0, 2.5, 0]


def test_sequence_cost_is_the_sum_of_tokens_pairs_and_constant() -> None:
    costs = AssignmentSpec(1, 1, pair_cost=0.5, sequence_cost=3).costs(np.array([1, 10, 500], dtype=np.uint16))
    assert costs.tolist() == [1 + 0.5 + 3, 10 + 50 + 3, 500 + 125_000 + 3]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"parts": 0, "parts_per_node": 1}, "must be 1 or more"),
        ({"parts": 4, "parts_per_node": 0}, "must be 1 or more"),
        ({"parts": 4, "parts_per_node": 4, "row_tokens": 0}, "must be 1 or more"),
        ({"parts": 4, "parts_per_node": 4, "min_samples": 0}, "must be 1 or more"),
        ({"parts": 6, "parts_per_node": 4}, "6 parts are not divisible into nodes of 4"),
        ({"parts": 4, "parts_per_node": 4, "pair_cost": -1.0}, "not negative"),
        ({"parts": 4, "parts_per_node": 4, "pair_cost": float("nan")}, "finite"),
        ({"parts": 4, "parts_per_node": 4, "sequence_cost": float("inf")}, "finite"),
    ],
)
def test_invalid_specification_is_an_error(wrong: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AssignmentSpec(**wrong)  # type: ignore[arg-type]


def best_of_all(values: list[int], parts: int, counts: str) -> float:
    best = float("inf")
    for choice in product(range(parts), repeat=len(values)):
        sizes = np.bincount(choice, minlength=parts)
        if counts == "equal" and sizes.min() != sizes.max():
            continue
        best = min(best, np.bincount(choice, values, minlength=parts).max() * parts / sum(values))
    return best


@given(st.integers(2, 3), st.data(), st.sampled_from(["equal", "free"]))
@settings(deadline=None, max_examples=60)
def test_no_assignment_is_below_the_lower_bound(
    parts: int, data: st.DataObject, counts: Literal["equal", "free"]
) -> None:
    sizes = {2: [2, 4, 6, 8], 3: [3, 6]}[parts]
    count = data.draw(st.sampled_from(sizes))
    values = data.draw(st.lists(st.integers(1, 20), min_size=count, max_size=count))
    bound = max_over_mean_lower_bound(np.array(sorted(values, reverse=True)), AssignmentSpec(parts, 1, counts=counts))
    assert 1 <= bound <= best_of_all(values, parts, counts) * (1 + 1e-12)


@pytest.mark.parametrize(
    ("values", "parts", "counts", "bound"),
    [
        ([5, 5, 5, 5], 2, "free", 1),
        ([9, 1, 1, 1], 2, "free", 9 * 2 / 12),
        ([9, 1, 1, 1], 2, "equal", 10 * 2 / 12),
        ([6, 6, 6, 1, 1, 1], 2, "free", 12 * 2 / 21),
        ([6, 6, 6, 1, 1, 1], 2, "equal", 13 * 2 / 21),
        ([10, 9, 8, 7], 3, "free", 15 * 3 / 34),
        ([9, 4, 4, 4, 1, 1], 2, "equal", 12 * 2 / 23),
        ([4, 4, 4, 4, 4, 1, 1, 1], 4, "free", 8 * 4 / 23),
        ([0, 0], 2, "equal", 1),
    ],
)
def test_lower_bound_of_known_values(values: list[int], parts: int, counts: str, bound: float) -> None:
    spec = AssignmentSpec(parts, 1, counts="equal" if counts == "equal" else "free")
    assert max_over_mean_lower_bound(np.array(values), spec) == pytest.approx(bound, rel=1e-12)


@given(st.lists(st.integers(1, 512), min_size=1, max_size=30))
@settings(deadline=None)
def test_lower_bound_of_two_per_part_is_reached_by_a_snake(half: list[int]) -> None:
    lengths = np.array(half + half[::-1])
    lengths[::3] = 1
    tokens = assign("exchanged", lengths, AssignmentSpec(len(half), 1, scan="snake")).loads(lengths)
    bound = max_over_mean_lower_bound(np.sort(lengths)[::-1], AssignmentSpec(len(half), 1))
    assert tokens.max() / tokens.mean() == pytest.approx(bound, rel=1e-12)
