"""Greedy packing of a histogram: every sequence once, no row too long, and with the published efficiency."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.bert.lengths import wikipedia_histogram
from podium.planning.packing import Packs, longest_pack_first, shortest_pack_first

Pack = Callable[[np.ndarray, int, int | None], Packs]
BOTH = [longest_pack_first, shortest_pack_first]


@pytest.mark.parametrize("pack", BOTH)
@given(
    lengths=st.lists(st.integers(1, 30), max_size=60),
    row_tokens=st.integers(30, 64),
    depth=st.sampled_from([None, 1, 2, 3, 9]),
)
@settings(deadline=None)
def test_every_sequence_is_packed_once_and_no_row_is_too_long(
    pack: Pack, lengths: list[int], row_tokens: int, depth: int | None
) -> None:
    histogram = np.bincount(lengths, minlength=1) if lengths else np.zeros(1, dtype=np.int64)
    packs = pack(histogram, row_tokens, depth)
    assert packs.histogram()[: len(histogram)].tolist() == histogram.tolist()
    assert packs.sequences == len(lengths)
    assert packs.tokens == sum(lengths)
    for kind, count in packs.counts.items():
        assert count > 0
        assert sum(kind) <= row_tokens
        assert 1 <= len(kind) <= (depth or row_tokens)
        assert list(kind) == sorted(kind, reverse=True)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=60), st.integers(30, 64))
@settings(deadline=None)
def test_packing_by_groups_equals_packing_one_by_one(lengths: list[int], row_tokens: int) -> None:
    """Compared with best-fit decreasing of single sequences."""
    rooms: list[int] = []
    for length in sorted(lengths, reverse=True):
        fitting = [room for room in rooms if room >= length]
        room = min(fitting, default=row_tokens)
        if fitting:
            rooms.remove(room)
        rooms.append(room - length)
    packs = longest_pack_first(np.bincount(lengths), row_tokens)
    found = sorted(row_tokens - sum(kind) for kind, count in packs.counts.items() for _ in range(count))
    assert found == sorted(rooms)


def test_longest_first_fills_the_fullest_row_and_shortest_first_the_emptiest() -> None:
    histogram = np.bincount([6, 5, 3, 2])
    assert longest_pack_first(histogram, 10).counts == {(6, 3): 1, (5, 2): 1}
    assert shortest_pack_first(histogram, 10).counts == {(5, 3): 1, (6, 2): 1}


@pytest.mark.parametrize(
    ("pack", "depth", "published"),
    [
        *zip([shortest_pack_first] * 5, [2, 3, 4, 8, 16], [80.5, 89.4, 93.9, 98.9, 99.6], strict=True),
        *zip([longest_pack_first] * 5, [2, 3, 4, 8, None], [80.6, 89.5, 94.0, 99.1, 99.95], strict=True),
    ],
)
def test_wikipedia_is_packed_as_published(pack: Pack, depth: int | None, published: float) -> None:
    histogram = wikipedia_histogram()
    packs = pack(histogram, 512, depth)
    assert np.array_equal(packs.histogram(), histogram)
    assert 100 * packs.efficiency == pytest.approx(published, abs=0.06)


@pytest.mark.parametrize("pack", BOTH)
@pytest.mark.parametrize("histogram", [[1, 2], [0, 1, -1], [0] * 11 + [1]])
def test_invalid_histogram_is_an_error(pack: Pack, histogram: list[int]) -> None:
    with pytest.raises(ValueError, match="length 0 to 10, none of length 0"):
        pack(np.array(histogram), 10, None)


@pytest.mark.parametrize("pack", BOTH)
def test_depth_0_is_an_error(pack: Pack) -> None:
    with pytest.raises(ValueError, match="at least one"):
        pack(np.array([0, 1]), 10, 0)


def test_totals_of_packs() -> None:
    both = Packs(10, Counter({(6, 3): 4, (4,): 1}))
    assert (both.rows, both.sequences, both.tokens) == (5, 9, 40)
    assert both.efficiency == 0.8
    assert Packs(10, Counter()).efficiency == 1
