"""Conversion of rows of sample files to validated samples and back, and the origin recorded for an imported file.

The rows have a fixed width with padding, as in the reference's files, or variable length.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.bert.preparation.settings import SPECIAL_TOKENS_PER_SAMPLE, GenerationSettings
from benchmarks.bert.preparation.tokenization import CLASSIFICATION, SEPARATOR, Vocabulary
from benchmarks.bert.samples import SAMPLE_DTYPES, Samples, offsets_of
from benchmarks.bert.shard import OLDER_VERSION, Origin, content_sha256, find_invalid_attribute, stored_arrays
from benchmarks.bert.sizes import SEQUENCE_LENGTH
from podium.core.errors import UsageError, WorkError
from podium.core.files import sha256_of

MIN_LENGTH = SPECIAL_TOKENS_PER_SAMPLE + 2  # tokens of [CLS] A [SEP] B [SEP] where A and B are one token each
MAX_LENGTH = 65_535  # tokens of a sample, so that a position fits into two bytes
ROWS_PER_BLOCK = 8192  # rows that are read or written at a time, which bounds the memory for padded rows
ADVICE = "see how the file was made, or get it again"


def import_error(path: Path, found: str) -> WorkError:
    """Return the error for a sample file that cannot be imported."""
    return WorkError(f"{path}: the file cannot be imported: {found}; {ADVICE}")


@dataclass(frozen=True)
class VocabularyFacts:
    """The facts of a vocabulary that the validation of token ids needs."""

    vocabulary: Path
    sha256: str
    size: int
    classification: int  # the id of [CLS]
    separator: int  # the id of [SEP]

    @classmethod
    def from_file(cls, path: Path) -> "VocabularyFacts":
        """Read a vocab.txt. Raises UsageError as Vocabulary.read does."""
        vocabulary = Vocabulary.read(path)
        return cls(
            path, vocabulary.sha256, len(vocabulary.tokens), vocabulary.ids[CLASSIFICATION], vocabulary.ids[SEPARATOR]
        )


@dataclass(frozen=True)
class BlockPosition:
    """Position of a block of rows in a file, for error messages."""

    path: Path
    first_row: int = 0  # index in the file, counted from 0, of the block's first row

    def row_error(self, row: int, found: str) -> WorkError:
        """Return the error about row `row` of the block."""
        return import_error(self.path, f"row {self.first_row + int(row)}, counted from 0: {found}")

    def raise_for_rows(self, wrong: NDArray[np.bool_], found: str) -> None:
        """Raise the error for the first row where wrong [N] is True, if there is one."""
        if wrong.any():
            raise self.row_error(int(wrong.argmax()), found)


@dataclass(frozen=True, eq=False)
class Rows:
    """N rows without padding, concatenated in flat arrays of any integer type. Only their shapes are checked."""

    input_ids: NDArray[Any]  # [tokens]
    segment_ids: NDArray[Any]  # [tokens]
    lengths: NDArray[np.int64]  # [N] tokens of each row
    masked_lm_positions: NDArray[Any]  # [masked tokens]
    masked_lm_ids: NDArray[Any]  # [masked tokens]
    masked_counts: NDArray[np.int64]  # [N] masked tokens of each row
    next_sentence_labels: NDArray[Any]  # [N]


def validate_rows(rows: Rows, allowed: VocabularyFacts, position: BlockPosition) -> Samples:
    """Convert rows to samples. Raises WorkError, naming the first such row, if a row is not a valid sample."""
    _check_lengths(rows, position)
    starts, masked_starts = offsets_of(rows.lengths), offsets_of(rows.masked_counts)
    _check_token_ids("input_ids", rows.input_ids, starts, allowed, position)
    _check_token_ids("masked_lm_ids", rows.masked_lm_ids, masked_starts, allowed, position)
    first_segments = _first_segment_lengths(rows, starts, position)
    _check_special_tokens(rows.input_ids, starts, first_segments, allowed, position)
    _check_positions(rows, masked_starts, position)
    labels = rows.next_sentence_labels
    for row in np.flatnonzero((labels != 0) & (labels != 1))[:1]:
        raise position.row_error(row, f"next_sentence_labels is {labels[row]}, not 0 or 1")
    return Samples(
        token_ids=rows.input_ids.astype(np.uint16),
        sample_offsets=starts,
        first_segment_lengths=first_segments.astype(np.uint16),
        masked_positions=rows.masked_lm_positions.astype(np.uint16),
        masked_token_ids=rows.masked_lm_ids.astype(np.uint16),
        masked_offsets=masked_starts,
        next_sentence_labels=labels.astype(np.uint8),
    )


def concatenate_samples(blocks: list[Samples]) -> Samples:
    """Concatenate the samples of one or more blocks."""
    arrays = {name: np.concatenate([getattr(block, name) for block in blocks]) for name in SAMPLE_DTYPES}
    for name in ("sample_offsets", "masked_offsets"):  # each block's offsets begin at 0
        arrays[name] = offsets_of(np.concatenate([np.diff(getattr(block, name)) for block in blocks]))
    return Samples(**arrays)


def max_counts(samples: Samples) -> tuple[int, int]:
    """Return the maximum number of tokens and of masked tokens of a sample."""
    return int(np.diff(samples.sample_offsets).max()), int(np.diff(samples.masked_offsets).max())


def segment_ids(samples: Samples) -> NDArray[np.int8]:
    """Return the segment ids [tokens] of all samples: 0 in [CLS] A [SEP], 1 in B [SEP]."""
    return _in_second_segment(samples.sample_offsets, samples.first_segment_lengths).astype(np.int8)


def _in_second_segment(starts: NDArray[np.int64], first_segments: NDArray[Any]) -> NDArray[np.bool_]:
    """Return whether each token [tokens] is in B [SEP]; row i begins at starts[i], starts is [N + 1]."""
    lengths = np.diff(starts)
    places = np.arange(starts[-1]) - np.repeat(starts[:-1], lengths)
    behind: NDArray[np.bool_] = places >= np.repeat(first_segments, lengths)
    return behind


def _check_lengths(rows: Rows, position: BlockPosition) -> None:
    for row in np.flatnonzero((rows.lengths < MIN_LENGTH) | (rows.lengths > MAX_LENGTH))[:1]:
        found = f"it has {rows.lengths[row]} tokens, and [CLS] A [SEP] B [SEP] has {MIN_LENGTH} to {MAX_LENGTH}"
        raise position.row_error(row, found)
    position.raise_for_rows(rows.masked_counts < 1, "no token of it is masked")


def _check_token_ids(
    key: str, token_ids: NDArray[Any], starts: NDArray[np.int64], allowed: VocabularyFacts, position: BlockPosition
) -> None:
    if token_ids.min() >= 0 and token_ids.max() < allowed.size:
        return
    index = int(((token_ids < 0) | (token_ids >= allowed.size)).argmax())
    found = f"{key} has the token {token_ids[index]}, and {allowed.vocabulary} has 0 to {allowed.size - 1}"
    raise position.row_error(_row_of(index, starts), found)


def _row_of(index: int | np.intp, starts: NDArray[np.int64]) -> int:
    """Return the row of the element with this index in flat arrays whose rows begin at starts [N + 1]."""
    return int(np.searchsorted(starts, index, side="right")) - 1


def _first_segment_lengths(rows: Rows, starts: NDArray[np.int64], position: BlockPosition) -> NDArray[np.int64]:
    """Return the length [N] of each row's first segment: the zeros of segment_ids, which are zeros and then ones."""
    first_segments = np.add.reduceat(rows.segment_ids == 0, starts[:-1], dtype=np.int64)
    wrong = rows.segment_ids != _in_second_segment(starts, first_segments)
    if wrong.any():
        raise position.row_error(_row_of(wrong.argmax(), starts), "segment_ids are not zeros and then ones")
    for row in np.flatnonzero((first_segments < 3) | (first_segments > rows.lengths - 2))[:1]:
        found = f"segment_ids have {first_segments[row]} zeros and {rows.lengths[row] - first_segments[row]} ones"
        raise position.row_error(row, f"{found}, and [CLS] A [SEP] has 3 or more tokens, B [SEP] 2 or more")
    return first_segments


