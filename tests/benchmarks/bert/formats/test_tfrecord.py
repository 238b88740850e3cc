"""TFRecord: a file written by TensorFlow, damaged records and incomplete Examples."""

import gzip
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.bert.formats.convert import import_file
from benchmarks.bert.formats.rows import VocabularyFacts
from benchmarks.bert.shard import Shard
from podium.core.errors import WorkError

# Four samples written by TensorFlow 2.21 with tf.io.TFRecordWriter. Each is
# tf.train.Example(features=tf.train.Features(feature=…)).SerializeToString() of an OrderedDict with the seven features
# of the reference in its order. max_seq_length is 64, max_predictions_per_seq 9; ids are random numbers from 5 to 999.
FOUR = Path(__file__).with_name("four.tfrecord")
RECORDS = (0, 485, 922, 1393)  # their offsets in bytes


def error_of(file: Path, allowed: VocabularyFacts, format_name: str = "tfrecord") -> str:
    """Return the error of importing a file, without file name and advice; check that no shard is left."""
    shard = file.with_name("shard.h5")
    with pytest.raises(WorkError) as caught:
        import_file(file, format_name, allowed, shard)
    assert [*file.parent.iterdir()] == [file]
    start, end = f"{file}: the file cannot be imported: ", "; see how the file was made, or get it again"
    sentence = str(caught.value)
    assert sentence.startswith(start) and sentence.endswith(end) and "\n" not in sentence
    return sentence.removeprefix(start).removesuffix(end)


def test_file_written_by_tensorflow_is_read(tmp_path: Path, allowed: VocabularyFacts) -> None:
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
def test_damaged_record_is_reported_with_its_byte_offset(tmp_path: Path, allowed: VocabularyFacts, record: int) -> None:
    whole, file = FOUR.read_bytes(), tmp_path / "file"
    end = (*RECORDS, len(whole))[RECORDS.index(record) + 1]
    for place in (record, record + 7, record + 8, record + 11):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        found = error_of(file, allowed)
        assert found == f"no record begins at byte {record}: the length there does not match its checksum"
    for place in (record + 12, record + 200, end - 5, end - 4, end - 1):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        assert error_of(file, allowed) == f"the record that begins at byte {record} does not match its checksum"
    for keep in (record + 1, record + 11):
        file.write_bytes(whole[:keep])
        assert error_of(file, allowed) == f"it has {keep} bytes, and ends within the record that begins at {record}"
    for keep in (record + 12, end - 4, end - 1):
        file.write_bytes(whole[:keep])
        expected = f"it has {keep} bytes, and the record that begins at {record} ends at {end}"
        assert error_of(file, allowed) == expected


def test_length_beyond_the_file_is_an_error(
    tmp_path: Path, allowed: VocabularyFacts, frame_record: Callable[[bytes], bytes]
) -> None:
    """The checksum of the length is right, so that only the size of the file bounds it."""
    from google_crc32c import value

    head = struct.pack("<Q", 2**62)
    crc = value(head)
    file = tmp_path / "file"
    file.write_bytes(head + struct.pack("<I", ((crc >> 15 | crc << 17 & 0xFFFFFFFF) + 0xA282EAD8) % 2**32) + b"abc")
    assert error_of(file, allowed) == f"it has 15 bytes, and the record that begins at 0 ends at {2**62 + 16}"


def test_files_of_other_formats_are_errors(tmp_path: Path, allowed: VocabularyFacts) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"")
    assert error_of(file, allowed) == "there is no record in it"
    file.write_bytes(gzip.compress(FOUR.read_bytes()))
    for format_name in ("tfrecord", "auto"):
        expected = "it is compressed with gzip, so decompress it first (gunzip)"
        assert error_of(file, allowed, format_name) == expected
    for content in (b"", b"a text that is none of them", b"\0" * 5):
        file.write_bytes(content)
        expected = "it looks like none of hdf5-fixed, hdf5-variable, tfrecord"
        assert error_of(file, allowed, "auto") == expected


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
def test_example_without_a_feature_or_with_other_lengths_is_an_error(
    tmp_path: Path,
    allowed: VocabularyFacts,
    foreign_arrays: Callable[[str], dict[str, Any]],
    frame_record: Callable[[bytes], bytes],
    serialize_example: Callable[[dict[str, Any]], bytes],
    change: dict[str, int | None],
    found: str,
) -> None:
    rows = [{name: np.atleast_1d(a[row]).tolist() for name, a in foreign_arrays("tfrecord").items()} for row in (0, 1)]
    for name, dropped in change.items():
        rows[1][name] = rows[1][name][:-dropped] if dropped else None
    rows[1] = {name: values for name, values in rows[1].items() if values is not None}
    file = tmp_path / "file"
    file.write_bytes(b"".join(frame_record(serialize_example(row)) for row in rows))
    assert error_of(file, allowed) == f"row 1, counted from 0: {found}"


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"input_mask": 1}, "a row of input_mask has 15 columns, and one of input_ids has 16"),
        ({"masked_lm_ids": 2}, "a row of masked_lm_ids has 2 columns, and one of masked_lm_positions has 4"),
        ({"masked_lm_weights": 3}, "masked_lm_weights of the first row has 1 values, not 4"),
        ({"next_sentence_labels": 1}, "next_sentence_labels of the first row has 0 values, not 1"),
    ],
)
def test_first_example_with_inconsistent_lengths_is_an_error(
    tmp_path: Path,
    allowed: VocabularyFacts,
    foreign_arrays: Callable[[str], dict[str, Any]],
    frame_record: Callable[[bytes], bytes],
    serialize_example: Callable[[dict[str, Any]], bytes],
    change: dict[str, int],
    found: str,
) -> None:
    row = {name: np.atleast_1d(a[0]).tolist() for name, a in foreign_arrays("tfrecord").items()}
    for name, dropped in change.items():
        row[name] = row[name][:-dropped]
    file = tmp_path / "file"
    file.write_bytes(frame_record(serialize_example(row)))
    assert error_of(file, allowed) == found


def test_record_that_is_not_an_example_is_an_error(
    tmp_path: Path, allowed: VocabularyFacts, frame_record: Callable[[bytes], bytes]
) -> None:
    from benchmarks.bert.formats.tfrecord import Example

    file = tmp_path / "file"
    file.write_bytes(frame_record(b"\x0a\xff\xff"))
    assert error_of(file, allowed).startswith("row 0, counted from 0: it is not a tf.train.Example (")
    file.write_bytes(frame_record(b""))
    assert error_of(file, allowed) == "row 0, counted from 0: it has no feature input_ids"
    example = Example()
    example.features.feature["input_ids"].SetInParent()
    file.write_bytes(frame_record(example.SerializeToString()))
    assert error_of(file, allowed) == "row 0, counted from 0: input_ids is empty, not int64_list"
    example.features.feature["input_ids"].float_list.value.extend([1.0])
    file.write_bytes(frame_record(example.SerializeToString()))
    assert error_of(file, allowed) == "row 0, counted from 0: input_ids is float_list, not int64_list"
