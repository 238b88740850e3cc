"""TensorFlow checkpoints (the V2 format of `tf.train.Saver`, a "tensor bundle"), read without TensorFlow.

`PREFIX.index` is a sorted table in LevelDB's format: a footer points to an index block, which points to data blocks,
which contain keys and values. The value of key "" is a header. Every other key is the name of a tensor, and its value
locates the tensor's bytes in `PREFIX.data-00000-of-00001` (or more shards). Blocks and tensors have masked CRC-32C
checksums, all of which are checked. The file is not trusted: offsets outside of it, inconsistent entries and unknown
types are errors.

Sources: LevelDB, doc/table_format.md; TensorFlow, tensor_bundle.proto, tensor_shape.proto and lib/hash/crc32c.h.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from benchmarks.bert.tensorflow_files import masked_crc, message_classes
from podium.core.errors import UsageError, WorkError

MAGIC = 0xDB4775248B80FB57  # of LevelDB's tables, the last 8 bytes of the file
FOOTER_BYTES, TRAILER_BYTES = 48, 5  # the footer ends the file; a type byte and a checksum follow each block
MAX_INDEX_BYTES = 64 * 2**20  # bytes of an index; BERT-large's has about 50,000
# Bytes of a tensor's name. Keys share a prefix with the one before, so that without a limit a small crafted index could
# expand to keys that fill the memory.
MAX_KEY_BYTES = 1_000
LITTLE_ENDIAN, DT_FLOAT, SUPPORTED_VERSION = 0, 1, 1
ADVICE = "copy it again from where it came from"


@dataclass(frozen=True)
class _TensorLocation:
    """Location of a float32 tensor: its shape, data file, offset in bytes, and the masked CRC-32C of its bytes."""

    shape: tuple[int, ...]
    shard: Path
    offset: int
    checksum: int


class TensorFlowCheckpoint:
    """An open checkpoint, given by its prefix, such as `model.ckpt-28252`; float32 tensors are read one at a time.

    Opening reads the index. Raises UsageError if a file is missing and WorkError if a file is damaged or is not in the
    format of TensorFlow 1 and 2.
    """

    def __init__(self, prefix: Path) -> None:
        self.path = prefix
        self._index = prefix.with_name(f"{prefix.name}.index")
        entries = iter(_read_table(self._index, _read_index(self._index)))
        self.shards = self._open_shards(next(entries, None))  # the files of data, in their order
        self._sizes = [shard.stat().st_size for shard in self.shards]
        self._entries = {key.decode("utf-8", "replace"): value for key, value in entries}
        self.names = list(self._entries)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor in `names`. Raises WorkError if it is not float32 or its location is invalid."""
        return self._locate(name).shape

    def read(self, name: str) -> NDArray[np.float32]:
        """Read a tensor in `names`. Raises WorkError if it cannot be read or does not match its checksum."""
        location = self._locate(name)
        try:
            values = np.fromfile(location.shard, "<f4", prod(location.shape), offset=location.offset)
        except OSError as error:
            raise WorkError(f"{location.shard}: cannot be read ({error.strerror or error})") from error
        if len(values) != prod(location.shape):
            raise WorkError(f"{location.shard}: ended while {name} was read; {ADVICE}")
        values.setflags(write=False)  # google_crc32c accepts read-only buffers only
        if masked_crc(values) != location.checksum:
            raise WorkError(f"{location.shard}: the bytes of {name} do not match their checksum; {ADVICE}")
        return values.astype(np.float32, copy=False).reshape(location.shape)

    def _open_shards(self, first: tuple[bytes, bytes] | None) -> list[Path]:
        """Return the data files, whose number is in the header (the first entry).

        Raises WorkError for a damaged index, UsageError for a missing data file.
        """
        if first is None or first[0] != b"":
            raise _damage_error(self._index, "it has no header")
        header = _parse(self._index, "Header", "", first[1])
        if header.endianness != LITTLE_ENDIAN:
            raise WorkError(f"{self._index}: its numbers are big-endian; save it again on a little-endian machine")
        if header.version.min_consumer > SUPPORTED_VERSION:
            found = header.version.min_consumer
            raise WorkError(f"{self._index}: it requires format version {found}, supported is {SUPPORTED_VERSION}")
        count, name = header.num_shards, self.path.name
        if not 1 <= count <= 99_999:
            raise _damage_error(self._index, f"its number of data files is {count}")
        shards = [self.path.with_name(f"{name}.data-{number:05d}-of-{count:05d}") for number in range(count)]
        for shard in shards:
            if not shard.is_file():
                # MLCommons' copy of the official checkpoint has model.ckpt-28252-003.data-… and model.ckpt-28252.index.
                others = sorted(shard.parent.glob(f"*{shard.name.removeprefix(name)}"))
                advice = f", or rename {others[0].name} if it is this file" if others else ""
                raise UsageError(
                    f"{shard}: there is no such file, which {self._index.name} refers to; copy it to this folder"
                    f"{advice}"
                )
        return shards

    def _locate(self, name: str) -> _TensorLocation:
        entry = _parse(self._index, "Entry", name, self._entries[name])
        if entry.slices:
            raise WorkError(f"{self._index}: {name} is saved in slices; save it as one variable")
        if entry.dtype != DT_FLOAT:
            found = f"{name} has TensorFlow's data type {entry.dtype}"
            raise WorkError(f"{self._index}: {found}, allowed is {DT_FLOAT} (float32)")
        shape = tuple(int(dim.size) for dim in entry.shape.dim)
        if entry.shape.unknown_rank or any(length < 0 for length in shape) or entry.size != 4 * prod(shape):
            raise _damage_error(self._index, f"{name} has the shape {list(shape)} in {entry.size} bytes")
        if not 0 <= entry.shard_id < len(self.shards):
            raise _damage_error(self._index, f"{name} is in data file {entry.shard_id} of {len(self.shards)}")
        shard, size = self.shards[entry.shard_id], self._sizes[entry.shard_id]
        if entry.offset < 0 or entry.offset + entry.size > size:
            end = entry.offset + entry.size
            raise WorkError(f"{shard}: has {size:,} bytes, and {name} ends at byte {end:,}; {ADVICE}")
        return _TensorLocation(shape, shard, int(entry.offset), int(entry.crc32c))


