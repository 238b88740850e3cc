"""Statistics of a store from one pass over its bytes: sums, malformed samples, and an 8-byte hash of each sample.

Shards are read by threads: hashing and the compiled passes release the interpreter lock.

One compiled pass over the flat arrays checks that every sample is a well-formed [CLS] A [SEP] B [SEP] with correct
masks. A masked position may have any token of the vocabulary, even [CLS] or [SEP], since one in ten is drawn at random;
so the original tokens are restored before the structure is checked.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.bert.preparation.settings import SPECIAL_TOKENS_PER_SAMPLE, GenerationSettings, masked_counts
from benchmarks.bert.preparation.tokenization import CLASSIFICATION, MASK, PAD, SEPARATOR, Vocabulary
from benchmarks.bert.samples import FlatArrays, largest
from benchmarks.bert.shard import Origin, Shard
from benchmarks.bert.store import shard_paths
from benchmarks.bert.verification.duplicates import hash_samples
from podium.core.errors import UsageError, WorkError
from podium.core.jit import compiled

# The faults of a sample; those from index VOCABULARY_FAULTS on are detected only with the vocabulary.
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
# The order of the argument `special` of compiled functions.
ALL_SPECIAL_TOKENS = (CLASSIFICATION, SEPARATOR, MASK, PAD)
(
    BAD_SEGMENT,
    BAD_LABEL,
    BAD_POSITIONS,
    SPECIAL_MASKED,
    BAD_MASKED_COUNT,
    ID_OUT_OF_RANGE,
    NO_CLS,
    NO_SEP,
    SPECIAL_INSIDE,
) = range(len(FAULTS))
VOCABULARY_FAULTS = ID_OUT_OF_RANGE


def expected_masked_counts(origin: Origin) -> NDArray[np.int64]:
    """Expected masked tokens of a sample of each length, i8 [max_sequence_length + 1], at most its tokens of text."""
    # The settings of imported samples are unknown; all published data has a probability of 0.15, the default.
    probability = (origin.generation or GenerationSettings()).masked_lm_probability
    counts = masked_counts(probability, origin.max_predictions, origin.max_sequence_length)
    return np.minimum(counts, np.maximum(0, np.arange(len(counts)) - SPECIAL_TOKENS_PER_SAMPLE))


@compiled
def _count_special_tokens(text: NDArray[np.uint16], length: int, special: NDArray[np.uint16]) -> int:
    """Number of tokens in text[:length] that are one of the four special ids."""
    one, two, three, four = special[0], special[1], special[2], special[3]
    count = 0
    for i in range(length):
        token = text[i]
        count += (token == one) | (token == two) | (token == three) | (token == four)  # without branches
    return count


@compiled
def _inspect_samples(
    arrays: FlatArrays, expected_masked: NDArray[np.int64], special: NDArray[np.uint16], vocabulary_size: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], int, int]:
    """Count the faults of samples, and the tokens at masked positions.

    Returns the samples with each fault [9], the first of them or −1 [9], masked positions with [MASK], and those with
    the original token.
    `special` has the ids of [CLS], [SEP], [MASK] and [PAD]; they are used only where `vocabulary_size` is not 0.
    """
    token_ids, sample_offsets, first_lengths, masked_positions, masked_token_ids, masked_offsets, labels = arrays
    faults = np.zeros(9, dtype=np.int64)
    first = np.full(9, -1, dtype=np.int64)
    as_mask, kept = 0, 0
    text = np.empty(len(expected_masked), dtype=np.uint16)
    has_fault = np.empty(9, dtype=np.bool_)
    for sample in range(len(labels)):
        start, end = sample_offsets[sample], sample_offsets[sample + 1]
        length = end - start
        last = length - 1
        separator = np.int64(first_lengths[sample]) - 1
        masked_start, masked_end = masked_offsets[sample], masked_offsets[sample + 1]
        has_fault[:] = False
        has_fault[BAD_SEGMENT] = separator < 2 or separator > length - 3
        has_fault[BAD_LABEL] = labels[sample] > 1
        has_fault[BAD_MASKED_COUNT] = masked_end - masked_start != expected_masked[length]
        for i in range(length):
            text[i] = token_ids[start + i]
        before = np.int64(-1)
        for masked in range(masked_start, masked_end):
            position = np.int64(masked_positions[masked])
            if position <= before or position > last:
                has_fault[BAD_POSITIONS] = True
                continue
            before = position
            has_fault[SPECIAL_MASKED] |= position in (0, separator, last)
            original = masked_token_ids[masked]
            as_mask += text[position] == special[2]
            kept += text[position] == original
            text[position] = original
        if vocabulary_size > 0:
            token_id = max(largest(token_ids[start:end]), largest(masked_token_ids[masked_start:masked_end]))
            has_fault[ID_OUT_OF_RANGE] = token_id >= vocabulary_size
            has_fault[NO_CLS] = text[0] != special[0]
            has_fault[NO_SEP] = text[last] != special[1]
            outside = _count_special_tokens(text[:1], 1, special) + _count_special_tokens(text[last:], 1, special)
            if 0 < separator < last:
                has_fault[NO_SEP] |= text[separator] != special[1]
                outside += _count_special_tokens(text[separator:], 1, special)
            has_fault[SPECIAL_INSIDE] = _count_special_tokens(text, length, special) > outside
        for fault in range(9):
            if has_fault[fault]:
                faults[fault] += 1
                if first[fault] < 0:
                    first[fault] = sample
    return faults, first, as_mask if vocabulary_size > 0 else 0, kept


@dataclass(frozen=True, eq=False)
class ShardStatistics:
    """Statistics of one readable shard."""

    path: Path
    attributes: Mapping[str, Any]
    damage: str  # message about a wrong content hash; empty where the content is intact
    samples: int
    tokens: int
    masked_tokens: int
    expected_masked_tokens: int  # of samples of these lengths
    random_next: int  # samples whose segment B was drawn from a random document
    lengths: NDArray[np.int64]  # [max_sequence_length + 1] samples of each length
    tokens_checked: bool  # whether token ids were checked, which needs the shard's own vocabulary
    faults: NDArray[np.int64]  # [faults] number of samples with each of FAULTS
    first_offenders: NDArray[np.int64]  # [faults] index of the first sample with it, or −1
    masked_as_mask: int  # masked positions with [MASK]; 0 without the vocabulary
    masked_kept: int  # masked positions with the original token
    hashes: NDArray[np.uint64]  # [samples]
    repeats_in_a_row: int  # samples equal to the preceding one
    # Expectation in random order: Σ m·(m − 1) / samples over the distinct samples, which occur m times each.
    expected_repeats_in_a_row: float


@dataclass(frozen=True, eq=False)
class StoreStatistics:
    """Statistics of all shards of a store."""

    shards: tuple[ShardStatistics, ...]
    unreadable: tuple[str, ...]  # an error message for each shard that could not be read

    def total(self, count: str) -> int:
        """Sum of a field of ShardStatistics over the shards."""
        return sum(getattr(shard, count) for shard in self.shards)

    @property
    def attributes(self) -> dict[Path, Mapping[str, Any]]:
        """Attributes of every readable shard."""
        return {shard.path: shard.attributes for shard in self.shards}

    @property
    def samples(self) -> int:
        return self.total("samples")

    @property
    def text_tokens(self) -> int:
        """Number of tokens other than [CLS] and [SEP]."""
        return self.total("tokens") - SPECIAL_TOKENS_PER_SAMPLE * self.samples

    @property
    def tokens_checked(self) -> bool:
        return all(shard.tokens_checked for shard in self.shards)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of samples of each length [longest + 1]."""
        total = np.zeros(max(len(shard.lengths) for shard in self.shards), dtype=np.int64)
        for shard in self.shards:
            total[: len(shard.lengths)] += shard.lengths
        return total


