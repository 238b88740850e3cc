"""Training in phases of sequence length: first on samples that are short enough, later on all of them.

Source: BERT's own pre-training (Devlin et al., arXiv 1810.04805), at length 128 first and at 512 later. There each
phase has samples generated for its length. Here there is one store, and a phase draws those of its samples that have
no more tokens than the phase allows: nothing is cut off, and nothing generated twice.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from implementations.pytorch.data.sampling import Order


@dataclass(frozen=True)
class Phase:
    """So many samples of at most so many tokens."""

    max_sequence_length: int
    samples: int | None
    """Rounded up to whole global batches; None: to the end of the run. Only the last phase has none."""


@dataclass(frozen=True)
class Subset:
    """An order of some samples of a dataset: `order` is of their places in `indices` [n]."""

    order: Order
    indices: np.ndarray

    def samples(self, first: int, count: int) -> np.ndarray:
        """Dataset indices [count] int64 of the run's samples number first … first + count - 1."""
        drawn: np.ndarray = self.indices[self.order.samples(first, count)].astype(np.int64)
        return drawn


@dataclass(frozen=True)
class Phased:
    """One order after the other: order p goes from sample number firsts[p] to the next order's first."""

    orders: Sequence[Order]
    firsts: Sequence[int]

    def samples(self, first: int, count: int) -> np.ndarray:
        """Dataset indices [count] int64 of the run's samples number first … first + count - 1."""
        parts = []
        while count > 0:
            phase = phase_of(self.firsts, first)
            here = min(count, self.firsts[phase + 1] - first) if phase + 1 < len(self.firsts) else count
            parts.append(self.orders[phase].samples(first - self.firsts[phase], here))
            first, count = first + here, count - here
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


def phase_of(firsts: Sequence[int], number: int) -> int:
    """The phase of a sample number, where phase p begins with number firsts[p], ascending from 0."""
    return bisect_right(firsts, number) - 1


def first_samples(phases: Sequence[Phase], batch: int) -> list[int]:
    """The number of each phase's first sample: phases are whole global batches of `batch` samples."""
    firsts = [0]
    for phase in phases[:-1]:
        assert phase.samples is not None, "only the last phase has no end"
        firsts.append(firsts[-1] + -(-phase.samples // batch) * batch)
    return firsts
