"""Statistics of a store from one pass over its bytes: sums, first offenders, and an 8-byte hash a sample.

Shards are read by threads: hashing the bytes and the compiled passes release the interpreter lock. Only the offsets
of a shard in progress are in memory; its arrays are mapped.

One compiled pass over the flat arrays checks that every sample is a [CLS] A [SEP] B [SEP] with the right masks. At a
masked position any token of the vocabulary may stand, [CLS] and [SEP] too, since one in ten is drawn at random; so
the original tokens are restored before the structure is checked.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.bert.preparation.settings import SPECIAL_TOKENS, GenerationSettings, masked_counts
from benchmarks.bert.preparation.tokenization import CLASSIFICATION, MASK, PAD, SEPARATOR, Vocabulary
from benchmarks.bert.samples import FlatArrays, largest
from benchmarks.bert.shard import Origin, Shard
from benchmarks.bert.store import shard_paths
from benchmarks.bert.verification.duplicates import hash_samples
from podium.core.errors import UsageError, WorkError
from podium.core.jit import compiled

# What can be wrong with a sample; those from `WORD_FAULTS` on are seen only with the vocabulary.
FAULTS = (
    "a first segment shorter than 3 tokens or longer than all but 2",
    "a next-sentence label that is neither 0 nor 1",
    "masked positions that do not ascend or lie beyond the sample",
    "a mask on [CLS] or [SEP]",
    "another number of masked tokens than its length gives",
    "a token id beyond the vocabulary",
    "no [CLS] at its start",
    "no [SEP] at the end of a segment",
    "[CLS], [SEP], [MASK] or [PAD] within its text",
)
SPECIAL = (CLASSIFICATION, SEPARATOR, MASK, PAD)
SEGMENT, LABEL, POSITIONS, SPECIAL_MASKED, MASKED_COUNT, BEYOND, START, ENDS, INSIDE = range(len(FAULTS))
WORD_FAULTS = BEYOND


def expected_masked_counts(origin: Origin) -> NDArray[np.int64]:
    """Masked tokens of a sample of each length, i8 [max_sequence_length + 1]: never more than it has tokens of text.

    The probability of imported samples is not known: 0.15 as in all published data.
    """
    probability = (origin.generation or GenerationSettings()).masked_lm_probability
    counts = masked_counts(probability, origin.max_predictions, origin.max_sequence_length)
    return np.minimum(counts, np.maximum(0, np.arange(len(counts)) - SPECIAL_TOKENS))


@compiled
def _special_words(text: NDArray[np.uint16], length: int, special: NDArray[np.uint16]) -> int:
    """How many of text[:length] are among the four special words."""
    one, two, three, four = special[0], special[1], special[2], special[3]
    count = 0
    for place in range(length):
        word = text[place]
        count += (word == one) | (word == two) | (word == three) | (word == four)
    return count


@compiled
def _examine_flat(
    arrays: FlatArrays, expected_masked: NDArray[np.int64], special: NDArray[np.uint16], words: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], int, int]:
    """Faults [9], their first samples [9], numbers of masked positions with [MASK] and with the original token.

    `special` are the ids of [CLS], [SEP], [MASK] and [PAD]; they count only where `words`, the size of the vocabulary,
    is not 0.
    """
    token_ids, sample_offsets, first_lengths, masked_positions, masked_token_ids, masked_offsets, labels = arrays
    faults = np.zeros(9, dtype=np.int64)
    first = np.full(9, -1, dtype=np.int64)
    as_mask, kept = 0, 0
    text = np.empty(len(expected_masked), dtype=np.uint16)
    has = np.empty(9, dtype=np.bool_)
    for sample in range(len(labels)):
        start, end = sample_offsets[sample], sample_offsets[sample + 1]
        length = end - start
        last = length - 1
        separator = np.int64(first_lengths[sample]) - 1
        masked_start, masked_end = masked_offsets[sample], masked_offsets[sample + 1]
        has[:] = False
        has[SEGMENT] = separator < 2 or separator > length - 3
        has[LABEL] = labels[sample] > 1
        has[MASKED_COUNT] = masked_end - masked_start != expected_masked[length]
        for place in range(length):
            text[place] = token_ids[start + place]
        before = np.int64(-1)
        for masked in range(masked_start, masked_end):
            position = np.int64(masked_positions[masked])
            if position <= before or position > last:
                has[POSITIONS] = True
                continue
            before = position
            has[SPECIAL_MASKED] |= position in (0, separator, last)
            original = masked_token_ids[masked]
            as_mask += text[position] == special[2]
            kept += text[position] == original
            text[position] = original
        if words > 0:
            word = max(largest(token_ids[start:end]), largest(masked_token_ids[masked_start:masked_end]))
            has[BEYOND] = word >= words
            has[START] = text[0] != special[0]
            has[ENDS] = text[last] != special[1]
            outside = _special_words(text[:1], 1, special) + _special_words(text[last:], 1, special)
            if 0 < separator < last:
                has[ENDS] |= text[separator] != special[1]
                outside += _special_words(text[separator:], 1, special)
            has[INSIDE] = _special_words(text, length, special) > outside
        for fault in range(9):
            if has[fault]:
                faults[fault] += 1
                if first[fault] < 0:
                    first[fault] = sample
    return faults, first, as_mask if words > 0 else 0, kept


@dataclass(frozen=True, eq=False)
class ShardSurvey:
    """What one readable shard holds."""

    path: Path
    attributes: Mapping[str, Any]
    damage: str  # why its content is not what was written, as a sentence; empty where it is
    samples: int
    tokens: int
    masked_tokens: int
    expected_masked_tokens: int  # masked tokens that samples of these lengths have
    random_next: int
    lengths: NDArray[np.int64]  # [max_sequence_length + 1] samples of each length
    words_seen: bool  # whether the vocabulary was there, the shard's own, so that the words were looked at
    faults: NDArray[np.int64]  # [faults] samples that have each of FAULTS
    first_offenders: NDArray[np.int64]  # [faults] the first sample with it, −1 where there is none
    masked_as_mask: int  # masked positions where [MASK] stands; 0 without the vocabulary
    masked_kept: int  # masked positions where the original token stands
    hashes: NDArray[np.uint64]  # [samples]
    repeats_in_a_row: int  # samples that equal the one before them
    # What chance gives in random order: Σ m·(m − 1) / samples over the samples that occur m times.
    expected_repeats_in_a_row: float


@dataclass(frozen=True, eq=False)
class Survey:
    """What a store holds."""

    shards: tuple[ShardSurvey, ...]
    unreadable: tuple[str, ...]  # a sentence for each shard that could not be read

    def total(self, count: str) -> int:
        """The sum of a count over the shards."""
        return sum(getattr(shard, count) for shard in self.shards)

    @property
    def attributes(self) -> dict[Path, Mapping[str, Any]]:
        """Of every readable shard."""
        return {shard.path: shard.attributes for shard in self.shards}

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

    Takes 8 bytes a sample (1.25 GB of 157 million), and for each of the `processors` the samples of a shard, and their
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
    samples = shard.samples
    try:
        shard.verify(samples)
    except WorkError as error:
        damage = str(error)
    own = vocabulary if vocabulary and vocabulary.sha256 == shard.attributes["vocabulary_sha256"] else None
    # Without the vocabulary the words themselves are not looked at.
    special = np.array([own.ids[word] if own else 0 for word in SPECIAL], dtype=np.uint16)
    faults, first_offenders, as_mask, kept = _examine_flat(
        samples.arrays, expected_masked, special, len(own.words) if own else 0
    )
    hashes = hash_samples(samples)
    _, occurrences = np.unique(hashes, return_counts=True)
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
        faults=faults,
        first_offenders=first_offenders,
        masked_as_mask=as_mask,
        masked_kept=kept,
        hashes=hashes,
        repeats_in_a_row=int(np.count_nonzero(hashes[1:] == hashes[:-1])),
        expected_repeats_in_a_row=float((occurrences * (occurrences - 1)).sum()) / len(hashes),
    )
