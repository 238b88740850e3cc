"""Rows of a foreign file without their padding, and every check that makes samples of them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.bert.preparation.settings import SPECIAL_TOKENS
from benchmarks.bert.preparation.tokenization import CLASSIFICATION, SEPARATOR, Vocabulary
from benchmarks.bert.samples import Samples
from benchmarks.errors import WorkError

SHORTEST = SPECIAL_TOKENS + 2
"""Tokens of [CLS] A [SEP] B [SEP] where A and B are one token each."""
LONGEST = 65_535
"""Tokens that a sample may have, so that a position fits into two bytes."""
ROWS_A_BLOCK = 8192
"""Rows that are read or written at a time, so that memory is bounded by the samples themselves."""
ADVICE = "see how the file was made, or get it again"


def unusable(path: Path, found: str) -> WorkError:
    """The sentence for a foreign file that cannot be imported."""
    return WorkError(f"{path}: the file cannot be imported: {found}; {ADVICE}")


@dataclass(frozen=True)
class AllowedTokens:
    """What of a vocabulary decides whether a token may stand where it stands."""

    vocabulary: Path
    sha256: str
    size: int
    classification: int
    """The id of [CLS]."""
    separator: int
    """The id of [SEP]."""

    @classmethod
    def of(cls, path: Path) -> "AllowedTokens":
        """Of a vocab.txt; raises UsageError as Vocabulary.read does."""
        words = Vocabulary.read(path)
        return cls(path, words.sha256, len(words.words), words.ids[CLASSIFICATION], words.ids[SEPARATOR])


@dataclass(frozen=True)
class Place:
    """Where rows come from, for sentences about them."""

    path: Path
    first_row: int = 0
    """Number in the file, counted from 0, of the first of the rows."""

    def refuse(self, row: int, found: str) -> WorkError:
        """The sentence about the row `row` of these rows."""
        return unusable(self.path, f"row {self.first_row + int(row)}, counted from 0: {found}")

    def refuse_any(self, wrong: NDArray[np.bool_], found: str) -> None:
        """Raise it for the first row that is wrong, if one is; wrong is [N]."""
        if wrong.any():
            raise self.refuse(int(wrong.argmax()), found)


@dataclass(frozen=True, eq=False)
class Rows:
    """N rows, unpadded, one after another in flat arrays of any integer type, unchecked but for their shapes."""

    input_ids: NDArray[Any]
    """[tokens]"""
    segment_ids: NDArray[Any]
    """[tokens]"""
    lengths: NDArray[np.int64]
    """[N] tokens of each row."""
    masked_lm_positions: NDArray[Any]
    """[masked tokens]"""
    masked_lm_ids: NDArray[Any]
    """[masked tokens]"""
    masked_counts: NDArray[np.int64]
    """[N] masked tokens of each row."""
    next_sentence_labels: NDArray[Any]
    """[N]"""


def checked_samples(rows: Rows, allowed: AllowedTokens, place: Place) -> Samples:
    """The samples that the rows are; raises WorkError that names the first row where one is none."""
    _check_lengths(rows, place)
    starts, masked_starts = _offsets(rows.lengths), _offsets(rows.masked_counts)
    _check_token_ids("input_ids", rows.input_ids, starts, allowed, place)
    _check_token_ids("masked_lm_ids", rows.masked_lm_ids, masked_starts, allowed, place)
    first_segments = _first_segment_lengths(rows, starts, place)
    _check_special_tokens(rows.input_ids, starts, first_segments, allowed, place)
    _check_positions(rows, masked_starts, place)
    labels = rows.next_sentence_labels
    for row in np.flatnonzero((labels != 0) & (labels != 1))[:1]:
        raise place.refuse(row, f"next_sentence_labels is {labels[row]}, not 0 or 1")
    return Samples(
        token_ids=rows.input_ids.astype(np.uint16),
        sample_offsets=starts,
        first_segment_lengths=first_segments.astype(np.uint16),
        masked_positions=rows.masked_lm_positions.astype(np.uint16),
        masked_token_ids=rows.masked_lm_ids.astype(np.uint16),
        masked_offsets=masked_starts,
        next_sentence_labels=labels.astype(np.uint8),
    )


def joined(blocks: list[Samples]) -> Samples:
    """The samples of several blocks, one after another; at least one block."""

    def together(name: str) -> NDArray[Any]:
        return np.concatenate([getattr(block, name) for block in blocks])

    return Samples(
        token_ids=together("token_ids"),
        sample_offsets=_offsets(np.concatenate([np.diff(block.sample_offsets) for block in blocks])),
        first_segment_lengths=together("first_segment_lengths"),
        masked_positions=together("masked_positions"),
        masked_token_ids=together("masked_token_ids"),
        masked_offsets=_offsets(np.concatenate([np.diff(block.masked_offsets) for block in blocks])),
        next_sentence_labels=together("next_sentence_labels"),
    )


def sliced(samples: Samples, start: int, stop: int) -> Samples:
    """Samples start..stop−1 of them; views, but for the offsets."""
    tokens = slice(samples.sample_offsets[start], samples.sample_offsets[stop])
    masked = slice(samples.masked_offsets[start], samples.masked_offsets[stop])
    return Samples(
        token_ids=samples.token_ids[tokens],
        sample_offsets=samples.sample_offsets[start : stop + 1] - tokens.start,
        first_segment_lengths=samples.first_segment_lengths[start:stop],
        masked_positions=samples.masked_positions[masked],
        masked_token_ids=samples.masked_token_ids[masked],
        masked_offsets=samples.masked_offsets[start : stop + 1] - masked.start,
        next_sentence_labels=samples.next_sentence_labels[start:stop],
    )


def segment_ids(samples: Samples) -> NDArray[np.int8]:
    """[tokens]: 0 in [CLS] A [SEP], 1 in B [SEP]."""
    lengths = np.diff(samples.sample_offsets)
    places = np.arange(len(samples.token_ids)) - np.repeat(samples.sample_offsets[:-1], lengths)
    return (places >= np.repeat(samples.first_segment_lengths, lengths)).astype(np.int8)


def _offsets(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """[N + 1], from 0."""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


def _check_lengths(rows: Rows, place: Place) -> None:
    for row in np.flatnonzero((rows.lengths < SHORTEST) | (rows.lengths > LONGEST))[:1]:
        found = f"it has {rows.lengths[row]} tokens, and [CLS] A [SEP] B [SEP] has {SHORTEST} to {LONGEST}"
        raise place.refuse(row, found)
    place.refuse_any(rows.masked_counts < 1, "no token of it is masked")


def _check_token_ids(
    key: str, token_ids: NDArray[Any], starts: NDArray[np.int64], allowed: AllowedTokens, place: Place
) -> None:
    if token_ids.min() >= 0 and token_ids.max() < allowed.size:
        return
    index = int(((token_ids < 0) | (token_ids >= allowed.size)).argmax())
    row = np.searchsorted(starts, index, side="right") - 1
    found = f"{key} has the token {token_ids[index]}, and {allowed.vocabulary} has 0 to {allowed.size - 1}"
    raise place.refuse(int(row), found)


def _first_segment_lengths(rows: Rows, starts: NDArray[np.int64], place: Place) -> NDArray[np.int64]:
    """The number of zeros in segment_ids, which are zeros and then ones."""
    first_segments = np.add.reduceat(rows.segment_ids == 0, starts[:-1], dtype=np.int64)
    places = np.arange(len(rows.segment_ids)) - np.repeat(starts[:-1], rows.lengths)
    wrong = rows.segment_ids != (places >= np.repeat(first_segments, rows.lengths))
    if wrong.any():
        row = np.searchsorted(starts, wrong.argmax(), side="right") - 1
        raise place.refuse(int(row), "segment_ids are not zeros and then ones")
    for row in np.flatnonzero((first_segments < 3) | (first_segments > rows.lengths - 2))[:1]:
        found = f"segment_ids have {first_segments[row]} zeros and {rows.lengths[row] - first_segments[row]} ones"
        raise place.refuse(row, f"{found}, and [CLS] A [SEP] has 3 or more tokens, B [SEP] 2 or more")
    return first_segments


def _check_special_tokens(
    token_ids: NDArray[Any],
    starts: NDArray[np.int64],
    first_segments: NDArray[np.int64],
    allowed: AllowedTokens,
    place: Place,
) -> None:
    """A wrong vocabulary shows here: its [CLS] and [SEP] are hardly ever the same tokens."""
    special = (
        (starts[:-1], "first token", CLASSIFICATION, allowed.classification),
        (starts[:-1] + first_segments - 1, "last token of segment 0", SEPARATOR, allowed.separator),
        (starts[1:] - 1, "last token", SEPARATOR, allowed.separator),
    )
    for places, which, word, expected in special:
        for row in np.flatnonzero(token_ids[places] != expected)[:1]:
            found = f"its {which} is {token_ids[places[row]]}, and {word} is {expected} in {allowed.vocabulary}"
            raise place.refuse(row, f"{found}, which is perhaps not the vocabulary that the samples were made with")


def _check_positions(rows: Rows, masked_starts: NDArray[np.int64], place: Place) -> None:
    positions, lengths = rows.masked_lm_positions, np.repeat(rows.lengths, rows.masked_counts)

    def row_of(index: np.intp) -> int:
        return int(np.searchsorted(masked_starts, index, side="right")) - 1

    outside = (positions < 1) | (positions >= lengths)
    if outside.any():
        row = row_of(outside.argmax())
        found = f"masked_lm_positions has {positions[outside.argmax()]}, and {rows.lengths[row]} tokens have 1 to"
        raise place.refuse(row, f"{found} {rows.lengths[row] - 1} to mask")
    behind = positions[1:] <= positions[:-1]
    behind[masked_starts[1:-1] - 1] = False
    if behind.any():
        raise place.refuse(row_of(behind.argmax()), "masked_lm_positions do not ascend")