def _check_special_tokens(
    token_ids: NDArray[Any],
    starts: NDArray[np.int64],
    first_segments: NDArray[np.int64],
    allowed: VocabularyFacts,
    position: BlockPosition,
) -> None:
    """Check the ids of [CLS] and [SEP]; a wrong vocabulary is detected here, as its ids for them usually differ."""
    special = (
        (starts[:-1], "first token", CLASSIFICATION, allowed.classification),
        (starts[:-1] + first_segments - 1, "last token of segment 0", SEPARATOR, allowed.separator),
        (starts[1:] - 1, "last token", SEPARATOR, allowed.separator),
    )
    for places, which, word, expected in special:
        for row in np.flatnonzero(token_ids[places] != expected)[:1]:
            found = f"its {which} is {token_ids[places[row]]}, and {word} is {expected} in {allowed.vocabulary}"
            raise position.row_error(
                row, f"{found}, which is perhaps not the vocabulary that the samples were made with"
            )


def _check_positions(rows: Rows, masked_starts: NDArray[np.int64], position: BlockPosition) -> None:
    positions, lengths = rows.masked_lm_positions, np.repeat(rows.lengths, rows.masked_counts)
    outside = (positions < 1) | (positions >= lengths)
    if outside.any():
        row = _row_of(outside.argmax(), masked_starts)
        found = f"masked_lm_positions has {positions[outside.argmax()]}, and {rows.lengths[row]} tokens have 1 to"
        raise position.row_error(row, f"{found} {rows.lengths[row] - 1} to mask")
    behind = positions[1:] <= positions[:-1]
    behind[masked_starts[1:-1] - 1] = False  # a row's last position and the next row's first are not compared
    if behind.any():
        raise position.row_error(_row_of(behind.argmax(), masked_starts), "masked_lm_positions do not ascend")


