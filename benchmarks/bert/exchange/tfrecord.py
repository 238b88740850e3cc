"""TFRecord files of tf.train.Example, as the reference writes them: rows of fixed width, padded with zeros.

Features: input_ids, input_mask and segment_ids of int64 [width], masked_lm_positions and masked_lm_ids of int64
[masked width], masked_lm_weights of floats alike, 1.0 where a token is masked and 0.0 in the padding, and
next_sentence_labels of int64 [1].
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.bert.exchange.contents import Contents
from benchmarks.bert.exchange.example import features_of
from benchmarks.bert.exchange.padded import MASKED, WIDE, Rectangles, block_rows, check_widths, leading, unpadded
from benchmarks.bert.exchange.records import read_records
from benchmarks.bert.exchange.rows import AllowedTokens, Place, checked_samples, joined, unusable
from benchmarks.bert.samples import Samples

LABELS, WEIGHTS = "next_sentence_labels", "masked_lm_weights"
LISTS = {**dict.fromkeys((*WIDE, *MASKED, LABELS), "int64_list"), WEIGHTS: "float_list"}
"""The features, and the kind of list that each is."""
ROWS_HELD = 1024
"""At most, in eight bytes a number."""


def read(path: Path, allowed: AllowedTokens) -> Contents:
    """The samples of a file. Raises WorkError that names what is wrong with it."""
    blocks: list[Samples] = []
    rows: list[dict[str, NDArray[Any]]] = []
    widths: dict[str, int] = {}
    first = step = 0
    for number, record in enumerate(read_records(path)):
        row = _row(record.data, Place(path, number))
        if not widths:
            widths = _widths(path, row)
            step = min(ROWS_HELD, block_rows(widths[WIDE[0]], widths[MASKED[0]]))
        for key, values in row.items():
            if len(values) != widths[key]:
                found = f"{key} has {len(values)} values, and in the first row {widths[key]}"
                raise Place(path, number).refuse(0, found)
        rows.append(row)
        if len(rows) == step:
            blocks.append(_samples(rows, allowed, Place(path, first)))
            first, rows = number + 1, []
    if rows:
        blocks.append(_samples(rows, allowed, Place(path, first)))
    if not blocks:
        raise unusable(path, "there is no record in it")
    return Contents(joined(blocks), widths[WIDE[0]], widths[MASKED[0]])


def _row(data: bytes, place: Place) -> dict[str, NDArray[Any]]:
    """The lists of one Example: int64 [n] and float32 [n]."""
    try:
        features = features_of(data)
    except ValueError as error:
        raise place.refuse(0, str(error)) from error
    row = {}
    for key, kind in LISTS.items():
        if key not in features:
            raise place.refuse(0, f"it has no feature {key}")
        found = features[key].WhichOneof("kind")
        if found != kind:
            raise place.refuse(0, f"{key} is {found or 'empty'}, not {kind}")
        row[key] = np.array(getattr(features[key], kind).value, np.int64 if kind == "int64_list" else np.float32)
    return row


def _widths(path: Path, row: dict[str, NDArray[Any]]) -> dict[str, int]:
    """How many values each list has, as the first row has them."""
    widths = {key: len(values) for key, values in row.items()}
    _, masked_width = check_widths(path, widths)
    for key, expected in ((WEIGHTS, masked_width), (LABELS, 1)):
        if widths[key] != expected:
            raise unusable(path, f"{key} of the first row has {widths[key]} values, not {expected}")
    return widths


def _samples(rows: list[dict[str, NDArray[Any]]], allowed: AllowedTokens, place: Place) -> Samples:
    together = {key: np.stack([row[key] for row in rows]) for key in LISTS}
    real = together[WEIGHTS] == 1
    counts = leading(real)
    wrong = (together[WEIGHTS] != (np.arange(real.shape[1]) < counts[:, None])).any(axis=1)
    place.refuse_any(wrong, f"{WEIGHTS} are not 1.0 for masked tokens and then 0.0")
    arrays = {key: together[key] for key in (*WIDE, *MASKED)}
    block = Rectangles(**arrays, next_sentence_labels=together[LABELS][:, 0])
    return checked_samples(unpadded(block, place, counts), allowed, place)
