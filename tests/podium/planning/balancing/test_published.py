"""The published strategies, and their balance compared with published or earlier figures, within 0.01.

Figures are means over steps of max/mean tokens of a GPU, from the papers or simulated with Wikipedia's lengths.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.bert.lengths import wikipedia_histogram
from podium.planning.balancing.interface import AssignmentSpec
from podium.planning.balancing.published import exchanged, in_order, presorted, snake
from podium.planning.balancing.strategies import assign
from podium.planning.samplers import Order, Sampler, StratifiedSampler

NINE = np.array([1, 2, 3, 4, 5, 6, 7, 8, 9], dtype=np.uint16)


def by_part(lengths: np.ndarray, positions: np.ndarray) -> list[list[int]]:
    taken: list[list[int]] = lengths[positions].tolist()
    return taken


def test_in_order_keeps_the_order_of_samples() -> None:
    assignment = in_order(NINE, AssignmentSpec(3, 3))
    assert assignment.order.tolist() == list(range(9))
    assert assignment.starts.tolist() == [0, 3, 6, 9]


def test_exchanged_assigns_in_strides() -> None:
    assignment = exchanged(NINE, AssignmentSpec(3, 1))
    assert by_part(NINE, assignment.order.reshape(3, 3)) == [[9, 6, 3], [8, 5, 2], [7, 4, 1]]


def test_exchanged_assigns_in_a_snake_if_configured() -> None:
    assignment = exchanged(NINE, AssignmentSpec(3, 1, scan="snake"))
    assert by_part(NINE, assignment.order.reshape(3, 3)) == [[9, 4, 3], [8, 5, 2], [7, 6, 1]]
    assert by_part(NINE, snake(NINE, 3)) == [[9, 4, 3], [8, 5, 2], [7, 6, 1]]


def test_presorted_assigns_in_a_snake_within_each_node() -> None:
    lengths = np.array([1, 2, 3, 4, 5, 6, 10, 60, 20, 50, 30, 40], dtype=np.uint16)
    assignment = presorted(lengths, AssignmentSpec(4, 2))
    assert by_part(lengths, assignment.order.reshape(4, 3)) == [[6, 3, 2], [5, 4, 1], [60, 30, 20], [50, 40, 10]]
    in_strides = presorted(lengths, AssignmentSpec(4, 2, scan="stride"))
    assert by_part(lengths, in_strides.order.reshape(4, 3)) == [[6, 4, 2], [5, 3, 1], [60, 40, 20], [50, 30, 10]]


def test_presorted_in_one_node_is_a_global_snake() -> None:
    lengths = np.random.default_rng(0).integers(1, 513, 48)
    assert np.array_equal(presorted(lengths, AssignmentSpec(8, 8)).order, snake(lengths, 8).reshape(-1))


def test_no_sample_leaves_its_node() -> None:
    lengths = np.random.default_rng(1).integers(1, 513, 96)
    nodes = presorted(lengths, AssignmentSpec(12, 4)).order.reshape(3, 32)
    assert [sorted(node.tolist()) for node in nodes] == [list(range(k * 32, k * 32 + 32)) for k in range(3)]


@pytest.mark.parametrize("scan", ["stride", "snake"])
def test_ties_keep_their_order(scan: Literal["stride", "snake"]) -> None:
    spec = replace(AssignmentSpec(2, 2), scan=scan)
    same = np.full(6, 100, dtype=np.uint16)
    expected = {"stride": [0, 2, 4, 1, 3, 5], "snake": [0, 3, 4, 1, 2, 5]}[scan]
    assert exchanged(same, spec).order.tolist() == presorted(same, spec).order.tolist() == expected


@given(st.lists(st.integers(1, 512), min_size=2, max_size=60), st.integers(1, 6))
@settings(deadline=None)
def test_sums_of_a_snake_differ_by_at_most_one_sample(lengths: list[int], parts: int) -> None:
    even = np.array(lengths[: len(lengths) // parts * parts], dtype=np.uint16)
    if not len(even):
        return
    tokens = assign("exchanged", even, AssignmentSpec(parts, 1, scan="snake")).loads(even)
    assert tokens.max() - tokens.min() <= int(even.max()) - int(even.min())


SAMPLES = 400_000
SAMSUNG = {(1024, 16): (6, 3, 2, 5), (1368, 12): (4, 2, 2, 4)}  # published slots of each stratum in a local batch


@cache
def dataset() -> np.ndarray:
    """Lengths [400,000] distributed as in Wikipedia, ascending."""
    histogram = wikipedia_histogram()
    ends = np.round(np.cumsum(histogram) / histogram.sum() * SAMPLES).astype(np.int64)
    return np.repeat(np.arange(len(histogram), dtype=np.uint16), np.diff(ends, prepend=0))


def mean_balance(strategy: str, order: Order, spec: AssignmentSpec, local_batch: int, steps: int) -> float:
    batch, found = spec.parts * local_batch, []
    for step in range(steps):
        lengths = dataset()[order.samples(step * batch, batch)]
        tokens = assign(strategy, lengths, spec).loads(lengths)
        found.append(tokens.max() / tokens.mean())
    return float(np.mean(found))


def any_order(ranks: int, local_batch: int) -> Order:
    return Sampler(SAMPLES, seed=3)


def strata(ranks: int, local_batch: int) -> Order:
    counts = SAMSUNG[ranks, local_batch]
    return StratifiedSampler(dataset(), batch=local_batch, seed=3, max_length=512, counts=counts)


def test_slots_of_16_are_the_published_ones() -> None:
    computed = StratifiedSampler(dataset(), batch=16, seed=0, max_length=512).counts
    assert computed.tolist() == list(SAMSUNG[1024, 16])


@pytest.mark.parametrize(
    ("strategy", "order", "scan", "steps", "published"),
    [
        ("random", any_order, None, 150, (1.585, 1.682)),
        ("presorted", any_order, None, 50, (1.175, 1.210)),
        ("stratified", strata, None, 50, (1.099, 1.108)),
        ("presorted", strata, "stride", 20, (1.079, 1.093)),
        ("presorted", strata, None, 20, (1.041, 1.055)),
        ("exchanged", any_order, None, 10, (1.059, 1.080)),
        ("exchanged", any_order, "snake", 10, (1.004, 1.011)),
    ],
)
def test_samsung(
    strategy: str,
    order: Callable[[int, int], Order],
    scan: Literal["stride", "snake"] | None,
    steps: int,
    published: tuple[float, float],
) -> None:
    for (ranks, local_batch), figure in zip(SAMSUNG, published, strict=True):
        spec = replace(AssignmentSpec(ranks, 8), scan=scan)
        found = mean_balance(strategy, order(ranks, local_batch), spec, local_batch, steps)
        assert found == pytest.approx(figure, abs=0.01), (ranks, local_batch)


@pytest.mark.parametrize(
    ("ranks", "local_batch", "random", "stride", "snake"),
    [(8, 56, 1.135, 1.015, 1.0014), (64, 48, 1.244, 1.020, 1.0011)],
)
def test_baidu(ranks: int, local_batch: int, random: float, stride: float, snake: float) -> None:
    spec, order = AssignmentSpec(ranks, 8), any_order(ranks, local_batch)
    assert mean_balance("random", order, spec, local_batch, 300) == pytest.approx(random, abs=0.01)
    assert mean_balance("exchanged", order, spec, local_batch, 50) == pytest.approx(stride, abs=0.002)
    in_a_snake = replace(spec, scan="snake")
    assert mean_balance("exchanged", order, in_a_snake, local_batch, 50) == pytest.approx(snake, abs=0.001)
