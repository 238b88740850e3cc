"""Attention groups: a partition of the batch with the minimum cost."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.bert.lengths import wikipedia_histogram
from implementations.pytorch.data.batch import LAUNCH_COST, WIDTH_STEP, Group, group_by_length, group_by_width

Costs = st.sampled_from([0.0, 1.0, 1000.0, LAUNCH_COST, 1e5, 1e6])


def lengths_of(count: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(1, 512), max_size=count).map(lambda lengths: sorted(lengths, reverse=True))


def partitions(items: list[int]) -> Iterator[list[list[int]]]:
    """All partitions of the items, contiguous or not."""
    if not items:
        yield []
        return
    first, *rest = items
    for parts in partitions(rest):
        yield [[first], *parts]
        for i, part in enumerate(parts):
            yield [*parts[:i], [first, *part], *parts[i + 1 :]]


def cost(parts: list[list[int]], launch_cost: float) -> float:
    """Cost of a partition; each group is as wide as its longest sequence, rounded up."""
    widths = [(max(part) + WIDTH_STEP - 1) // WIDTH_STEP * WIDTH_STEP for part in parts]
    return sum(len(part) * width**2 + launch_cost for part, width in zip(parts, widths, strict=True))


@given(lengths_of(60), Costs)
@settings(deadline=None)
def test_groups_are_a_partition(lengths: list[int], launch_cost: float) -> None:
    groups = group_by_length(np.array(lengths, dtype=np.int64), launch_cost)
    assert [slot for group in groups for slot in range(group.first, group.last)] == list(range(len(lengths)))
    for group in groups:
        assert group.rows > 0
        assert group.width % WIDTH_STEP == 0
        assert group.width - WIDTH_STEP < lengths[group.first] <= group.width


@given(lengths_of(7), Costs)
@settings(deadline=None)
def test_grouping_has_the_minimum_cost(lengths: list[int], launch_cost: float) -> None:
    groups = group_by_length(np.array(lengths, dtype=np.int64), launch_cost)
    found = cost([lengths[group.first : group.last] for group in groups], launch_cost)
    assert found == min(cost(parts, launch_cost) for parts in partitions(lengths))


@given(lengths_of(40).filter(bool))
@settings(deadline=None)
def test_grouping_with_free_and_with_expensive_launches(lengths: list[int]) -> None:
    array = np.array(lengths, dtype=np.uint16)
    widest = -(-lengths[0] // WIDTH_STEP) * WIDTH_STEP
    assert group_by_length(array, 1e12) == (Group(0, len(lengths), widest),)
    free = group_by_length(array, 0.0)
    assert sum(g.rows * g.width**2 for g in free) == sum((-(-n // WIDTH_STEP) * WIDTH_STEP) ** 2 for n in lengths)


def test_grouping_removes_most_padding_on_wikipedia_lengths(
    wikipedia_lengths: Callable[[int, int], np.ndarray],
) -> None:
    lengths = -np.sort(-wikipedia_lengths(56, 0).astype(np.int64))
    groups = group_by_length(lengths)
    assert 2 <= len(groups) <= 20
    assert sum(g.rows * g.width**2 for g in groups) < 1.25 * np.sum(lengths**2)


@pytest.mark.parametrize(
    ("widths", "published"),
    [((512,), 2.00), ((256, 512), 1.43), ((128, 256, 512), 1.25), ((128, 256, 384, 512), 1.19)],
)
def test_padding_with_given_widths_is_as_published(widths: tuple[int, ...], published: float) -> None:
    histogram = wikipedia_histogram()
    lengths = np.repeat(np.arange(len(histogram)), histogram // 1000)[::-1]
    slots = sum(group.rows * group.width for group in group_by_width(lengths, widths))
    assert slots / lengths.sum() == pytest.approx(published, abs=0.01)


@given(lengths_of(60), st.sampled_from([(512,), (128, 256, 384, 512), (512, 256), (1, 7, 600)]))
@settings(deadline=None)
def test_each_sequence_is_in_the_narrowest_width_that_holds_it(lengths: list[int], widths: tuple[int, ...]) -> None:
    groups = group_by_width(np.array(lengths, dtype=np.int64), widths)
    assert [slot for group in groups for slot in range(group.first, group.last)] == list(range(len(lengths)))
    for group in groups:
        narrower = max([0, *(width for width in widths if width < group.width)])
        assert all(narrower < length <= group.width for length in lengths[group.first : group.last])
    assert len({group.width for group in groups}) == len(groups)


def test_sequence_longer_than_all_widths_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"a sequence of 300 tokens fits none of the widths \[128, 256\]"):
        group_by_width(np.array([300, 5]), (256, 128))
