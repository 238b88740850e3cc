"""Which sequences of a batch share one dense attention product.

Attention over sequences of unequal length is computed group by group: the sequences of a group are laid out as a
[sequences, longest] rectangle. Few groups waste products on short sequences, many groups waste launches. Since the best
groups are always runs of the length-sorted batch, the cheapest cut is found exactly by dynamic programming.
Runs on the host, in the loader.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LAUNCH_COST = 40_000.0
"""What one more group costs, in units of one query–key pair: measured on two CPU cores, see docs/lab-notebook.md."""


@dataclass(frozen=True)
class Group:
    """The slots `first` to `last` (exclusive) of the length-sorted batch, laid out as `rows` × `width` tokens."""

    first: int
    last: int
    width: int

    @property
    def rows(self) -> int:
        return self.last - self.first


WIDTH_STEP = 32
"""Widths are multiples of this: libraries prepare a product for each shape that they meet, so few shapes cost less."""


def group_by_width(sorted_lengths: np.ndarray, widths: Sequence[int]) -> tuple[Group, ...]:
    """Cut lengths [S], sorted from long to short, at given widths, as arXiv 2208.08124 does at 128, 256, 384 and 512.

    Each sequence goes to the narrowest width that holds it; a width that no sequence needs makes no group. Raises
    ValueError for a sequence that is longer than the greatest width.
    """
    descending = sorted(widths, reverse=True)
    if len(sorted_lengths) and sorted_lengths[0] > descending[0]:
        raise ValueError(f"a sequence of {sorted_lengths[0]} tokens fits none of the widths {sorted(widths)}")
    firsts = [int(np.count_nonzero(sorted_lengths > width)) for width in descending]
    lasts = [*firsts[1:], len(sorted_lengths)]
    cuts = zip(firsts, lasts, descending, strict=True)
    return tuple(Group(first, last, width) for first, last, width in cuts if last > first)


def group_by_length(sorted_lengths: np.ndarray, launch_cost: float = LAUNCH_COST) -> tuple[Group, ...]:
    """Cut lengths [S], sorted from long to short, into the groups of least total cost.

    A group of n sequences costs n · width² + `launch_cost`, its width being that of its longest sequence, rounded up.
    Exact, O(S²) in vectorised steps. An empty batch has no groups.
    """
    count = len(sorted_lengths)
    widths = -(-sorted_lengths.astype(np.int64) // WIDTH_STEP) * WIDTH_STEP
    squares = widths.astype(np.float64) ** 2
    best = np.zeros(count + 1)  # best[i]: least cost of the first i sequences
    cut = np.zeros(count + 1, dtype=np.int64)
    for last in range(1, count + 1):
        first = np.arange(last)
        costs = best[:last] + (last - first) * squares[:last] + launch_cost
        cut[last] = int(np.argmin(costs))
        best[last] = costs[cut[last]]
    groups: list[Group] = []
    last = count
    while last > 0:
        first_slot = int(cut[last])
        groups.append(Group(first_slot, last, int(widths[first_slot])))
        last = first_slot
    return tuple(reversed(groups))
