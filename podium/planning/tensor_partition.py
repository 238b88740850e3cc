"""Partition of whole tensors among the ranks that update them in a sharded optimizer, or of samples; without torch."""

import heapq
from collections.abc import Sequence

LEAST_SHARED = 1 << 16


def owners(sizes: Sequence[float], ranks: int) -> list[int]:
    """Which rank owns each tensor: the largest first, each to the rank that has the fewest elements until then.

    Source: Graham's longest-processing-time rule (SIAM J. Applied Mathematics 17, 1969); at most 4/3 of the best
    possible.
    """
    loads = [(0.0, rank) for rank in range(ranks)]
    found = [0] * len(sizes)
    for index in sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True):  # of equal ones the first comes first
        load, rank = loads[0]
        found[index] = rank
        heapq.heapreplace(loads, (load + sizes[index], rank))
    return found