def _read_index(path: Path) -> bytes:
    if not path.is_file():
        raise UsageError(f"{path}: there is no such file; name a checkpoint by its prefix, as in model.ckpt-28252")
    try:
        with path.open("rb") as file:
            content = file.read(MAX_INDEX_BYTES + 1)
    except OSError as error:
        raise WorkError(f"{path}: cannot be read ({error.strerror})") from error
    if len(content) > MAX_INDEX_BYTES:
        raise _damage_error(path, f"it has more than {MAX_INDEX_BYTES:,} bytes")
    return content


# LevelDB's table


def _read_table(path: Path, content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of a table in the order of the keys, with all checksums checked."""
    if len(content) < FOOTER_BYTES or struct.unpack("<Q", content[-8:])[0] != MAGIC:
        raise _damage_error(path, "it does not end with the magic number of a table")
    footer = content[-FOOTER_BYTES:-8]  # the handles of the meta-index block, which is not used, and the index block
    _, at = _decode_handle(path, footer, 0)
    index, _ = _decode_handle(path, footer, at)
    before: bytes | None = None
    for _, value in _read_entries(path, _read_block(path, content, index)):
        handle, _ = _decode_handle(path, value, 0)
        for key, entry in _read_entries(path, _read_block(path, content, handle)):
            if before is not None and key <= before:
                raise _damage_error(path, "its keys are not in order")
            before = key
            yield key, entry


def _read_block(path: Path, content: bytes, handle: tuple[int, int]) -> bytes:
    """Return the block at (offset, size). Raises WorkError if it does not match its checksum or is compressed."""
    offset, size = handle
    end = offset + size
    if end + TRAILER_BYTES > len(content):
        raise _damage_error(path, f"a block ends at byte {end + TRAILER_BYTES:,}, and the file has {len(content):,}")
    kind, checksum = struct.unpack("<BI", content[end : end + TRAILER_BYTES])
    if masked_crc(content[offset : end + 1]) != checksum:
        raise _damage_error(path, f"the block at byte {offset:,} does not match its checksum")
    if kind != 0:
        name = "compressed with Snappy" if kind == 1 else f"of the unknown type {kind}"
        raise WorkError(f"{path}: a block is {name}, and only uncompressed ones are read; save it with tf.train.Saver")
    return content[offset:end]


def _read_entries(path: Path, block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield a block's keys and values. Each key is stored as a prefix of the key before plus new bytes."""
    if len(block) < 4:
        raise _damage_error(path, "a block has no end")
    (restarts,) = struct.unpack("<I", block[-4:])
    end = len(block) - 4 * (restarts + 1)
    if end < 0:
        raise _damage_error(path, "a block is too short for its restart points")
    at, key = 0, b""
    while at < end:
        shared, at = _decode_varint(path, block, at)
        new, at = _decode_varint(path, block, at)
        length, at = _decode_varint(path, block, at)
        if shared > len(key) or at + new + length > end:
            raise _damage_error(path, "an entry goes beyond its block")
        if shared + new > MAX_KEY_BYTES:
            raise _damage_error(path, f"a key has {shared + new:,} bytes")
        key = key[:shared] + block[at : at + new]
        yield key, block[at + new : at + new + length]
        at += new + length


def _decode_handle(path: Path, content: bytes, at: int) -> tuple[tuple[int, int], int]:
    """Decode the handle (offset, size) of a block; return it and the position behind it."""
    offset, at = _decode_varint(path, content, at)
    size, at = _decode_varint(path, content, at)
    return (offset, size), at


def _decode_varint(path: Path, content: bytes, at: int) -> tuple[int, int]:
    """Decode a varint of at most 64 bits (7 bits per byte, low bits first); return it and the position behind it."""
    value = 0
    for shift in range(0, 64, 7):
        if at >= len(content):
            break
        byte = content[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise _damage_error(path, "a number does not end")


# Protocol buffers with only the fields that are read. Enums are declared as int32, which has the same encoding.
# Source: TensorFlow's tensor_bundle.proto.
_MESSAGES = message_classes("""
name: "tensor_bundle.proto" package: "tensorflow" syntax: "proto3"
message_type { name: "Version" field { name: "min_consumer" number: 2 type: TYPE_INT32 } }
message_type {
  name: "Header"
  field { name: "num_shards" number: 1 type: TYPE_INT32 }
  field { name: "endianness" number: 2 type: TYPE_INT32 }
  field { name: "version" number: 3 type: TYPE_MESSAGE type_name: ".tensorflow.Version" }
}
message_type { name: "Dim" field { name: "size" number: 1 type: TYPE_INT64 } }
message_type {
  name: "Shape"
  field { name: "dim" number: 2 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: ".tensorflow.Dim" }
  field { name: "unknown_rank" number: 3 type: TYPE_BOOL }
}
message_type {
  name: "Entry"
  field { name: "dtype" number: 1 type: TYPE_INT32 }
  field { name: "shape" number: 2 type: TYPE_MESSAGE type_name: ".tensorflow.Shape" }
  field { name: "shard_id" number: 3 type: TYPE_INT32 }
  field { name: "offset" number: 4 type: TYPE_INT64 }
  field { name: "size" number: 5 type: TYPE_INT64 }
  field { name: "crc32c" number: 6 type: TYPE_FIXED32 }
  field { name: "slices" number: 7 label: LABEL_REPEATED type: TYPE_BYTES }
}
""")


def _parse(path: Path, message: str, name: str, content: bytes) -> Any:
    try:
        return _MESSAGES[message].FromString(content)
    except DecodeError as error:
        raise _damage_error(path, f"the entry {name!r} cannot be parsed as {message} of a tensor bundle") from error


def _damage_error(path: Path, found: str) -> WorkError:
    return WorkError(f"{path}: is damaged or not a TensorFlow checkpoint: {found}; {ADVICE}")
