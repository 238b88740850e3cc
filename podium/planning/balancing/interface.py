"""Input and output of a balancing strategy, and a lower bound on the load of the busiest part.

An assignment maps the samples of a global batch to parts: ranks, or micro-batches of ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self

import numpy as np

from podium.core.jit import compiled

if TYPE_CHECKING:
    from podium.config.schema import RunConfig


@dataclass(frozen=True)
class Assignment:
    """Assignment of a global batch: part p takes the positions order[starts[p]:starts[p + 1]].

    Parts may be of unequal size (compressed rows, as in CSR).
    """

    order: np.ndarray  # [G] int64, every position once
    starts: np.ndarray  # [parts + 1] int64, from 0 to G

    @classmethod
    def from_rows(cls, positions: np.ndarray) -> Self:
        """Parts of equal size, from positions [parts, G / parts]."""
        parts, size = positions.shape
        return cls(positions.reshape(-1).astype(np.int64), np.arange(parts + 1, dtype=np.int64) * size)

    @classmethod
    def from_part_ids(cls, part_of: np.ndarray, parts: int) -> Self:
        """From the part [G] of every position. Positions of a part are ascending."""
        # A stable sort, so that equal keys keep their order on every machine.
        order = np.argsort(part_of, kind="stable").astype(np.int64)
        return cls(order, offsets_of(np.bincount(part_of, minlength=parts)))

    @classmethod
    def from_parts(cls, positions: Sequence[np.ndarray]) -> Self:
        """From an array of positions for each part."""
        return cls(np.concatenate(positions).astype(np.int64), offsets_of([len(each) for each in positions]))

    @property
    def parts(self) -> int:
        return len(self.starts) - 1

    @property
    def counts(self) -> np.ndarray:
        """Samples of each part: [parts] int64."""
        counts: np.ndarray = np.diff(self.starts)
        return counts

    def part(self, p: int) -> np.ndarray:
        """Positions of part p: int64."""
        positions: np.ndarray = self.order[self.starts[p] : self.starts[p + 1]]
        return positions

    def loads(self, values: np.ndarray) -> np.ndarray:
        """Sums [parts] of values [G] over each part, 0 for an empty one; int64 for integer values, else float64."""
        kind = np.int64 if np.issubdtype(values.dtype, np.integer) else np.float64
        return _loads(values, self.order, self.starts, np.zeros(self.parts, dtype=kind))


@dataclass(frozen=True)
class AssignmentSpec:
    """Inputs of a strategy besides the lengths: the parts, their nodes and the costs of a sequence.

    Raises ValueError for values out of range.
    """

    parts: int
    parts_per_node: int  # equal to `parts` for a single node
    pair_cost: float = 0.0  # of a (query, key) pair, in units of a token's cost: n tokens cost n + pair_cost · n²
    sequence_cost: float = 0.0  # constant cost of a sequence, in the same unit
    row_tokens: int = 512  # of a packed row
    counts: Literal["equal", "free"] = "equal"  # whether `indexed` gives every part equally many samples
    scan: Literal["stride", "snake"] | None = None  # of sorted samples; None: as each strategy was published
    min_samples: int = 1  # of each part, where counts are free

    def __post_init__(self) -> None:
        if min(self.parts, self.parts_per_node, self.row_tokens, self.min_samples) < 1:
            raise ValueError("parts, parts_per_node, row_tokens and min_samples must be 1 or more")
        if self.parts % self.parts_per_node:
            raise ValueError(f"{self.parts} parts are not divisible into nodes of {self.parts_per_node}")
        if not (0 <= self.pair_cost < np.inf and 0 <= self.sequence_cost < np.inf):
            raise ValueError("pair_cost and sequence_cost must be finite and not negative")

    @classmethod
    def of_config(cls, config: "RunConfig", costs: tuple[float, float], row_tokens: int = 512) -> Self:
        """For the ranks of a configuration; `costs` are the pair and sequence cost where it sets none."""
        return cls(
            config.launch.ranks,
            config.launch.processes_per_node,
            pair_cost=costs[0] if config.pair_cost is None else config.pair_cost,
            sequence_cost=costs[1] if config.sequence_cost is None else config.sequence_cost,
            row_tokens=row_tokens,
            counts=config.balancing_counts,
        )

    def costs(self, lengths: np.ndarray) -> np.ndarray:
        """Cost of sequences of these lengths in units of one token's cost: float64 of the same shape."""
        n = lengths.astype(np.float64)
        return n + self.pair_cost * n * n + self.sequence_cost


def offsets_of(counts: np.ndarray | Sequence[int]) -> np.ndarray:
    """Offsets of consecutive runs with these counts [n], and the end of the last one: int64 [n + 1]."""
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts, dtype=np.int64)])


@compiled
def _loads(values: np.ndarray, order: np.ndarray, starts: np.ndarray, loads: np.ndarray) -> np.ndarray:
    """Fill `loads` [parts] with the sum of each part's values."""
    # Each load is a difference of running sums over all parts, so that it rounds like np.cumsum over the whole batch.
    after = loads.sum()
    for part in range(len(loads)):
        before = after
        for place in range(starts[part], starts[part + 1]):
            after += values[order[place]]
        loads[part] = after - before
    return loads


def max_over_mean_lower_bound(v: np.ndarray, spec: AssignmentSpec) -> float:
    """Lower bound on max/mean over the parts of any assignment of samples with these values [G].

    The values are not negative and in descending order. The bound takes the equal counts of the specification into
    account, and is 1 where all values are 0. It is the largest of the following, for P parts and v₁ ≥ v₂ ≥ …:

    - the mean part, and v₁;
    - for every m, the mean of m parts that together have at least 2m of v₁ … v_{P+m}. Such parts exist, since P parts
      have P + m values, and those with at most one can be left out. They have at least v_{P−m+1} + … + v_{P+m};
    - for every m, the smaller of v_{P−m+1} + v_{P+m} and 3·v_{P+m}: if no part has one of the first P − m + 1 values
      together with another of the first P + m, then m − 1 parts are left for 2m − 1 of them, and one has three.

    With equal counts, the other places of these parts have at least the smallest of all values.
    """
    count, parts = len(v), spec.parts
    equal = spec.counts == "equal" and count % parts == 0
    return _lower_bound(v.astype(np.float64), parts, count // parts if equal else count, equal)


@compiled
def _lower_bound(v: np.ndarray, parts: int, places: int, equal: bool) -> float:
    count = len(v)
    sums = np.zeros(count + 1)
    for i in range(count):
        sums[i + 1] = sums[i] + v[i]
    if sums[count] <= 0:
        return 1.0
    most = v[0]
    # With equal counts a part has `places` samples: those beside two or three known ones cost at least the smallest.
    beside_two = sums[count] - sums[count - max(places - 2, 0)] if equal else 0.0
    beside_three = sums[count] - sums[count - max(places - 3, 0)] if equal else 0.0
    for m in range(1, min(parts, count - parts) + 1):
        others = sums[count] - sums[count - max((places - 2) * m, 0)] if equal else 0.0
        sum_of_parts = sums[parts + m] - sums[parts - m] + others
        beside = v[parts - m] + v[parts + m - 1] + beside_two
        three = 3 * v[parts + m - 1] + beside_three if places > 2 else np.inf
        most = max(most, sum_of_parts / m, min(beside, three))
    return float(max(1.0, most * parts / sums[count]))
