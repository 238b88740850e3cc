"""Small vocabularies and samples, and sample files written independently of Podium's code."""

import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import google_crc32c
import h5py
import numpy as np
import pytest

from benchmarks.bert.formats.rows import VocabularyFacts
from benchmarks.bert.formats.tfrecord import Example
from benchmarks.bert.preparation.tokenization import ALL_SPECIAL_TOKENS
from benchmarks.bert.samples import Samples

VOCABULARY_SIZE, CLS, SEP, MASK = 1000, 2, 3, 4
WIDTH, MASKED_WIDTH = 16, 4
FIXED_TYPES = {
    "input_ids": "i2",
    "input_mask": "i1",
    "segment_ids": "i1",
    "masked_lm_positions": "i2",
    "masked_lm_ids": "i2",
    "next_sentence_labels": "i1",
}


@pytest.fixture(scope="session")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    tokens = [*ALL_SPECIAL_TOKENS, *(f"word{number}" for number in range(VOCABULARY_SIZE - len(ALL_SPECIAL_TOKENS)))]
    path.write_text("\n".join(tokens), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def allowed(vocabulary: Path) -> VocabularyFacts:
    return VocabularyFacts.from_file(vocabulary)


def make_samples(lengths: Sequence[int], seed: int = 0, least: int = 1, most: int = 76) -> Samples:
    """Return random samples of these lengths that are valid with the vocabulary."""
    random = np.random.default_rng(seed)
    tokens, firsts, positions, originals = [], [], [], []
    for length in lengths:
        first = int(random.integers(3, length - 1))
        row = random.integers(0, VOCABULARY_SIZE, length)
        row[[0, first - 1, length - 1]] = CLS, SEP, SEP
        text = np.setdiff1d(np.arange(length), [0, first - 1, length - 1])
        count = random.integers(min(least, len(text)), min(most, len(text)) + 1)
        chosen = np.sort(random.choice(text, count, replace=False))
        tokens.append(row)
        firsts.append(first)
        positions.append(chosen)
        originals.append(random.integers(0, VOCABULARY_SIZE, len(chosen)))
    return Samples(
        token_ids=np.concatenate(tokens).astype(np.uint16),
        sample_offsets=np.cumsum([0, *lengths]).astype(np.int64),
        first_segment_lengths=np.array(firsts, dtype=np.uint16),
        masked_positions=np.concatenate(positions).astype(np.uint16),
        masked_token_ids=np.concatenate(originals).astype(np.uint16),
        masked_offsets=np.cumsum([0, *map(len, positions)]).astype(np.int64),
        next_sentence_labels=random.integers(0, 2, len(lengths)).astype(np.uint8),
    )


@pytest.fixture(scope="session", name="make_samples")
def _make_samples() -> Callable[..., Samples]:
    return make_samples


Arrays = dict[str, Any]  # the arrays of a sample file by key: 2-D arrays, or lists of rows of variable length


def foreign_arrays(format_name: str) -> Arrays:
    """Return three handmade rows: the shortest possible, one of nine tokens with two masked, one without padding."""
    full = [CLS, *range(30, 36), SEP, MASK, MASK, MASK, MASK, *range(46, 49), SEP]
    rows: list[tuple[list[int], int, list[int], list[int], int]] = [
        ([CLS, 10, SEP, 11, SEP], 3, [1], [12], 0),
        ([CLS, 20, MASK, 22, SEP, 23, MASK, 24, SEP], 5, [2, 6], [25, 26], 1),
        (full, 8, [8, 9, 10, 11], [0, 999, 41, 42], 0),
    ]

    def pad(values: list[list[int]], width: int, dtype: str) -> Any:
        return np.array([row + [0] * (width - len(row)) for row in values], dtype)

    tokens, firsts, positions, originals, labels = (list(column) for column in zip(*rows, strict=True))
    segments = [[0] * first + [1] * (len(row) - first) for row, first in zip(tokens, firsts, strict=True)]
    if format_name == "hdf5-variable":
        return {
            "input_ids": [np.array(row, "i2") for row in tokens],
            "segment_ids": [np.array(row, "i1") for row in segments],
            "masked_lm_positions": [np.array(row, "i2") for row in positions],
            "masked_lm_ids": [np.array(row, "i2") for row in originals],
            "next_sentence_labels": np.array(labels, "i1"),
        }
    arrays = {
        "input_ids": pad(tokens, WIDTH, "i2"),
        "input_mask": pad([[1] * len(row) for row in tokens], WIDTH, "i1"),
        "segment_ids": pad(segments, WIDTH, "i1"),
        "masked_lm_positions": pad(positions, MASKED_WIDTH, "i2"),
        "masked_lm_ids": pad(originals, MASKED_WIDTH, "i2"),
        "next_sentence_labels": np.array(labels, "i1"),
    }
    if format_name == "tfrecord":
        arrays["masked_lm_weights"] = (arrays["masked_lm_positions"] != 0).astype("f4")
    return arrays


def frame_record(data: bytes) -> bytes:
    """Return one record of a TFRecord file."""

    def checksum(content: bytes) -> bytes:
        crc = google_crc32c.value(content)
        return struct.pack("<I", (((crc >> 15) | (crc << 17 & 0xFFFFFFFF)) + 0xA282EAD8) % 2**32)

    head = struct.pack("<Q", len(data))
    return head + checksum(head) + data + checksum(data)


def serialize_example(row: Arrays) -> bytes:
    example = Example()
    for name, values in row.items():
        feature = example.features.feature[name]
        (feature.float_list if name == "masked_lm_weights" else feature.int64_list).value.extend(values)
    return bytes(example.SerializeToString())


def write_foreign(format_name: str, path: Path, arrays: Arrays) -> Path:
    """Write a sample file without Podium's code."""
    if format_name == "tfrecord":
        count = len(arrays["input_ids"])
        rows = [{name: np.atleast_1d(values[row]).tolist() for name, values in arrays.items()} for row in range(count)]
        path.write_bytes(b"".join(frame_record(serialize_example(row)) for row in rows))
        return path
    with h5py.File(path, "w") as file:
        for name, values in arrays.items():
            if isinstance(values, list):
                dataset = file.create_dataset(name, (len(values),), h5py.vlen_dtype(np.dtype(FIXED_TYPES[name])))
                for row, value in enumerate(values):
                    dataset[row] = value
            else:
                file.create_dataset(name, data=values)
    return path


@pytest.fixture(scope="session", name="foreign_arrays")
def _foreign_arrays() -> Callable[[str], Arrays]:
    return foreign_arrays


@pytest.fixture(scope="session", name="write_foreign")
def _write_foreign() -> Callable[[str, Path, Arrays], Path]:
    return write_foreign


@pytest.fixture(scope="session", name="frame_record")
def _frame_record() -> Callable[[bytes], bytes]:
    return frame_record


@pytest.fixture(scope="session", name="serialize_example")
def _serialize_example() -> Callable[[Arrays], bytes]:
    return serialize_example
