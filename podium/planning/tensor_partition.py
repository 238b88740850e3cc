"""Partition of whole tensors (or samples) among ranks, for a sharded optimizer; without torch."""

import heapq
from collections.abc import Sequence

MIN_SHARDED_SIZE = 1 << 16  # elements; smaller tensors are updated on all ranks, which costs less than sending them


def owners(sizes: Sequence[float], ranks: int) -> list[int]:
    """Return the rank that owns each tensor: the largest first, each to the rank with the fewest elements so far.

    Source: Graham's longest-processing-time rule (LPT; SIAM J. Applied Mathematics 17, 1969), whose largest load is at
    most 4/3 of the optimum.
    """
    loads = [(0.0, rank) for rank in range(ranks)]
    found = [0] * len(sizes)
    for index in sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True):  # stable: ties by index
        load, rank = loads[0]
        found[index] = rank
        heapq.heapreplace(loads, (load + sizes[index], rank))
    return found
