"""Reading of TFRecord files of tf.train.Example in the reference's layout, without TensorFlow: rows of fixed width.

Features: input_ids, input_mask and segment_ids of int64 [width], masked_lm_positions and masked_lm_ids of int64
[masked width], masked_lm_weights of float [masked width], 1.0 where a token is masked and 0.0 in the padding, and
next_sentence_labels of int64 [1]. Zeros fill the rows.

A record of a TFRecord file is the length of its data (u64, little-endian), the masked CRC-32C of these eight bytes
(u32), the data, and the masked CRC-32C of the data. Source: the comments of TensorFlow's record_writer.h. The data
is a tf.train.Example, TensorFlow's protocol buffer of named lists of numbers.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from benchmarks.bert.formats.rows import (
    LABELS,
    MASKED,
    WIDE,
    AllowedTokens,
    Contents,
    Place,
    block_rows,
    check_widths,
    checked_samples,
    joined,
    leading,
    unpadded,
    unusable,
)
from benchmarks.bert.samples import Samples
from benchmarks.bert.tensorflow_files import masked_crc, message_classes

# The protocol buffer class of the records. To build one, set example.features.feature[name].int64_list.value.
# Source: TensorFlow's example.proto and feature.proto.
Example = message_classes("""
name: "example.proto" package: "tensorflow" syntax: "proto3"
message_type { name: "BytesList" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_BYTES } }
message_type { name: "FloatList" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_FLOAT } }
message_type { name: "Int64List" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_INT64 } }
message_type {
  name: "Feature"
  oneof_decl { name: "kind" }
  field { name: "bytes_list" number: 1 type: TYPE_MESSAGE type_name: ".tensorflow.BytesList" oneof_index: 0 }
  field { name: "float_list" number: 2 type: TYPE_MESSAGE type_name: ".tensorflow.FloatList" oneof_index: 0 }
  field { name: "int64_list" number: 3 type: TYPE_MESSAGE type_name: ".tensorflow.Int64List" oneof_index: 0 }
}
message_type {
  name: "Features"
  nested_type {
    name: "FeatureEntry"
    options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_STRING }
    field { name: "value" number: 2 type: TYPE_MESSAGE type_name: ".tensorflow.Feature" }
  }
  field { name: "feature" number: 1 label: LABEL_REPEATED
          type: TYPE_MESSAGE type_name: ".tensorflow.Features.FeatureEntry" }
}
message_type {
  name: "Example"
  field { name: "features" number: 1 type: TYPE_MESSAGE type_name: ".tensorflow.Features" }
}
""")["Example"]


LENGTH = struct.Struct("<Q")
CHECKSUM = struct.Struct("<I")
HEAD = LENGTH.size + CHECKSUM.size
GZIP = b"\x1f\x8b"
COMPRESSED = "it is compressed with gzip, so decompress it first (gunzip)"


def begins_as_tfrecord(path: Path) -> bool:
    """Whether the checksum of the first record's length is right. Raises WorkError if the file cannot be read."""
    head = _first_bytes(path, HEAD)
    return len(head) == HEAD and has_checksum(head[: LENGTH.size], head[LENGTH.size :])


def begins_as_gzip(path: Path) -> bool:
    """Whether the file is compressed with gzip. Raises WorkError if the file cannot be read."""
    return _first_bytes(path, len(GZIP)) == GZIP


def _first_bytes(path: Path, count: int) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(count)
    except OSError as error:
        raise unusable(path, f"it cannot be read ({error.strerror})") from error


LARGEST_RECORD = 1 << 24  # bytes; the record of a sample of 65,535 tokens has 2 MB


def read_records(path: Path) -> Iterator[bytes]:
    """Yield the data of every record of a file. Raises WorkError, naming its first byte, for a corrupt record."""
    try:
        with path.open("rb") as file:
            size, offset = path.stat().st_size, 0
            while offset < size:
                head = file.read(HEAD)
                if len(head) < HEAD:
                    raise unusable(path, f"it has {size} bytes, and ends within the record that begins at {offset}")
                if not has_checksum(head[: LENGTH.size], head[LENGTH.size :]):
                    if offset == 0 and begins_as_gzip(path):
                        raise unusable(path, COMPRESSED)
                    raise unusable(
                        path, f"no record begins at byte {offset}: the length there does not match its checksum"
                    )
                (length,) = LENGTH.unpack_from(head)
                # Compared with the file's size before reading, so that a wrong length allocates no memory.
                end = offset + HEAD + length + CHECKSUM.size
                if end > size:
                    raise unusable(path, f"it has {size} bytes, and the record that begins at {offset} ends at {end}")
                if length > LARGEST_RECORD:
                    raise unusable(
                        path, f"the record that begins at {offset} has {length:,} bytes; allowed are {LARGEST_RECORD:,}"
                    )
                data = file.read(length)
                if not has_checksum(data, file.read(CHECKSUM.size)):
                    raise unusable(path, f"the record that begins at byte {offset} does not match its checksum")
                yield data
                offset = end
    except OSError as error:
        raise unusable(path, f"it cannot be read ({error.strerror})") from error


def has_checksum(data: bytes, checksum: bytes) -> bool:
    """Whether `checksum`, four bytes as stored in a file, is the masked CRC-32C of `data`."""
    return checksum == CHECKSUM.pack(masked_crc(data))


WEIGHTS = "masked_lm_weights"
# The features and the list type of each.
LISTS = {**dict.fromkeys((*WIDE, *MASKED, LABELS), "int64_list"), WEIGHTS: "float_list"}
ROWS_HELD = 1024  # rows in memory before they are converted; parsed values take eight bytes each


def read(path: Path, allowed: AllowedTokens) -> Contents:
    """Read the samples of a TFRecord file. Raises WorkError, naming the fault, if it violates the format."""
    blocks: list[Samples] = []
    rows: list[dict[str, NDArray[Any]]] = []
    widths: dict[str, int] = {}
    first = step = 0
    for number, data in enumerate(read_records(path)):
        row = _row(data, Place(path, number))
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
    """Return the lists of one serialized Example by feature: int64 [n] or float32 [n]."""
    try:
        features = Example.FromString(data).features.feature
    except DecodeError as error:
        raise place.refuse(0, f"it is not a tf.train.Example ({error})") from error
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
    """Return the number of values of each list of the first row, which all rows must have."""
    widths = {key: len(values) for key, values in row.items()}
    _, masked_width = check_widths(path, widths)
    for key, expected in ((WEIGHTS, masked_width), (LABELS, 1)):
        if widths[key] != expected:
            raise unusable(path, f"{key} of the first row has {widths[key]} values, not {expected}")
    return widths


def _samples(rows: list[dict[str, NDArray[Any]]], allowed: AllowedTokens, place: Place) -> Samples:
    """Convert a block of rows to validated samples."""
    together = {key: np.stack([row[key] for row in rows]) for key in LISTS}
    real = together[WEIGHTS] == 1
    counts = leading(real)
    wrong = (together[WEIGHTS] != (np.arange(real.shape[1]) < counts[:, None])).any(axis=1)
    place.refuse_any(wrong, f"{WEIGHTS} are not 1.0 for masked tokens and then 0.0")
    together[LABELS] = together[LABELS][:, 0]
    return checked_samples(unpadded(together, place, counts), allowed, place)
