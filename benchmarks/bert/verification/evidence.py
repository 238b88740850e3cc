"""The evidence that the checks of a store examine, and how far a share may deviate from its expectation by chance."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.bert.preparation.tokenization import Vocabulary
from benchmarks.bert.verification.duplicates import Duplicates
from benchmarks.bert.verification.shard_stats import Survey
from podium.core.finding import Severity


@dataclass(frozen=True)
class Subject:
    """What is to be proved right, and with what."""

    store: Path
    evaluation: Path | None = None
    vocabulary: Path | None = None
    texts: tuple[Path, ...] = ()
    official: bool = False  # whether it has to be MLPerf's own data

    @property
    def stores(self) -> tuple[Path, ...]:
        return (self.store,) if self.evaluation is None else (self.store, self.evaluation)


@dataclass(frozen=True, eq=False)
class Evidence:
    """Two stores that were read, and what they share."""

    subject: Subject
    training: Survey
    evaluation: Survey | None
    duplicates: Duplicates  # among all readable shards, the training store's first
    vocabulary: Vocabulary | None

    @property
    def fault(self) -> Severity:
        """Of what is wrong with MLPerf's own data, and only another choice elsewhere."""
        return "error" if self.subject.official else "note"

    @property
    def surveys(self) -> Iterator[tuple[str, Survey]]:
        """Each store with what its findings begin with."""
        yield "", self.training
        if self.evaluation is not None:
            yield "evaluation ", self.evaluation

    @property
    def readable(self) -> Iterator[tuple[str, Survey]]:
        """The stores of which a shard can be read."""
        return ((prefix, survey) for prefix, survey in self.surveys if survey.shards)


SIGMAS = 6.0  # standard deviations; chance goes beyond them twice in a thousand million checks


def tolerance(share: float, count: int) -> float:
    """What a share of `count` independent draws may differ from its expectation `share`: 6 binomial deviations."""
    return SIGMAS * math.sqrt(share * (1 - share) / count) if count else math.inf