def compute_store_statistics(
    folder: Path, vocabulary: Vocabulary | None, processors: int, on_read: Callable[[int], None] | None = None
) -> StoreStatistics:
    """Read every shard of a folder, `processors` at a time; unreadable shards are reported in the result.

    `on_read` is called with the bytes of each shard. Memory: 8 bytes a sample (1.25 GB for 157 million), and for each
    thread the samples and hashes of one shard. Raises UsageError for a folder without shards.
    """
    paths = shard_paths(folder)
    with ThreadPoolExecutor(processors) as pool:
        try:
            results: list[ShardStatistics | str] = []
            in_progress = pool.map(lambda path: _statistics_or_error(path, vocabulary), paths)
            for path, result in zip(paths, in_progress, strict=True):
                results.append(result)
                if on_read is not None:
                    on_read(_size(path))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return StoreStatistics(
        tuple(result for result in results if isinstance(result, ShardStatistics)),
        tuple(result for result in results if isinstance(result, str)),
    )


def total_shard_bytes(folders: Sequence[Path]) -> int:
    """Total size of the shards in these folders."""
    return sum(_size(path) for folder in folders for path in shard_paths(folder))


def _size(path: Path) -> int:
    """Size of a file, or 0 where it cannot be read: sizes are for progress only."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _statistics_or_error(path: Path, vocabulary: Vocabulary | None) -> ShardStatistics | str:
    try:
        return compute_shard_statistics(path, vocabulary)
    except (WorkError, UsageError) as error:
        return str(error)


def compute_shard_statistics(path: Path, vocabulary: Vocabulary | None) -> ShardStatistics:
    """Read one shard and compute its statistics. Raises WorkError or UsageError where it cannot be read."""
    shard = Shard(path)
    expected_masked = expected_masked_counts(shard.origin)
    damage = ""
    samples = shard.samples
    try:
        shard.verify(samples)
    except WorkError as error:
        damage = str(error)
    own = vocabulary if vocabulary and vocabulary.sha256 == shard.attributes["vocabulary_sha256"] else None
    # Without the shard's own vocabulary token ids are not checked.
    special = np.array([own.ids[word] if own else 0 for word in ALL_SPECIAL_TOKENS], dtype=np.uint16)
    faults, first_offenders, as_mask, kept = _inspect_samples(
        samples.arrays, expected_masked, special, len(own.tokens) if own else 0
    )
    hashes = hash_samples(samples)
    _, occurrences = np.unique(hashes, return_counts=True)
    lengths = np.bincount(shard.lengths, minlength=len(expected_masked)).astype(np.int64)
    return ShardStatistics(
        path=path,
        attributes=shard.attributes,
        damage=damage,
        samples=len(shard),
        tokens=shard.attributes["tokens"],
        masked_tokens=shard.attributes["masked_tokens"],
        expected_masked_tokens=int(lengths @ expected_masked),
        random_next=int(np.count_nonzero(samples.next_sentence_labels)),
        lengths=lengths,
        tokens_checked=own is not None,
        faults=faults,
        first_offenders=first_offenders,
        masked_as_mask=as_mask,
        masked_kept=kept,
        hashes=hashes,
        repeats_in_a_row=int(np.count_nonzero(hashes[1:] == hashes[:-1])),
        expected_repeats_in_a_row=float((occurrences * (occurrences - 1)).sum()) / len(hashes),
    )
