"""Sorted samples dealt out like cards, over all parts or within nodes."""

from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from implementations.pytorch.data.balancing import Deal, assign, snake
from implementations.pytorch.data.balancing.dealing import exchanged, in_order, presorted

NINE = np.array([1, 2, 3, 4, 5, 6, 7, 8, 9], dtype=np.uint16)


def by_part(lengths: np.ndarray, positions: np.ndarray) -> list[list[int]]:
    taken: list[list[int]] = lengths[positions].tolist()
    return taken


def test_in_order_takes_samples_as_they_come() -> None:
    assignment = in_order(NINE, Deal(3, 3))
    assert assignment.order.tolist() == list(range(9))
    assert assignment.starts.tolist() == [0, 3, 6, 9]


def test_exchanged_deals_in_strides() -> None:
    assignment = exchanged(NINE, Deal(3, 1))
    assert by_part(NINE, assignment.order.reshape(3, 3)) == [[9, 6, 3], [8, 5, 2], [7, 4, 1]]


def test_exchanged_deals_in_a_snake_if_asked() -> None:
    assignment = exchanged(NINE, Deal(3, 1, scan="snake"))
    assert by_part(NINE, assignment.order.reshape(3, 3)) == [[9, 4, 3], [8, 5, 2], [7, 6, 1]]
    assert by_part(NINE, snake(NINE, 3)) == [[9, 4, 3], [8, 5, 2], [7, 6, 1]]


def test_presorted_deals_in_a_snake_within_each_node() -> None:
    lengths = np.array([1, 2, 3, 4, 5, 6, 10, 60, 20, 50, 30, 40], dtype=np.uint16)
    assignment = presorted(lengths, Deal(4, 2))
    assert by_part(lengths, assignment.order.reshape(4, 3)) == [[6, 3, 2], [5, 4, 1], [60, 30, 20], [50, 40, 10]]
    in_strides = presorted(lengths, Deal(4, 2, scan="stride"))
    assert by_part(lengths, in_strides.order.reshape(4, 3)) == [[6, 4, 2], [5, 3, 1], [60, 40, 20], [50, 30, 10]]


def test_presorted_in_one_node_is_a_global_snake() -> None:
    lengths = np.random.default_rng(0).integers(1, 513, 48)
    assert np.array_equal(presorted(lengths, Deal(8, 8)).order, snake(lengths, 8).reshape(-1))


def test_no_sample_leaves_its_node() -> None:
    lengths = np.random.default_rng(1).integers(1, 513, 96)
    nodes = presorted(lengths, Deal(12, 4)).order.reshape(3, 32)
    assert [sorted(node.tolist()) for node in nodes] == [list(range(k * 32, k * 32 + 32)) for k in range(3)]


@pytest.mark.parametrize("scan", ["stride", "snake"])
def test_ties_keep_their_order(scan: Literal["stride", "snake"]) -> None:
    deal = replace(Deal(2, 2), scan=scan)
    same = np.full(6, 100, dtype=np.uint16)
    expected = {"stride": [0, 2, 4, 1, 3, 5], "snake": [0, 3, 4, 1, 2, 5]}[scan]
    assert exchanged(same, deal).order.tolist() == presorted(same, deal).order.tolist() == expected


@given(st.lists(st.integers(1, 512), min_size=2, max_size=60), st.integers(1, 6))
@settings(deadline=None)
def test_parts_of_a_snake_differ_by_one_sample_at_most(lengths: list[int], parts: int) -> None:
    even = np.array(lengths[: len(lengths) // parts * parts], dtype=np.uint16)
    if not len(even):
        return
    tokens = assign("exchanged", even, Deal(parts, 1, scan="snake")).loads(even)
    assert tokens.max() - tokens.min() <= int(even.max()) - int(even.min())
