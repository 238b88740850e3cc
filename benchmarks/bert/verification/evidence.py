"""Input of the checks: the request, the statistics of the stores, and the statistical tolerance of a share."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.bert.preparation.tokenization import Vocabulary
from benchmarks.bert.verification.duplicates import Duplicates
from benchmarks.bert.verification.shard_stats import StoreStatistics
from podium.core.finding import Severity


@dataclass(frozen=True)
class VerificationRequest:
    """What to verify, and the files to compare it with."""

    store: Path  # folder of training shards
    evaluation: Path | None = None  # folder of evaluation shards
    vocabulary: Path | None = None  # the vocab.txt of both
    texts: tuple[Path, ...] = ()  # that shards were made from
    official: bool = False  # whether the data must be MLPerf's own

    @property
    def stores(self) -> tuple[Path, ...]:
        """The folders: training first, then evaluation where there is one."""
        return (self.store,) if self.evaluation is None else (self.store, self.evaluation)


@dataclass(frozen=True, eq=False)
class Evidence:
    """Everything that the checks use: statistics of one or two stores, and their duplicate samples."""

    request: VerificationRequest
    training: StoreStatistics
    evaluation: StoreStatistics | None
    duplicates: Duplicates  # among all readable shards, those of the training store first
    vocabulary: Vocabulary | None

    @property
    def deviation_severity(self) -> Severity:
        """Severity of a deviation from MLPerf's own data: an error only where `official` requires that data."""
        return "error" if self.request.official else "note"

    @property
    def statistics(self) -> Iterator[tuple[str, StoreStatistics]]:
        """Pairs of a prefix for the names of findings and the statistics of a store."""
        yield "", self.training
        if self.evaluation is not None:
            yield "evaluation ", self.evaluation

    @property
    def readable_statistics(self) -> Iterator[tuple[str, StoreStatistics]]:
        """`statistics` of the stores with a readable shard."""
        return ((prefix, statistics) for prefix, statistics in self.statistics if statistics.shards)


SIGMAS = 6.0  # standard deviations; chance exceeds them in two of 10^9 checks


def tolerance(share: float, count: int) -> float:
    """Allowed deviation of a share of `count` independent draws from its expectation: SIGMAS binomial deviations."""
    return SIGMAS * math.sqrt(share * (1 - share) / count) if count else math.inf
