"""What the checks look at."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.bert.preparation.tokenization import Vocabulary
from benchmarks.bert.verification.duplicates import Duplicates
from benchmarks.bert.verification.survey import Survey
from benchmarks.finding import Severity


@dataclass(frozen=True, eq=False)
class Evidence:
    """Two stores that were read, what they share, and what else was given to compare them with."""

    training: Survey
    evaluation: Survey | None
    duplicates: Duplicates
    """Among all readable shards, the training store's first."""
    vocabulary: Vocabulary | None
    vocabulary_file: Path | None
    texts: tuple[Path, ...]
    official: bool
    """Whether it has to be MLPerf's own data."""

    @property
    def fault(self) -> Severity:
        """Of what is wrong with MLPerf's own data, and only another choice elsewhere."""
        return "error" if self.official else "note"

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
