"""The lower bounds are bounds: the best of all assignments of small batches never beats them, and often meets them."""

from itertools import product
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from implementations.pytorch.data.balancing import Deal, assign, least_max_over_mean


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
def test_no_assignment_beats_it(parts: int, data: st.DataObject, counts: Literal["equal", "free"]) -> None:
    sizes = {2: [2, 4, 6, 8], 3: [3, 6]}[parts]
    count = data.draw(st.sampled_from(sizes))
    values = data.draw(st.lists(st.integers(1, 20), min_size=count, max_size=count))
    bound = least_max_over_mean(np.array(values), Deal(parts, 1, counts=counts))
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
def test_it_knows_what_must_lie_together(values: list[int], parts: int, counts: str, bound: float) -> None:
    deal = Deal(parts, 1, counts="equal" if counts == "equal" else "free")
    assert least_max_over_mean(np.array(values), deal) == pytest.approx(bound, rel=1e-12)


@given(st.lists(st.integers(1, 512), min_size=1, max_size=30))
@settings(deadline=None)
def test_of_two_a_part_it_is_what_pairing_longest_and_shortest_reaches(half: list[int]) -> None:
    lengths = np.array(half + half[::-1])
    lengths[::3] = 1
    tokens = assign("exchanged", lengths, Deal(len(half), 1, scan="snake")).loads(lengths)
    bound = least_max_over_mean(lengths, Deal(len(half), 1))
    assert tokens.max() / tokens.mean() == pytest.approx(bound, rel=1e-12)
