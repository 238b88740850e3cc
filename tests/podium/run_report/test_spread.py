"""Numbers that summarise numbers."""

import random
from statistics import stdev

import numpy as np
import pytest

from podium.run_report.spread import Distribution, spread


def test_n_mean_and_sd() -> None:
    over = spread([1.0, 2.0, 6.0])
    assert over is not None
    assert (over.n, over.mean, over.least, over.greatest) == (3, 3.0, 1.0, 6.0)
    assert over.sd == pytest.approx(stdev([1.0, 2.0, 6.0]))
    assert spread([]) is None
    one = spread([4.0])
    assert one is not None and one.sd is None and one.mean == 4.0


def test_quantiles_are_those_of_all_values() -> None:
    numbers = random.Random(1)
    values = [1 + numbers.expovariate(20) for _ in range(5_001)]
    distribution = Distribution()
    for value in values:
        distribution.add(value)
    shares = [0.01, 0.5, 0.95, 1.0]
    exact = np.quantile(values, shares, method="inverted_cdf")
    assert distribution.quantiles(shares) == pytest.approx(exact.tolist(), rel=1e-4)
    assert distribution.total == 5_001


def test_a_distribution_of_nothing_has_no_quantiles() -> None:
    assert Distribution().quantiles([0.5]) == []