# Keys of N fixed-width rows, arrays of any integer type. Rows are padded with zeros. input_mask is 1 for tokens and 0
# for padding; segment_ids is 0 in [CLS] A [SEP] and in padding, 1 in B [SEP].
TOKEN_KEYS = ("input_ids", "input_mask", "segment_ids")  # [N, width]
MASKED_KEYS = ("masked_lm_positions", "masked_lm_ids")  # [N, masked width]
LABELS = "next_sentence_labels"  # [N]
VALUES_PER_BLOCK = SEQUENCE_LENGTH * ROWS_PER_BLOCK  # values of one key in memory at a time: a block of 512 columns

# All keys and their types in the formats of other projects.
FIXED_DTYPES: Mapping[str, np.dtype[Any]] = {
    "input_ids": np.dtype("<i2"),
    "input_mask": np.dtype("i1"),
    "segment_ids": np.dtype("i1"),
    "masked_lm_positions": np.dtype("<i2"),
    "masked_lm_ids": np.dtype("<i2"),
    LABELS: np.dtype("i1"),
}


def check_widths(path: Path, widths: Mapping[str, int]) -> tuple[int, int]:
    """Return the width and the masked width of a file. Raises WorkError if keys differ or a width is out of range."""
    for keys, least in ((TOKEN_KEYS, MIN_LENGTH), (MASKED_KEYS, 1)):
        width = widths[keys[0]]
        for key in keys:
            if widths[key] != width:
                raise import_error(path, f"a row of {key} has {widths[key]} columns, and one of {keys[0]} has {width}")
        if not least <= width <= MAX_LENGTH:
            raise import_error(path, f"a row of {keys[0]} has {width} columns, and {least} to {MAX_LENGTH} are allowed")
    return widths[TOKEN_KEYS[0]], widths[MASKED_KEYS[0]]


