"""Which samples of a text are kept."""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.bert.preparation.evaluation import evaluation_pick
from benchmarks.bert.preparation.gathering import gather
from benchmarks.bert.samples import Samples
from benchmarks.bert.store import EVALUATION, RANDOM, Origin
from benchmarks.errors import UsageError


class Selection:
    """All samples of a text."""

    def of(self, samples: Samples, text: Path) -> Samples:
        """The samples to keep, of all samples of a text; UsageError if there are too few."""
        return samples

    def mark(self, origin: Origin) -> Origin:
        """The origin of the samples kept, but for the number that they were selected from."""
        return origin


WHOLE_TEXT = Selection()


@dataclass(frozen=True)
class EvaluationPick(Selection):
    """`count` samples, as the reference picks them from eval.txt's."""

    count: int

    def of(self, samples: Samples, text: Path) -> Samples:
        if len(samples) < self.count:
            raise UsageError(f"{text}: it has {len(samples)} samples, and {self.count} to evaluate were asked for")
        return gather(samples, evaluation_pick(len(samples), self.count))

    def mark(self, origin: Origin) -> Origin:
        return replace(origin, selection=EVALUATION, selection_sha256=_digest(self))


@dataclass(frozen=True)
class SmallestKeys(Selection):
    """The samples whose random key is at most `largest`, and the one with the smallest key in any case.

    A key is a function of the seed, the text's name and the sample's index in the text.
    """

    seed: int
    largest: int

    def keys(self, text: Path, count: int) -> NDArray[np.uint64]:
        """Keys [count] of all samples of a text: the raw stream of PCG64, which numpy does not change."""
        name = np.frombuffer(hashlib.sha256(text.name.encode()).digest(), "<u4")
        keys: NDArray[np.uint64] = np.random.PCG64([self.seed, *name.tolist()]).random_raw(count)
        return keys

    def indices(self, text: Path, count: int) -> NDArray[np.int64]:
        """Which of a text's samples these are, ascending."""
        keys = self.keys(text, count)
        return np.flatnonzero(keys <= max(np.uint64(self.largest), keys.min()))

    def of(self, samples: Samples, text: Path) -> Samples:
        return gather(samples, self.indices(text, len(samples)))

    def mark(self, origin: Origin) -> Origin:
        return replace(origin, selection=RANDOM, selection_sha256=_digest(self))


def _digest(selection: Selection) -> str:
    return hashlib.sha256(repr(selection).encode()).hexdigest()
