"""Numbers that summarise numbers: of several runs, and of the steps of one."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

RESOLUTION = 1e-4
"""Relative: values of a distribution that are closer are one."""


@dataclass(frozen=True)
class Spread:
    """Of n numbers."""

    n: int
    mean: float
    sd: float | None
    """Sample standard deviation; None of one number."""
    least: float
    greatest: float


def spread(values: Iterable[float]) -> Spread | None:
    """None for no number at all."""
    numbers = list(values)
    if not numbers:
        return None
    sd = stdev(numbers) if len(numbers) > 1 else None
    return Spread(len(numbers), fmean(numbers), sd, min(numbers), max(numbers))


class Distribution:
    """How often positive numbers came up, to RESOLUTION, in memory that does not grow with how many they are."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def add(self, value: float) -> None:
        self._counts[round(math.log(value) / RESOLUTION)] += 1

    def quantiles(self, shares: Sequence[float]) -> list[float]:
        """The least value that at least such a share of all values does not exceed, for each share."""
        found: list[float] = []
        ordered, total = sorted(self._counts.items()), self._counts.total()
        for share in shares:
            seen = 0
            for key, count in ordered:
                seen += count
                if seen >= share * total:
                    found.append(math.exp(key * RESOLUTION))
                    break
        return found

    @property
    def total(self) -> int:
        return self._counts.total()
