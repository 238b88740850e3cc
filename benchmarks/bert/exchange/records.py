"""The framing of TFRecord files: every record between its length and its checksums.

A record is the length of its data (u64, little-endian), the masked CRC-32C of these eight bytes (u32), the data, and
the masked CRC-32C of the data. Source: the comments of TensorFlow's record_writer.h.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import google_crc32c

from benchmarks.bert.exchange.rows import unusable
from benchmarks.errors import WorkError

LENGTH = struct.Struct("<Q")
CHECKSUM = struct.Struct("<I")
HEAD = LENGTH.size + CHECKSUM.size
GZIP = b"\x1f\x8b"


class Record(NamedTuple):
    """One record of a file."""

    offset: int
    """Where it begins, in bytes."""
    data: bytes


def begins_as_tfrecord(path: Path) -> bool:
    """Whether the first record's length has its checksum. Raises WorkError if the file cannot be read."""
    head = _first_bytes(path, HEAD)
    return len(head) == HEAD and has_checksum(head[: LENGTH.size], head[LENGTH.size :])


def begins_as_gzip(path: Path) -> bool:
    """Whether it is compressed with gzip. Raises WorkError if the file cannot be read."""
    return _first_bytes(path, len(GZIP)) == GZIP


def _first_bytes(path: Path, count: int) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(count)
    except OSError as error:
        raise unusable(path, f"it cannot be read ({error.strerror})") from error


def read_records(path: Path) -> Iterator[Record]:
    """The records of a file, checked. Raises WorkError that names the first byte of a broken one."""
    try:
        with path.open("rb") as file:
            size, offset = path.stat().st_size, 0
            while offset < size:
                head = file.read(HEAD)
                if len(head) < HEAD:
                    raise unusable(path, f"it has {size} bytes, and ends within the record that begins at {offset}")
                if not has_checksum(head[: LENGTH.size], head[LENGTH.size :]):
                    raise _no_record(path, offset)
                (length,) = LENGTH.unpack_from(head)
                end = offset + HEAD + length + CHECKSUM.size
                if end > size:
                    raise unusable(path, f"it has {size} bytes, and the record that begins at {offset} ends at {end}")
                data = file.read(length)
                if not has_checksum(data, file.read(CHECKSUM.size)):
                    raise unusable(path, f"the record that begins at byte {offset} does not have its checksum")
                yield Record(offset, data)
                offset = end
    except OSError as error:
        raise unusable(path, f"it cannot be read ({error.strerror})") from error


def _no_record(path: Path, offset: int) -> WorkError:
    if offset == 0 and begins_as_gzip(path):
        return unusable(path, "it is compressed with gzip, so decompress it first (gunzip)")
    return unusable(path, f"no record begins at byte {offset}: the length there does not have its checksum")


def has_checksum(data: bytes, checksum: bytes) -> bool:
    """Whether checksum is the masked CRC-32C of data, as it stands in a file."""
    crc = google_crc32c.value(data)
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    return checksum == CHECKSUM.pack(masked)
