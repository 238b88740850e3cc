"""Read every byte of a store once and keep what the checks need: sums, first offenders and 8 bytes a sample.

Shards are read by threads: hashing the bytes and the compiled passes let go of the interpreter. Of a shard in work
only its offsets are held in memory; its arrays are mapped.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.bert.preparation.settings import SPECIAL_TOKENS
from benchmarks.bert.preparation.tokenization import Vocabulary
from benchmarks.bert.store import Shard, shard_paths
from benchmarks.bert.verification.hashing import hash_samples
from benchmarks.bert.verification.structure import Structure, examine, expected_masked_counts
from benchmarks.errors import UsageError, WorkError


@dataclass(frozen=True, eq=False)
class ShardSurvey:
    """What one readable shard holds."""

    path: Path
    attributes: Mapping[str, Any]
    damage: str
    """Why its content is not what was written, as a sentence; empty where it is."""
    samples: int
    tokens: int
    masked_tokens: int
    expected_masked_tokens: int
    """Masked tokens that samples of these lengths have."""
    random_next: int
    lengths: NDArray[np.int64]
    """[max_sequence_length + 1] samples of each length."""
    words_seen: bool
    """Whether the vocabulary was there, the shard's own, so that the words were looked at."""
    structure: Structure
    hashes: NDArray[np.uint64]
    """[samples]"""
    repeats_in_a_row: int
    """Samples that equal the one before them."""
    expected_repeats_in_a_row: float
    """What chance gives in random order: Σ m·(m − 1) / samples over the samples that occur m times."""


@dataclass(frozen=True, eq=False)
class Survey:
    """What a store holds."""

    folder: Path
    shards: tuple[ShardSurvey, ...]
    unreadable: tuple[str, ...]
    """A sentence for each shard that could not be read."""

    def total(self, count: str) -> int:
        """The sum of a count over the shards."""
        return sum(getattr(shard, count) for shard in self.shards)

    @property
    def samples(self) -> int:
        return self.total("samples")

    @property
    def text_tokens(self) -> int:
        """Tokens but [CLS] and [SEP]."""
        return self.total("tokens") - SPECIAL_TOKENS * self.samples

    @property
    def words_seen(self) -> bool:
        return all(shard.words_seen for shard in self.shards)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """[longest + 1] samples of each length."""
        total = np.zeros(max(len(shard.lengths) for shard in self.shards), dtype=np.int64)
        for shard in self.shards:
            total[: len(shard.lengths)] += shard.lengths
        return total


def survey_store(
    folder: Path, vocabulary: Vocabulary | None, processors: int, on_read: Callable[[int], None] | None = None
) -> Survey:
    """Survey every shard of a folder, also where some cannot be read; `on_read` is told of bytes that were read.

    Takes 8 bytes a sample (1.25 GB of 157 million), and for each of the `processors` the offsets of a shard and its
    hashes once more. Raises UsageError where the folder has no shard.
    """
    paths = shard_paths(folder)
    with ThreadPoolExecutor(processors) as pool:
        try:
            surveys: list[ShardSurvey | str] = []
            for path, survey in zip(paths, pool.map(lambda path: _survey_or_why(path, vocabulary), paths), strict=True):
                surveys.append(survey)
                if on_read is not None:
                    on_read(_size(path))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return Survey(
        folder,
        tuple(survey for survey in surveys if isinstance(survey, ShardSurvey)),
        tuple(survey for survey in surveys if isinstance(survey, str)),
    )


def bytes_of(folders: Sequence[Path]) -> int:
    """Bytes of all shards of these stores."""
    return sum(_size(path) for folder in folders for path in shard_paths(folder))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _survey_or_why(path: Path, vocabulary: Vocabulary | None) -> ShardSurvey | str:
    try:
        return survey_shard(path, vocabulary)
    except (WorkError, UsageError) as error:
        return str(error)


def survey_shard(path: Path, vocabulary: Vocabulary | None) -> ShardSurvey:
    """Survey one shard; raises WorkError or UsageError if it cannot be read."""
    shard = Shard(path)
    expected_masked = expected_masked_counts(shard.origin)
    damage = ""
    try:
        shard.verify()
    except WorkError as error:
        damage = str(error)
    own = vocabulary if vocabulary and vocabulary.sha256 == shard.attributes["vocabulary_sha256"] else None
    samples = shard.samples
    hashes = hash_samples(samples)
    lengths = np.bincount(shard.lengths, minlength=len(expected_masked)).astype(np.int64)
    return ShardSurvey(
        path=path,
        attributes=shard.attributes,
        damage=damage,
        samples=len(shard),
        tokens=shard.attributes["tokens"],
        masked_tokens=shard.attributes["masked_tokens"],
        expected_masked_tokens=int(lengths @ expected_masked),
        random_next=int(np.count_nonzero(samples.next_sentence_labels)),
        lengths=lengths,
        words_seen=own is not None,
        structure=examine(samples, expected_masked, own),
        hashes=hashes,
        repeats_in_a_row=int(np.count_nonzero(hashes[1:] == hashes[:-1])),
        expected_repeats_in_a_row=_expected_repeats_in_a_row(hashes),
    )


def _expected_repeats_in_a_row(hashes: NDArray[np.uint64]) -> float:
    """Pairs of equal samples, in both orders, over the number of samples."""
    _, occurrences = np.unique(hashes, return_counts=True)
    return float((occurrences * (occurrences - 1)).sum()) / len(hashes)
