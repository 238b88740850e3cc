"""Partition of whole tensors among the ranks that update them in a sharded optimizer, without torch."""

import heapq
from collections.abc import Sequence

LEAST_SHARED = 1 << 16


def owners(sizes: Sequence[int], ranks: int) -> list[int]:
    """Which rank owns each tensor: the largest first, each to the rank that has the fewest elements until then.

    Source: Graham's longest-processing-time rule; at most 4/3 of the best possible.
    """
    loads = [(0, rank) for rank in range(ranks)]
    found = [0] * len(sizes)
    for index in sorted(range(len(sizes)), key=lambda index: (-sizes[index], index)):
        load, rank = heapq.heappop(loads)
        found[index] = rank
        heapq.heappush(loads, (load + sizes[index], rank))
    return found
