"""Rows of fixed width with padding, as the reference keeps them, to and from flat samples."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.bert.exchange.rows import LONGEST, ROWS_A_BLOCK, SHORTEST, Place, Rows, unusable
from benchmarks.bert.samples import Samples
from benchmarks.bert.sizes import SEQUENCE_LENGTH


@dataclass(frozen=True, eq=False)
class Rectangles:
    """N rows of any integer types, unchecked but for their shapes; what is left of a row is padded with zeros."""

    input_ids: NDArray[Any]
    """[N, width]"""
    input_mask: NDArray[Any]
    """[N, width] 1 where there is a token."""
    segment_ids: NDArray[Any]
    """[N, width] 0 in [CLS] A [SEP] and in padding, 1 in B [SEP]."""
    masked_lm_positions: NDArray[Any]
    """[N, masked width]"""
    masked_lm_ids: NDArray[Any]
    """[N, masked width]"""
    next_sentence_labels: NDArray[Any]
    """[N]"""


WIDE = ("input_ids", "input_mask", "segment_ids")
"""The keys whose rows are `width` wide."""
MASKED = ("masked_lm_positions", "masked_lm_ids")
"""Those whose rows are `masked width` wide."""
NUMBERS_A_BLOCK = SEQUENCE_LENGTH * ROWS_A_BLOCK
"""Of one key that are held at a time: rows of the usual width."""

FIXED_DTYPES: Mapping[str, np.dtype[Any]] = {
    "input_ids": np.dtype("<i2"),
    "input_mask": np.dtype("i1"),
    "segment_ids": np.dtype("i1"),
    "masked_lm_positions": np.dtype("<i2"),
    "masked_lm_ids": np.dtype("<i2"),
    "next_sentence_labels": np.dtype("i1"),
}
"""The keys of `Rectangles` and the types in which others keep them."""


def check_widths(path: Path, widths: Mapping[str, int]) -> tuple[int, int]:
    """The width and the masked width of a file; raises WorkError if keys disagree or it is none that can be."""
    for keys, least in ((WIDE, SHORTEST), (MASKED, 1)):
        width = widths[keys[0]]
        for key in keys:
            if widths[key] != width:
                raise unusable(path, f"a row of {key} has {widths[key]} columns, and one of {keys[0]} has {width}")
        if not least <= width <= LONGEST:
            raise unusable(path, f"a row of {keys[0]} has {width} columns, and {least} to {LONGEST} are possible")
    return widths[WIDE[0]], widths[MASKED[0]]


def block_rows(width: int, masked_width: int) -> int:
    """How many rows of these widths to hold at a time."""
    return max(1, min(ROWS_A_BLOCK, NUMBERS_A_BLOCK // max(width, masked_width)))


def unpadded(padded: Rectangles, place: Place, masked_counts: NDArray[np.int64] | None = None) -> Rows:
    """The rows without their padding; raises WorkError for a mask or padding that is none.

    masked_counts [N] says how many positions of each row are real; where it is None the first position that is 0
    ends them, since position 0 is [CLS], which is never masked.
    """
    lengths = np.count_nonzero(padded.input_mask, axis=1)
    kept = np.arange(padded.input_mask.shape[1]) < lengths[:, None]
    place.refuse_any((padded.input_mask != kept).any(axis=1), "input_mask is not ones and then zeros")
    if masked_counts is None:
        masked_counts = leading(padded.masked_lm_positions != 0)
    masked = np.arange(padded.masked_lm_positions.shape[1]) < masked_counts[:, None]
    for key, real in (
        ("input_ids", kept),
        ("segment_ids", kept),
        ("masked_lm_positions", masked),
        ("masked_lm_ids", masked),
    ):
        wrong = ((getattr(padded, key) != 0) & ~real).any(axis=1)
        place.refuse_any(wrong, f"the padding of {key} is not zero")
    return Rows(
        input_ids=padded.input_ids[kept],
        segment_ids=padded.segment_ids[kept],
        lengths=lengths,
        masked_lm_positions=padded.masked_lm_positions[masked],
        masked_lm_ids=padded.masked_lm_ids[masked],
        masked_counts=masked_counts,
        next_sentence_labels=padded.next_sentence_labels,
    )


def leading(real: NDArray[np.bool_]) -> NDArray[np.int64]:
    """[N]: in how many columns each row of real [N, width] begins with True; width is at least 1."""
    counts: NDArray[np.int64] = np.where(real.all(axis=1), real.shape[1], real.argmin(axis=1)).astype(np.int64)
    return counts


def padded(samples: Samples, width: int, masked_width: int) -> Rectangles:
    """The samples in rows of these widths, in the types of FIXED_DTYPES, which have to hold their tokens."""
    lengths = np.diff(samples.sample_offsets)
    columns = np.arange(width)
    kept = columns < lengths[:, None]
    masked = np.arange(masked_width) < np.diff(samples.masked_offsets)[:, None]

    def spread(key: str, real: NDArray[np.bool_], values: NDArray[Any]) -> NDArray[Any]:
        rectangle = np.zeros(real.shape, FIXED_DTYPES[key])
        rectangle[real] = values
        return rectangle

    return Rectangles(
        input_ids=spread("input_ids", kept, samples.token_ids),
        input_mask=kept.astype(FIXED_DTYPES["input_mask"]),
        segment_ids=(kept & (columns >= samples.first_segment_lengths[:, None])).astype(FIXED_DTYPES["segment_ids"]),
        masked_lm_positions=spread("masked_lm_positions", masked, samples.masked_positions),
        masked_lm_ids=spread("masked_lm_ids", masked, samples.masked_token_ids),
        next_sentence_labels=samples.next_sentence_labels.astype(FIXED_DTYPES["next_sentence_labels"]),
    )
