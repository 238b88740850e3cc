"""TensorFlow checkpoints: real ones are read bit for bit, and every kind of damage is an error."""

import struct
from collections.abc import Callable
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.bert.checkpoint.tensorflow import TensorFlowCheckpoint
from podium.core.errors import PodiumError, UsageError, WorkError

CopyFixture = Callable[..., Path]


@pytest.mark.parametrize("name", ["model.ckpt-28252", "split.ckpt-7"])
def test_real_checkpoint_is_read_bit_for_bit(
    tensorflow: CopyFixture, reference_weights: dict[str, NDArray[np.float32]], name: str
) -> None:
    checkpoint = TensorFlowCheckpoint(tensorflow(name))
    assert set(reference_weights) < set(checkpoint.names)
    for tensor, expected in reference_weights.items():
        found = checkpoint.read(tensor)
        assert checkpoint.shape(tensor) == found.shape == expected.shape
        assert found.dtype == np.float32
        assert found.tobytes() == expected.tobytes(), tensor
    assert len(checkpoint.shards) == (1 if name.startswith("model") else 3)


def test_optimizer_slots_and_step_are_listed_and_read_on_request(tensorflow: CopyFixture) -> None:
    checkpoint = TensorFlowCheckpoint(tensorflow())
    assert np.all(checkpoint.read("bert/pooler/dense/kernel/LAMB_1") == 7)
    with pytest.raises(WorkError, match=r"\.index: global_step has TensorFlow's data type 9, allowed is 1 \(float32\)"):
        checkpoint.read("global_step")


def test_partitioned_variable_is_an_error(tensorflow: CopyFixture) -> None:
    with pytest.raises(WorkError, match="sliced is saved in slices; save it as one variable"):
        TensorFlowCheckpoint(tensorflow("split.ckpt-7")).shape("sliced")


# Damage


def read_all(prefix: Path) -> None:
    checkpoint = TensorFlowCheckpoint(prefix)
    for name in checkpoint.names:
        if name != "global_step":
            checkpoint.read(name)


def test_every_flipped_byte_of_the_index_is_detected(tensorflow: CopyFixture) -> None:
    prefix = tensorflow()
    path = prefix.with_name(f"{prefix.name}.index")
    content = path.read_bytes()
    handles = len(content) - 48 + 40
    for at in range(0, len(content)):
        broken = bytearray(content)
        broken[at] ^= 0x10
        path.write_bytes(broken)
        try:
            read_all(prefix)
        except PodiumError as error:
            assert str(path) in str(error)
        else:  # bytes that are never read: the empty meta-index block, its handle, and padding
            assert at < handles
            assert is_unused_byte(content, at), at


def is_unused_byte(content: bytes, at: int) -> bool:
    """Whether a byte is in the meta-index block or, in the footer, outside of the handle of the index block."""
    footer = content[-48:]
    ends = [place for place in range(40) if footer[place] < 0x80]  # the last byte of each number
    meta_offset = sum((byte & 0x7F) << 7 * shift for shift, byte in enumerate(footer[: ends[0] + 1]))
    meta_size = footer[ends[0] + 1]
    in_meta = meta_offset <= at < meta_offset + meta_size + 5
    in_footer = at - (len(content) - 48)
    return in_meta or 0 <= in_footer <= ends[1] or ends[3] < in_footer < 40


def test_truncated_index_is_an_error(tensorflow: CopyFixture) -> None:
    prefix = tensorflow()
    path = prefix.with_name(f"{prefix.name}.index")
    content = path.read_bytes()
    for length in [*range(0, len(content), 37), len(content) - 1]:
        path.write_bytes(content[:length])
        with pytest.raises(
            WorkError, match=r"\.index: is damaged or not a TensorFlow checkpoint: it does not end with"
        ):
            read_all(prefix)


def test_flipped_bytes_of_the_data_are_detected(tensorflow: CopyFixture) -> None:
    prefix = tensorflow()
    (path,) = TensorFlowCheckpoint(prefix).shards
    content = path.read_bytes()
    checked = len(content) - 8  # the last 8 bytes are global_step, which is not read
    assert content[checked:] == struct.pack("<q", 28252)
    for at in range(0, checked, 101):
        broken = bytearray(content)
        broken[at] ^= 1
        path.write_bytes(broken)
        with pytest.raises(WorkError, match=f"{path.name}: the bytes of .* do not match their checksum; copy it again"):
            read_all(prefix)


