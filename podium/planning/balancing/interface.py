"""Input and output of a balancing strategy, and lower bounds of the busiest part.

An assignment states which rank takes which samples of a global batch. No assignment can be better than the bounds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from podium.core.jit import compiled

if TYPE_CHECKING:
    from podium.config.schema import RunConfig


@dataclass(frozen=True)
class Assignment:
    """Part p takes the positions order[starts[p]:starts[p + 1]] of the global batch; parts may be of unequal size."""

    order: np.ndarray  # [G] int64, every position once
    starts: np.ndarray  # [parts + 1] int64, from 0 to G

    @classmethod
    def even(cls, positions: np.ndarray) -> "Assignment":
        """Parts of equal size: positions [parts, G / parts]."""
        parts, size = positions.shape
        return cls(positions.reshape(-1).astype(np.int64), np.arange(parts + 1, dtype=np.int64) * size)

    @classmethod
    def grouped(cls, part_of: np.ndarray, parts: int) -> "Assignment":
        """From the part [G] of every position; a part keeps its positions in their order."""
        order = np.argsort(part_of, kind="stable").astype(np.int64)
        return cls(order, offsets_of(np.bincount(part_of, minlength=parts)))

    @classmethod
    def joined(cls, positions: Sequence[np.ndarray]) -> "Assignment":
        """From the positions of each part."""
        return cls(np.concatenate(positions).astype(np.int64), offsets_of([len(each) for each in positions]))

    @property
    def parts(self) -> int:
        return len(self.starts) - 1

    @property
    def counts(self) -> np.ndarray:
        """[parts] samples of each part."""
        counts: np.ndarray = np.diff(self.starts)
        return counts

    def part(self, p: int) -> np.ndarray:
        """The positions of part p."""
        positions: np.ndarray = self.order[self.starts[p] : self.starts[p + 1]]
        return positions

    def loads(self, values: np.ndarray) -> np.ndarray:
        """[parts] sums of values [G] over each part, 0 for an empty one; int64 of whole numbers, else float64."""
        kind = np.int64 if np.issubdtype(values.dtype, np.integer) else np.float64
        return _loads(values, self.order, self.starts, np.zeros(self.parts, dtype=kind))


@dataclass(frozen=True)
class Deal:
    """What a strategy may know besides the lengths. Raises ValueError where it makes no sense."""

    parts: int
    parts_per_node: int  # = parts where there is one node
    pair_cost: float = 0.0  # of a (query, key) pair in units of a token's cost: a sequence costs n + pair_cost · n²
    sequence_cost: float = 0.0  # of a sequence whatever its length, in the same unit
    row_tokens: int = 512  # of a packed row
    counts: Literal["equal", "free"] = "equal"  # whether `indexed` gives every part equally many samples
    scan: Literal["stride", "snake"] | None = None  # of sorted samples; None: the way each was published
    least: int = 1  # samples that every part has where counts are free

    def __post_init__(self) -> None:
        if min(self.parts, self.parts_per_node, self.row_tokens, self.least) < 1:
            raise ValueError("parts, parts_per_node, row_tokens and least count from 1")
        if self.parts % self.parts_per_node:
            raise ValueError(f"{self.parts} parts are no whole number of nodes of {self.parts_per_node}")
        if not (0 <= self.pair_cost < np.inf and 0 <= self.sequence_cost < np.inf):
            raise ValueError("costs are finite and not negative")

    @classmethod
    def of_config(cls, config: "RunConfig", costs: tuple[float, float], row_tokens: int = 512) -> "Deal":
        """Among the ranks of a configuration; pair and sequence cost as in `costs` where the configuration has none."""
        return cls(
            config.launch.ranks,
            config.launch.processes_per_node,
            pair_cost=costs[0] if config.pair_cost is None else config.pair_cost,
            sequence_cost=costs[1] if config.sequence_cost is None else config.sequence_cost,
            row_tokens=row_tokens,
            counts=config.balancing_counts,
        )

    def costs(self, lengths: np.ndarray) -> np.ndarray:
        """What sequences of these lengths cost, in units of one token's cost: float64 of the same shape."""
        n = lengths.astype(np.float64)
        return n + self.pair_cost * n * n + self.sequence_cost


def offsets_of(counts: np.ndarray | Sequence[int]) -> np.ndarray:
    """Where runs of these lengths [n] begin when they lie end to end, and where the last ends: int64 [n + 1]."""
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts, dtype=np.int64)])


@compiled
def _loads(values: np.ndarray, order: np.ndarray, starts: np.ndarray, loads: np.ndarray) -> np.ndarray:
    """Differences of the sums of all values so far, which rounds as a cumulative sum of the whole does."""
    after = loads.sum()
    for part in range(len(loads)):
        before = after
        for place in range(starts[part], starts[part + 1]):
            after += values[order[place]]
        loads[part] = after - before
    return loads


def least_max_over_mean(v: np.ndarray, deal: Deal) -> float:
    """A lower bound of max/mean over the parts of any assignment of samples of these values [G].

    The values are not negative, in descending order. The bound knows whether `deal` wants equal counts, and is 1 where
    all values are 0. It is the largest of, for P parts and v₁ ≥ v₂ ≥ …:

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