def block_rows(width: int, masked_width: int) -> int:
    """Return how many rows of these widths to keep in memory at a time."""
    return max(1, min(ROWS_PER_BLOCK, VALUES_PER_BLOCK // max(width, masked_width)))


def remove_padding(
    columns: Mapping[str, NDArray[Any]], position: BlockPosition, masked_counts: NDArray[np.int64] | None = None
) -> Rows:
    """Return the rows without padding. Raises WorkError for a malformed input_mask and for padding that is not zero.

    masked_counts [N] is the number of masked tokens of each row. If it is None, the first position that is 0 ends
    them, since position 0 is [CLS], which is never masked.
    """
    lengths = np.count_nonzero(columns["input_mask"], axis=1)
    kept = np.arange(columns["input_mask"].shape[1]) < lengths[:, None]
    position.raise_for_rows((columns["input_mask"] != kept).any(axis=1), "input_mask is not ones and then zeros")
    if masked_counts is None:
        masked_counts = count_leading_true(columns["masked_lm_positions"] != 0)
    masked = np.arange(columns["masked_lm_positions"].shape[1]) < masked_counts[:, None]
    for key, real in {"input_ids": kept, "segment_ids": kept, **dict.fromkeys(MASKED_KEYS, masked)}.items():
        wrong = ((columns[key] != 0) & ~real).any(axis=1)
        position.raise_for_rows(wrong, f"the padding of {key} is not zero")
    return Rows(
        input_ids=columns["input_ids"][kept],
        segment_ids=columns["segment_ids"][kept],
        lengths=lengths,
        masked_lm_positions=columns["masked_lm_positions"][masked],
        masked_lm_ids=columns["masked_lm_ids"][masked],
        masked_counts=masked_counts,
        next_sentence_labels=columns[LABELS],
    )


def count_leading_true(real: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return how many columns at the start of each row of real [N, width ≥ 1] are True, as [N]."""
    counts: NDArray[np.int64] = np.where(real.all(axis=1), real.shape[1], real.argmin(axis=1)).astype(np.int64)
    return counts


def pad_rows(samples: Samples, width: int, masked_width: int) -> dict[str, NDArray[Any]]:
    """Return the samples as zero-padded rows of these widths, in the types of FIXED_DTYPES; tokens must fit them."""
    columns = np.arange(width)
    kept = columns < np.diff(samples.sample_offsets)[:, None]
    masked = np.arange(masked_width) < np.diff(samples.masked_offsets)[:, None]
    shapes = {
        **dict.fromkeys(TOKEN_KEYS, kept.shape),
        **dict.fromkeys(MASKED_KEYS, masked.shape),
        LABELS: (len(samples),),
    }
    rows: dict[str, NDArray[Any]] = {name: np.zeros(shapes[name], dtype) for name, dtype in FIXED_DTYPES.items()}
    rows["input_ids"][kept] = samples.token_ids
    rows["input_mask"][kept] = 1
    rows["segment_ids"][kept & (columns >= samples.first_segment_lengths[:, None])] = 1
    rows["masked_lm_positions"][masked] = samples.masked_positions
    rows["masked_lm_ids"][masked] = samples.masked_token_ids
    rows[LABELS][:] = samples.next_sentence_labels
    return rows


@dataclass(frozen=True, eq=False)
class ImportedFile:
    """The validated samples of an imported file and its metadata."""

    samples: Samples
    # The width of the file's rows, in tokens; for rows without padding the maximum over its samples.
    max_sequence_length: int
    max_predictions: int
    # The recorded attributes of the shard that the file was exported from, unchecked; empty if there are none.
    exported_attributes: Mapping[str, Any] = field(default_factory=dict)
    is_padded: bool = True


def determine_origin(
    imported: ImportedFile,
    path: Path,
    format_name: str,
    allowed: VocabularyFacts,
    settings: GenerationSettings | None = None,
) -> Origin:
    """Return the origin of the exported shard if these are still its samples, else an origin that names the file.

    `settings` are those that the samples were generated with, as stated by the user. Files without padding do not
    contain them; MLPerf's are assumed. Raises UsageError if the file contradicts `settings`, or was exported from a
    shard of another vocabulary than `allowed`.
    """
    origin = _exported_origin(imported)
    if origin is None:
        lengths = imported.max_sequence_length, imported.max_predictions
        if not imported.is_padded:
            stated = settings or GenerationSettings()
            lengths = max(lengths[0], stated.max_sequence_length), max(lengths[1], stated.max_predictions)
        origin = Origin(
            source=path.name,
            source_sha256=sha256_of(path),
            vocabulary_sha256=allowed.sha256,
            max_sequence_length=lengths[0],
            max_predictions=lengths[1],
            made_by=format_name,
        )
    if origin.vocabulary_sha256 != allowed.sha256:
        raise UsageError(
            f"{path}: was exported from samples that were generated with another vocabulary than {allowed.vocabulary}; "
            f"give the one with the SHA-256 {origin.vocabulary_sha256}"
        )
    found = origin.max_sequence_length, origin.max_predictions
    if settings is not None and found != (settings.max_sequence_length, settings.max_predictions):
        raise UsageError(
            f"{path}: has samples of up to {found[0]} tokens, {found[1]} of them masked, so it was not generated with "
            f"--max-sequence-length {settings.max_sequence_length} and --max-predictions {settings.max_predictions}"
        )
    return origin


def _exported_origin(imported: ImportedFile) -> Origin | None:
    """Return the recorded origin, or None unless all attributes of a shard are recorded and match these samples."""
    attributes, samples = imported.exported_attributes, imported.samples
    if find_invalid_attribute(attributes) and find_invalid_attribute(attributes, OLDER_VERSION):
        return None
    longest, most = max_counts(samples)
    if longest > attributes["max_sequence_length"] or most > attributes["max_predictions"]:
        return None
    # Another program may have changed the samples and kept the attributes.
    if content_sha256(stored_arrays(samples)) != attributes["content_sha256"]:
        return None
    try:
        return Origin.of_attributes(attributes)
    except UsageError:
        return None
