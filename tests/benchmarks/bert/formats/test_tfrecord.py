"""TFRecord: a file that TensorFlow wrote, records that are damaged, and Examples that lack something."""

import gzip
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.bert.formats.convert import import_file
from benchmarks.bert.formats.rows import AllowedTokens
from benchmarks.bert.shard import Shard
from podium.core.errors import WorkError

FOUR = Path(__file__).with_name("four.tfrecord")
"""Four samples as TensorFlow 2.21 wrote them with tf.io.TFRecordWriter, each one
tf.train.Example(features=tf.train.Features(feature=…)).SerializeToString() of an OrderedDict with the reference's seven
features in its order, at max_seq_length 64 and max_predictions_per_seq 9; ids are random numbers from 5 to 999."""
RECORDS = (0, 485, 922, 1393)
"""Where they begin, in bytes."""


def said(file: Path, allowed: AllowedTokens, format_name: str = "tfrecord") -> str:
    """What is said of a file; no shard is left."""
    shard = file.with_name("shard.h5")
    with pytest.raises(WorkError) as caught:
        import_file(file, format_name, allowed, shard)
    assert [*file.parent.iterdir()] == [file]
    start, end = f"{file}: the file cannot be imported: ", "; see how the file was made, or get it again"
    sentence = str(caught.value)
    assert sentence.startswith(start) and sentence.endswith(end) and "\n" not in sentence
    return sentence.removeprefix(start).removesuffix(end)


def test_what_tensorflow_wrote_is_read(tmp_path: Path, allowed: AllowedTokens) -> None:
    import_file(FOUR, "auto", allowed, tmp_path / "a.h5")
    shard = Shard(tmp_path / "a.h5")
    shard.verify()
    assert (shard.origin.made_by, shard.origin.max_sequence_length, shard.origin.max_predictions) == ("tfrecord", 64, 9)
    assert shard.lengths.tolist() == [64, 5, 40, 63]
    samples = shard.samples
    assert samples.first_segment_lengths.tolist() == [11, 3, 10, 36]
    assert samples.next_sentence_labels.tolist() == [1, 0, 0, 1]
    assert np.split(samples.token_ids, samples.sample_offsets[1:-1])[1].tolist() == [2, 195, 3, 4, 3]
    assert [part.tolist() for part in np.split(samples.masked_positions, samples.masked_offsets[1:-1])] == [
        [2, 16, 20, 28, 31, 37, 45, 50, 62],
        [3],
        [6, 7, 12, 25, 30, 34],
        [4, 13, 24, 27, 31, 33, 37, 38, 57],
    ]
    assert [part.tolist() for part in np.split(samples.masked_token_ids, samples.masked_offsets[1:-1])] == [
        [872, 219, 919, 717, 743, 928, 966, 997, 358],
        [649],
        [517, 963, 854, 608, 766, 685],
        [506, 612, 557, 566, 357, 872, 475, 936, 536],
    ]
    assert samples.token_ids[:12].tolist() == [2, 587, 4, 826, 787, 69, 266, 125, 512, 784, 3, 465]
    assert int(samples.token_ids.astype(int).sum()) == 70_957


@pytest.mark.parametrize("record", RECORDS)
def test_a_damaged_record_is_named_by_its_byte(tmp_path: Path, allowed: AllowedTokens, record: int) -> None:
    whole, file = FOUR.read_bytes(), tmp_path / "file"
    end = (*RECORDS, len(whole))[RECORDS.index(record) + 1]
    for place in (record, record + 7, record + 8, record + 11):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        found = said(file, allowed)
        assert found == f"no record begins at byte {record}: the length there does not have its checksum"
    for place in (record + 12, record + 200, end - 5, end - 4, end - 1):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        assert said(file, allowed) == f"the record that begins at byte {record} does not have its checksum"
    for keep in (record + 1, record + 11):
        file.write_bytes(whole[:keep])
        assert said(file, allowed) == f"it has {keep} bytes, and ends within the record that begins at {record}"
    for keep in (record + 12, end - 4, end - 1):
        file.write_bytes(whole[:keep])
        expected = f"it has {keep} bytes, and the record that begins at {record} ends at {end}"
        assert said(file, allowed) == expected