@pytest.mark.parametrize(("name", "shard"), [("model.ckpt-28252", 0), ("split.ckpt-7", 1), ("split.ckpt-7", 2)])
def test_truncated_data_is_an_error_before_reading(tensorflow: CopyFixture, name: str, shard: int) -> None:
    prefix = tensorflow(name)
    path = TensorFlowCheckpoint(prefix).shards[shard]
    path.write_bytes(path.read_bytes()[:1000])
    checkpoint = TensorFlowCheckpoint(prefix)
    tensors = [tensor for tensor in checkpoint.names if "bert/" in tensor or "cls/" in tensor]
    with pytest.raises(WorkError, match=rf"{path.name}: has 1,000 bytes, and .* ends at byte [\d,]+; copy it again"):
        for tensor in tensors:
            checkpoint.shape(tensor)


def test_data_truncated_while_reading_is_an_error(tensorflow: CopyFixture) -> None:
    checkpoint = TensorFlowCheckpoint(tensorflow())
    checkpoint.shape("cls/seq_relationship/output_weights")
    checkpoint.shards[0].write_bytes(b"\0" * 16)
    with pytest.raises(WorkError, match="ended while cls/seq_relationship/output_weights was read"):
        checkpoint.read("cls/seq_relationship/output_weights")
    checkpoint.shards[0].unlink()
    with pytest.raises(WorkError, match=r"cannot be read \(No such file or directory\)"):
        checkpoint.read("cls/seq_relationship/output_weights")


def test_data_file_of_another_name_is_named(tensorflow: CopyFixture) -> None:
    """MLCommons' copy of the official checkpoint has a data file with another prefix than its index."""
    prefix = tensorflow()
    data = prefix.with_name(f"{prefix.name}.data-00000-of-00001")
    data.rename(prefix.with_name("model.ckpt-28252-003.data-00000-of-00001"))
    with pytest.raises(UsageError, match=r"or rename model\.ckpt-28252-003\.data-00000-of-00001 if it is this file$"):
        TensorFlowCheckpoint(prefix)


@pytest.mark.parametrize("ending", ["index", "data-00000-of-00001"])
def test_missing_file_is_an_error(tensorflow: CopyFixture, ending: str) -> None:
    prefix = tensorflow()
    path = prefix.with_name(f"{prefix.name}.{ending}")
    path.unlink()
    with pytest.raises(UsageError, match=f"{path}: there is no such file"):
        TensorFlowCheckpoint(prefix)


# Indices that TensorFlow did not write


def varint(value: int) -> bytes:
    value &= 2**64 - 1
    digits = b""
    while value >= 0x80:
        digits += bytes([value & 0x7F | 0x80])
        value >>= 7
    return digits + bytes([value])


