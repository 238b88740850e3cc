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
    MASKED_KEYS,
    TOKEN_KEYS,
    BlockPosition,
    ImportedFile,
    VocabularyFacts,
    block_rows,
    check_widths,
    concatenate_samples,
    count_leading_true,
    import_error,
    remove_padding,
    validate_rows,
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
HEADER_BYTES = LENGTH.size + CHECKSUM.size
GZIP = b"\x1f\x8b"
GZIP_FOUND = "it is compressed with gzip, so decompress it first (gunzip)"


def is_tfrecord(path: Path) -> bool:
    """Whether the checksum of the first record's length is right. Raises WorkError if the file cannot be read."""
    head = _read_first_bytes(path, HEADER_BYTES)
    return len(head) == HEADER_BYTES and has_checksum(head[: LENGTH.size], head[LENGTH.size :])


def is_gzip(path: Path) -> bool:
    """Whether the file is compressed with gzip. Raises WorkError if the file cannot be read."""
    return _read_first_bytes(path, len(GZIP)) == GZIP


def _read_first_bytes(path: Path, count: int) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(count)
    except OSError as error:
        raise import_error(path, f"it cannot be read ({error.strerror})") from error


MAX_RECORD_BYTES = 1 << 24  # bytes; the record of a sample of 65,535 tokens has 2 MB


def read_records(path: Path) -> Iterator[bytes]:
    """Yield the data of every record of a file. Raises WorkError, naming its first byte, for a corrupt record."""
    try:
        with path.open("rb") as file:
            size, offset = path.stat().st_size, 0
            while offset < size:
                head = file.read(HEADER_BYTES)
                if len(head) < HEADER_BYTES:
                    raise import_error(path, f"it has {size} bytes, and ends within the record that begins at {offset}")
                if not has_checksum(head[: LENGTH.size], head[LENGTH.size :]):
                    if offset == 0 and is_gzip(path):
                        raise import_error(path, GZIP_FOUND)
                    raise import_error(
                        path, f"no record begins at byte {offset}: the length there does not match its checksum"
                    )
                (length,) = LENGTH.unpack_from(head)
                # Compared with the file's size before reading, so that a wrong length allocates no memory.
                end = offset + HEADER_BYTES + length + CHECKSUM.size
                if end > size:
                    raise import_error(
                        path, f"it has {size} bytes, and the record that begins at {offset} ends at {end}"
                    )
                if length > MAX_RECORD_BYTES:
                    raise import_error(
                        path,
                        f"the record that begins at {offset} has {length:,} bytes; allowed are {MAX_RECORD_BYTES:,}",
                    )
                data = file.read(length)
                if not has_checksum(data, file.read(CHECKSUM.size)):
                    raise import_error(path, f"the record that begins at byte {offset} does not match its checksum")
                yield data
                offset = end
    except OSError as error:
        raise import_error(path, f"it cannot be read ({error.strerror})") from error


def has_checksum(data: bytes, checksum: bytes) -> bool:
    """Whether `checksum`, four bytes as stored in a file, is the masked CRC-32C of `data`."""
    return checksum == CHECKSUM.pack(masked_crc(data))


WEIGHTS_KEY = "masked_lm_weights"
# The features and the list type of each.
FEATURE_LISTS = {**dict.fromkeys((*TOKEN_KEYS, *MASKED_KEYS, LABELS), "int64_list"), WEIGHTS_KEY: "float_list"}
MAX_ROWS_IN_MEMORY = 1024  # rows in memory before they are converted; parsed values take eight bytes each


def read(path: Path, allowed: VocabularyFacts) -> ImportedFile:
    """Read the samples of a TFRecord file. Raises WorkError, naming the fault, if it violates the format."""
    blocks: list[Samples] = []
    rows: list[dict[str, NDArray[Any]]] = []
    widths: dict[str, int] = {}
    first = step = 0
    for number, data in enumerate(read_records(path)):
        row = _parse_example(data, BlockPosition(path, number))
        if not widths:
            widths = _first_row_widths(path, row)
            step = min(MAX_ROWS_IN_MEMORY, block_rows(widths[TOKEN_KEYS[0]], widths[MASKED_KEYS[0]]))
        for key, values in row.items():
            if len(values) != widths[key]:
                found = f"{key} has {len(values)} values, and in the first row {widths[key]}"
                raise BlockPosition(path, number).row_error(0, found)
        rows.append(row)
        if len(rows) == step:
            blocks.append(_convert_block(rows, allowed, BlockPosition(path, first)))
            first, rows = number + 1, []
    if rows:
        blocks.append(_convert_block(rows, allowed, BlockPosition(path, first)))
    if not blocks:
        raise import_error(path, "there is no record in it")
    return ImportedFile(concatenate_samples(blocks), widths[TOKEN_KEYS[0]], widths[MASKED_KEYS[0]])


def _parse_example(data: bytes, position: BlockPosition) -> dict[str, NDArray[Any]]:
    """Return the lists of one serialized Example by feature: int64 [n] or float32 [n]."""
    try:
        features = Example.FromString(data).features.feature
    except DecodeError as error:
        raise position.row_error(0, f"it is not a tf.train.Example ({error})") from error
    row = {}
    for key, kind in FEATURE_LISTS.items():
        if key not in features:
            raise position.row_error(0, f"it has no feature {key}")
        found = features[key].WhichOneof("kind")
        if found != kind:
            raise position.row_error(0, f"{key} is {found or 'empty'}, not {kind}")
        row[key] = np.array(getattr(features[key], kind).value, np.int64 if kind == "int64_list" else np.float32)
    return row


def _first_row_widths(path: Path, row: dict[str, NDArray[Any]]) -> dict[str, int]:
    """Return the number of values of each list of the first row, which all rows must have."""
    widths = {key: len(values) for key, values in row.items()}
    _, masked_width = check_widths(path, widths)
    for key, expected in ((WEIGHTS_KEY, masked_width), (LABELS, 1)):
        if widths[key] != expected:
            raise import_error(path, f"{key} of the first row has {widths[key]} values, not {expected}")
    return widths


def _convert_block(rows: list[dict[str, NDArray[Any]]], allowed: VocabularyFacts, position: BlockPosition) -> Samples:
    """Convert a block of rows to validated samples."""
    columns = {key: np.stack([row[key] for row in rows]) for key in FEATURE_LISTS}
    real = columns[WEIGHTS_KEY] == 1
    counts = count_leading_true(real)
    wrong = (columns[WEIGHTS_KEY] != (np.arange(real.shape[1]) < counts[:, None])).any(axis=1)
    position.raise_for_rows(wrong, f"{WEIGHTS_KEY} are not 1.0 for masked tokens and then 0.0")
    columns[LABELS] = columns[LABELS][:, 0]
    return validate_rows(remove_padding(columns, position, counts), allowed, position)