def test_a_length_beyond_the_file_is_not_read(
    tmp_path: Path, allowed: AllowedTokens, framed: Callable[[bytes], bytes]
) -> None:
    """Its checksum is right, so that only the size of the file bounds it."""
    from google_crc32c import value

    head = struct.pack("<Q", 2**62)
    crc = value(head)
    file = tmp_path / "file"
    file.write_bytes(head + struct.pack("<I", ((crc >> 15 | crc << 17 & 0xFFFFFFFF) + 0xA282EAD8) % 2**32) + b"abc")
    assert said(file, allowed) == f"it has 15 bytes, and the record that begins at 0 ends at {2**62 + 16}"


def test_files_of_other_kinds(tmp_path: Path, allowed: AllowedTokens) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"")
    assert said(file, allowed) == "there is no record in it"
    file.write_bytes(gzip.compress(FOUR.read_bytes()))
    for format_name in ("tfrecord", "auto"):
        expected = "it is compressed with gzip, so decompress it first (gunzip)"
        assert said(file, allowed, format_name) == expected
    for content in (b"", b"a text that is none of them", b"\0" * 5):
        file.write_bytes(content)
        expected = "it looks like none of hdf5-fixed, hdf5-variable, tfrecord"
        assert said(file, allowed, "auto") == expected


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"input_mask": None}, "it has no feature input_mask"),
        ({"masked_lm_weights": None}, "it has no feature masked_lm_weights"),
        ({"input_ids": 1}, "input_ids has 15 values, and in the first row 16"),
        ({"masked_lm_weights": 1}, "masked_lm_weights has 3 values, and in the first row 4"),
        ({"next_sentence_labels": 1}, "next_sentence_labels has 0 values, and in the first row 1"),
    ],
)
def test_an_example_that_lacks_something(
    tmp_path: Path,
    allowed: AllowedTokens,
    foreign_arrays: Callable[[str], dict[str, Any]],
    framed: Callable[[bytes], bytes],
    serialized: Callable[[dict[str, Any]], bytes],
    change: dict[str, int | None],
    found: str,
) -> None:
    rows = [{name: np.atleast_1d(a[row]).tolist() for name, a in foreign_arrays("tfrecord").items()} for row in (0, 1)]
    for name, dropped in change.items():
        rows[1][name] = rows[1][name][:-dropped] if dropped else None
    rows[1] = {name: values for name, values in rows[1].items() if values is not None}
    file = tmp_path / "file"
    file.write_bytes(b"".join(framed(serialized(row)) for row in rows))
    assert said(file, allowed) == f"row 1, counted from 0: {found}"


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"input_mask": 1}, "a row of input_mask has 15 columns, and one of input_ids has 16"),
        ({"masked_lm_ids": 2}, "a row of masked_lm_ids has 2 columns, and one of masked_lm_positions has 4"),
        ({"masked_lm_weights": 3}, "masked_lm_weights of the first row has 1 values, not 4"),
        ({"next_sentence_labels": 1}, "next_sentence_labels of the first row has 0 values, not 1"),
    ],
)
def test_a_first_example_whose_lists_disagree(
    tmp_path: Path,
    allowed: AllowedTokens,
    foreign_arrays: Callable[[str], dict[str, Any]],
    framed: Callable[[bytes], bytes],
    serialized: Callable[[dict[str, Any]], bytes],
    change: dict[str, int],
    found: str,
) -> None:
    row = {name: np.atleast_1d(a[0]).tolist() for name, a in foreign_arrays("tfrecord").items()}
    for name, dropped in change.items():
        row[name] = row[name][:-dropped]
    file = tmp_path / "file"
    file.write_bytes(framed(serialized(row)))
    assert said(file, allowed) == found


def test_a_record_that_is_no_example(tmp_path: Path, allowed: AllowedTokens, framed: Callable[[bytes], bytes]) -> None:
    from benchmarks.bert.formats.tfrecord import Example

    file = tmp_path / "file"
    file.write_bytes(framed(b"\x0a\xff\xff"))
    assert said(file, allowed).startswith("row 0, counted from 0: it is no tf.train.Example (")
    file.write_bytes(framed(b""))
    assert said(file, allowed) == "row 0, counted from 0: it has no feature input_ids"
    example = Example()
    example.features.feature["input_ids"].SetInParent()
    file.write_bytes(framed(example.SerializeToString()))
    assert said(file, allowed) == "row 0, counted from 0: input_ids is empty, not int64_list"
    example.features.feature["input_ids"].float_list.value.extend([1.0])
    file.write_bytes(framed(example.SerializeToString()))
    assert said(file, allowed) == "row 0, counted from 0: input_ids is float_list, not int64_list"
