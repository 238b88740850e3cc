"""What a strategy answers and is told."""

import numpy as np
import pytest

from implementations.pytorch.data.balancing import Assignment, Deal


def test_even_parts_are_the_rows() -> None:
    assignment = Assignment.even(np.array([[4, 0, 2], [1, 5, 3]]))
    assert assignment.parts == 2
    assert assignment.part(0).tolist() == [4, 0, 2]
    assert assignment.part(1).tolist() == [1, 5, 3]
    assert assignment.counts.tolist() == [3, 3]
    assert assignment.order.dtype == assignment.starts.dtype == np.int64


def test_grouped_parts_keep_their_order_and_may_be_empty() -> None:
    assignment = Assignment.grouped(np.array([2, 0, 2, 0, 0]), 4)
    assert [assignment.part(p).tolist() for p in range(4)] == [[1, 3, 4], [], [0, 2], []]
    assert assignment.counts.tolist() == [3, 0, 2, 0]


def test_joined_parts_are_those_given() -> None:
    assignment = Assignment.joined([np.array([3]), np.array([], dtype=np.int64), np.array([0, 2, 1])])
    assert [assignment.part(p).tolist() for p in range(3)] == [[3], [], [0, 2, 1]]


def test_loads_are_sums_and_0_for_empty_parts() -> None:
    assignment = Assignment.grouped(np.array([2, 0, 2, 0, 0]), 4)
    assert assignment.loads(np.array([1, 10, 100, 1000, 60000], dtype=np.uint16)).tolist() == [61010, 0, 101, 0]
    assert assignment.loads(np.array([1, 10, 100, 1000, 60000], dtype=np.uint16)).dtype == np.int64
    assert assignment.loads(np.array([0.5, 1, 2, 4, 8])).tolist() == [13, 0, 2.5, 0]


def test_a_sequence_costs_its_tokens_pairs_and_itself() -> None:
    costs = Deal(1, 1, pair_cost=0.5, sequence_cost=3).costs(np.array([1, 10, 500], dtype=np.uint16))
    assert costs.tolist() == [1 + 0.5 + 3, 10 + 50 + 3, 500 + 125_000 + 3]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"parts": 0, "parts_per_node": 1}, "count from 1"),
        ({"parts": 4, "parts_per_node": 0}, "count from 1"),
        ({"parts": 4, "parts_per_node": 4, "row_tokens": 0}, "count from 1"),
        ({"parts": 4, "parts_per_node": 4, "least": 0}, "count from 1"),
        ({"parts": 6, "parts_per_node": 4}, "6 parts are no whole number of nodes of 4"),
        ({"parts": 4, "parts_per_node": 4, "pair_cost": -1.0}, "not negative"),
        ({"parts": 4, "parts_per_node": 4, "pair_cost": float("nan")}, "finite"),
        ({"parts": 4, "parts_per_node": 4, "sequence_cost": float("inf")}, "finite"),
    ],
)
def test_a_deal_that_makes_no_sense_is_refused(wrong: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Deal(**wrong)  # type: ignore[arg-type]