def field(number: int, value: int | bytes) -> bytes:
    """Encode a field of a protocol buffer: a varint, or bytes with their length."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def masked_crc(content: bytes) -> int:
    crc = google_crc32c.value(content)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) % 2**32


def entry(
    dtype: int = 1,
    shape: tuple[int, ...] = (2,),
    shard: int = 0,
    offset: int = 0,
    size: int = 8,
    crc: int | None = None,
    more: bytes = b"",
) -> bytes:
    dims = b"".join(field(2, field(1, length)) for length in shape)
    checksum = masked_crc(DATA) if crc is None else crc
    fields = field(1, dtype) + field(2, dims) + field(3, shard) + field(4, offset) + field(5, size)
    return fields + varint(6 << 3 | 5) + struct.pack("<I", checksum) + more


DATA = np.array([1.5, -2.5], "<f4").tobytes()
HEADER = field(1, 1) + field(3, field(1, 1))


def block(entries: list[tuple[bytes, bytes]], kind: int = 0, tail: bytes = struct.pack("<II", 0, 1)) -> bytes:
    content = b"".join(varint(0) + varint(len(key)) + varint(len(value)) + key + value for key, value in entries)
    return sealed(content + tail, kind)


def sealed(content: bytes, kind: int = 0) -> bytes:
    content += bytes([kind])
    return content + struct.pack("<I", masked_crc(content))


def table(data: bytes, handle: bytes | None = None) -> bytes:
    """Return a LevelDB table with one data block."""
    handle = varint(0) + varint(len(data) - 5) if handle is None else handle
    index = block([(b"\xff", handle)])
    footer = (varint(0) * 2 + varint(len(data)) + varint(len(index) - 5)).ljust(40, b"\0")
    return data + index + footer + struct.pack("<Q", 0xDB4775248B80FB57)


def open_made(tmp_path: Path, index: bytes, data: bytes = DATA) -> TensorFlowCheckpoint:
    (tmp_path / "made.index").write_bytes(index)
    (tmp_path / "made.data-00000-of-00001").write_bytes(data)
    return TensorFlowCheckpoint(tmp_path / "made")


def test_index_made_by_these_helpers_is_read(tmp_path: Path) -> None:
    """The tests below change this index, so it must be valid."""
    checkpoint = open_made(tmp_path, table(block([(b"", HEADER), (b"a", entry())])))
    assert checkpoint.names == ["a"]
    assert checkpoint.read("a").tolist() == [1.5, -2.5]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (entry(dtype=2), "a has TensorFlow's data type 2, allowed is 1"),
        (entry(shape=(3,)), r"a has the shape \[3\] in 8 bytes"),
        (entry(shape=(-2,)), r"a has the shape \[-2\] in 8 bytes"),
        (entry(shape=(-1, -2)), r"a has the shape \[-1, -2\] in 8 bytes"),
        (entry(shape=(2**62, 2**62)), r"a has the shape \[\d+, \d+\] in 8 bytes"),
        (entry(size=4), r"a has the shape \[2\] in 4 bytes"),
        (entry(shard=1), "a is in data file 1 of 1"),
        (entry(shard=-1), "a is in data file -1 of 1"),
        (entry(offset=1), "has 8 bytes, and a ends at byte 9"),
        (entry(offset=-8), "has 8 bytes, and a ends at byte 0"),
        (entry(offset=2**62), "has 8 bytes, and a ends at byte 4,611,686,018,427,387,912"),
        (entry(crc=1), "the bytes of a do not match their checksum"),
        (entry(more=field(7, b"")), "a is saved in slices"),
        (b"\xff\xff", "the entry 'a' cannot be parsed as Entry of a tensor bundle"),
        (entry()[:-1], "the entry 'a' cannot be parsed as Entry of a tensor bundle"),
    ],
)
def test_impossible_entry_is_an_error(tmp_path: Path, value: bytes, message: str) -> None:
    checkpoint = open_made(tmp_path, table(block([(b"", HEADER), (b"a", value)])))
    with pytest.raises(WorkError, match=message):
        checkpoint.read("a")


LONG = [(b"", HEADER), (b"a" * 1001, entry())]
GOOD = [(b"", HEADER), (b"a", entry())]


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (b"", "it does not end with the magic number"),
        (b"x" * 100, "it does not end with the magic number"),
        (table(block(GOOD, kind=1)), "a block is compressed with Snappy, and only uncompressed ones are read; save it"),
        (table(block(GOOD, kind=7)), "a block is of the unknown type 7"),
        (table(block([(b"a", entry())])), "it has no header"),
        (table(block([])), "it has no header"),
        (table(block([(b"", field(1, 0))])), "its number of data files is 0"),
        (table(block([(b"", field(1, -1))])), "its number of data files is -1"),
        (table(block([(b"", field(1, 2**31 - 1))])), "its number of data files is 2147483647"),
        (table(block([(b"", field(1, 1) + field(2, 1))])), "its numbers are big-endian"),
        (table(block([(b"", field(1, 1) + field(3, field(2, 2)))])), "it requires format version 2, supported is 1"),
        (table(block([(b"", b"\x0a")])), "the entry '' cannot be parsed as Header"),
        (table(block([(b"", HEADER), (b"b", b""), (b"a", b"")])), "its keys are not in order"),
        (table(block([(b"", HEADER), (b"a", b""), (b"a", b"")])), "its keys are not in order"),
        (table(block(LONG)), "a key has 1,001 bytes"),
        (table(block(GOOD, tail=b"")), "a block is too short for its restart points|an entry goes beyond"),
        (table(block(GOOD, tail=struct.pack("<I", 2**31))), "a block is too short for its restart points"),
        (table(sealed(b"\0")), "a block has no end"),
        (table(sealed(b"\x05\0\0" + struct.pack("<I", 0))), "an entry goes beyond its block"),
        (table(sealed(b"\0\x7f\0" + struct.pack("<I", 0))), "an entry goes beyond its block"),
        (table(sealed(b"\0\0\x7f" + struct.pack("<I", 0))), "an entry goes beyond its block"),
        (table(sealed(b"\0\0" + struct.pack("<I", 0))), "a number does not end|an entry goes beyond its block"),
        (table(sealed(b"\xff" * 11 + struct.pack("<I", 0))), "a number does not end"),
        (table(block(GOOD), handle=varint(0) + varint(10**9)), "a block ends at byte 1,000,000,005, and the file has"),
        (table(block(GOOD), handle=varint(10**9) + varint(0)), "a block ends at byte 1,000,000,005, and the file has"),
        (table(block(GOOD), handle=b""), "a number does not end"),
        (table(block(GOOD), handle=varint(1) + varint(9)), "the block at byte 1 does not match its checksum"),
    ],
)
def test_invalid_index_is_an_error(tmp_path: Path, index: bytes, message: str) -> None:
    with pytest.raises(WorkError, match=message):
        open_made(tmp_path, index)


def test_index_above_the_size_limit_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.bert.checkpoint.tensorflow.MAX_INDEX_BYTES", 100)
    with pytest.raises(WorkError, match="it has more than 100 bytes"):
        open_made(tmp_path, table(block(GOOD)))
