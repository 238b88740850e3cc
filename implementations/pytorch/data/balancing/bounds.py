"""What no assignment can beat: lower bounds of the busiest part."""

import numpy as np

from benchmarks.compiled import compiled
from implementations.pytorch.data.balancing.assignment import Deal


def least_max_over_mean(values: np.ndarray, deal: Deal) -> float:
    """A lower bound of max/mean over the parts of any assignment of samples of these values [G], not negative.

    It knows whether `deal` wants equal counts, and is 1 where all values are 0.
    """
    return bound_of_sorted(-np.sort(-values.astype(np.float64)), deal)


def bound_of_sorted(v: np.ndarray, deal: Deal) -> float:
    """As `least_max_over_mean`, of values in descending order.

    The largest of, for P parts and v₁ ≥ v₂ ≥ …:

    - the mean part, and v₁;
    - for every m, the mean of m parts that between them hold at least 2m of v₁ … v_{P+m}. There are such parts, since
      P parts hold P + m values, and those that hold one at most can be left out. They have at least v_{P−m+1} + … +
      v_{P+m};
    - for every m, the lesser of v_{P−m+1} + v_{P+m} and 3·v_{P+m}: if no part has one of the first P − m + 1 values
      beside another of the first P + m, then m − 1 parts are left for 2m − 1 of them, and one has three.

    Where counts are equal the other places of these parts have at least the least of all values.
    """
    count, parts = len(v), deal.parts
    equal = deal.counts == "equal" and count % parts == 0
    return _bound(v.astype(np.float64), parts, count // parts if equal else count, equal)


@compiled
def _bound(v: np.ndarray, parts: int, places: int, equal: bool) -> float:
    count = len(v)
    sums = np.zeros(count + 1)
    for i in range(count):
        sums[i + 1] = sums[i] + v[i]
    if sums[count] <= 0:
        return 1.0
    most = v[0]
    # the sum of so many least values, where they must be in the parts
    beside_two = sums[count] - sums[count - max(places - 2, 0)] if equal else 0.0
    beside_three = sums[count] - sums[count - max(places - 3, 0)] if equal else 0.0
    for m in range(1, min(parts, count - parts) + 1):
        others = sums[count] - sums[count - max((places - 2) * m, 0)] if equal else 0.0
        held = sums[parts + m] - sums[parts - m] + others
        beside = v[parts - m] + v[parts + m - 1] + beside_two
        three = 3 * v[parts + m - 1] + beside_three if places > 2 else np.inf
        most = max(most, held / m, min(beside, three))
    return float(max(1.0, most * parts / sums[count]))
