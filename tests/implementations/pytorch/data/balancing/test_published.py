"""The balance of the published systems, as their papers have it or as computed once from Wikipedia's lengths: within
0.01. Means over steps of max/mean tokens of a GPU."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Literal

import numpy as np
import pytest

from benchmarks.bert.lengths import wikipedia_histogram
from implementations.pytorch.data.balancing import Deal, assign
from implementations.pytorch.data.sampling import Order, Sampler, StratifiedSampler

SAMPLES = 400_000
SAMSUNG = {(1024, 16): (6, 3, 2, 5), (1368, 12): (4, 2, 2, 4)}
"""Its slots of each stratum in a local batch."""


@cache
def dataset() -> np.ndarray:
    """[400,000] lengths with Wikipedia's shares, shortest first."""
    histogram = wikipedia_histogram()
    ends = np.round(np.cumsum(histogram) / histogram.sum() * SAMPLES).astype(np.int64)
    return np.repeat(np.arange(len(histogram), dtype=np.uint16), np.diff(ends, prepend=0))


def mean_balance(strategy: str, order: Order, deal: Deal, local_batch: int, steps: int) -> float:
    batch, found = deal.parts * local_batch, []
    for step in range(steps):
        lengths = dataset()[order.samples(step * batch, batch)]
        tokens = assign(strategy, lengths, deal).loads(lengths)
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
        deal = replace(Deal(ranks, 8), scan=scan)
        found = mean_balance(strategy, order(ranks, local_batch), deal, local_batch, steps)
        assert found == pytest.approx(figure, abs=0.01), (ranks, local_batch)


@pytest.mark.parametrize(
    ("ranks", "local_batch", "random", "stride", "snake"),
    [(8, 56, 1.135, 1.015, 1.0014), (64, 48, 1.244, 1.020, 1.0011)],
)
def test_baidu(ranks: int, local_batch: int, random: float, stride: float, snake: float) -> None:
    deal, order = Deal(ranks, 8), any_order(ranks, local_batch)
    assert mean_balance("random", order, deal, local_batch, 300) == pytest.approx(random, abs=0.01)
    assert mean_balance("exchanged", order, deal, local_batch, 50) == pytest.approx(stride, abs=0.002)
    in_a_snake = replace(deal, scan="snake")
    assert mean_balance("exchanged", order, in_a_snake, local_batch, 50) == pytest.approx(snake, abs=0.001)
