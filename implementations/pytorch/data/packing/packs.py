"""Rows that hold several sequences, as kinds of rows with their numbers: which lengths lie side by side, how often."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

Kind = tuple[int, ...]
"""The lengths of a row's sequences, in tokens, the longest first."""


@dataclass(frozen=True)
class Packs:
    """Rows of `row_tokens` tokens each, so many of each kind."""

    row_tokens: int
    counts: dict[Kind, int]

    @classmethod
    def of(cls, row_tokens: int, kinds: Iterable[tuple[Kind, int]]) -> "Packs":
        """From kinds with numbers, in which a kind may come several times; 0 and fewer rows are none."""
        counts: dict[Kind, int] = {}
        for kind, count in kinds:
            if count > 0:
                counts[kind] = counts.get(kind, 0) + count
        return cls(row_tokens, counts)

    def __add__(self, other: "Packs") -> "Packs":
        return Packs.of(self.row_tokens, [*self.counts.items(), *other.counts.items()])

    @property
    def rows(self) -> int:
        return sum(self.counts.values())

    @property
    def sequences(self) -> int:
        return sum(len(kind) * count for kind, count in self.counts.items())

    @property
    def tokens(self) -> int:
        return sum(sum(kind) * count for kind, count in self.counts.items())

    @property
    def efficiency(self) -> float:
        """Share of the rows' tokens that are no padding; 1 for no rows."""
        return self.tokens / (self.rows * self.row_tokens) if self.rows else 1.0

    def histogram(self) -> np.ndarray:
        """[row_tokens + 1] int64 sequences of length 0, 1, 2, …"""
        histogram = np.zeros(self.row_tokens + 1, dtype=np.int64)
        for kind, count in self.counts.items():
            for length in kind:
                histogram[length] += count
        return histogram


def require_histogram(histogram: np.ndarray, row_tokens: int) -> None:
    """Raises ValueError unless these are numbers of sequences of length 0, 1, 2, …, none of 0 or longer than a row."""
    if histogram.ndim != 1 or (histogram < 0).any() or histogram[0] or histogram[row_tokens + 1 :].any():
        raise ValueError(f"a histogram has the numbers of sequences of length 0 to {row_tokens}, none of length 0")
