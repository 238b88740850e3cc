"""HDF5 with rows of their own length, as NVIDIA keeps them: no padding, so no input_mask.

Datasets: input_ids rows of i2 [N], segment_ids rows of i1, masked_lm_positions rows of i2, masked_lm_ids rows of i2,
next_sentence_labels i1 [N], or [N, 1].
"""

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from benchmarks.bert.exchange.contents import Contents
from benchmarks.bert.exchange.hdf5 import (
    as_sentence,
    dataset_of,
    exported,
    labels_of,
    notes_of,
    opened,
    read_labels,
    require_integers,
    require_rows,
)
from benchmarks.bert.exchange.rows import (
    ROWS_A_BLOCK,
    AllowedTokens,
    Place,
    Rows,
    checked_samples,
    joined,
    segment_ids,
    sliced,
    unusable,
)
from benchmarks.bert.preparation.settings import GenerationSettings
from benchmarks.bert.store import Shard

ROW_DTYPES: Mapping[str, np.dtype[Any]] = {
    "input_ids": np.dtype("<i2"),
    "segment_ids": np.dtype("i1"),
    "masked_lm_positions": np.dtype("<i2"),
    "masked_lm_ids": np.dtype("<i2"),
}
"""The datasets of rows and the types of what is in the rows."""


def read(path: Path, allowed: AllowedTokens) -> Contents:
    """The samples of a file. Raises WorkError that names what is wrong with it.

    Their greatest length and number of masked tokens are unknown: MLPerf's, unless a sample exceeds them.
    """
    with opened(path) as file:
        datasets = {name: _dataset(file, path, name) for name in ROW_DTYPES}
        labels = labels_of(file, path)
        sizes = {name: dataset.shape[0] for name, dataset in datasets.items()}
        count = require_rows(path, sizes | {"next_sentence_labels": labels.shape[0]})
        blocks = []
        for start in range(0, count, ROWS_A_BLOCK):
            stop, place = min(start + ROWS_A_BLOCK, count), Place(path, start)
            flat = {name: _read(path, dataset, start, stop) for name, dataset in datasets.items()}
            block = _rows(flat, read_labels(path, labels, start, stop), place)
            blocks.append(checked_samples(block, allowed, place))
        samples, usual = joined(blocks), GenerationSettings()
        longest, most = (int(np.diff(offsets).max()) for offsets in (samples.sample_offsets, samples.masked_offsets))
        return Contents(
            samples,
            max(usual.max_sequence_length, longest),
            max(usual.max_predictions, most),
            notes_of(file, path),
        )


def _dataset(file: h5py.File, path: Path, name: str) -> h5py.Dataset:
    dataset = dataset_of(file, path, name)
    with as_sentence(path):
        dtype = dataset.dtype
    inside = h5py.check_vlen_dtype(dtype)
    if not isinstance(inside, np.dtype):
        raise unusable(path, f"{name} is {dtype} {list(dataset.shape)}, not integers in rows of variable length")
    require_integers(path, f"a row of {name}", inside)
    if dataset.ndim != 1:
        raise unusable(path, f"{name} is {list(dataset.shape)}, not [rows]")
    return dataset


def _read(path: Path, dataset: h5py.Dataset, start: int, stop: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """What is in the rows start..stop−1, flat, and their lengths."""
    with as_sentence(path):
        rows = dataset[start:stop]
        return np.concatenate(list(rows)), np.fromiter(map(len, rows), np.int64, len(rows))


def _rows(flat: Mapping[str, tuple[NDArray[Any], NDArray[np.int64]]], labels: NDArray[Any], place: Place) -> Rows:
    for name, like in (("segment_ids", "input_ids"), ("masked_lm_ids", "masked_lm_positions")):
        lengths, expected = flat[name][1], flat[like][1]
        for row in np.flatnonzero(lengths != expected)[:1]:
            raise place.refuse(row, f"{name} has {lengths[row]} elements, and {like} has {expected[row]}")
    return Rows(
        **{name: values for name, (values, _) in flat.items()},
        lengths=flat["input_ids"][1],
        masked_counts=flat["masked_lm_positions"][1],
        next_sentence_labels=labels,
    )


def write(path: Path, shard: Shard) -> None:
    """Write the samples of a shard as one file, whole or not at all; what is there is replaced.

    Raises UsageError for samples that the format cannot hold, and WorkError if the disk does not allow it.
    """
    count = len(shard)
    with exported(path, shard) as file:
        datasets = {
            name: file.create_dataset(name, (count,), h5py.vlen_dtype(dtype), track_times=False)
            for name, dtype in ROW_DTYPES.items()
        }
        for start in range(0, count, ROWS_A_BLOCK):
            samples = sliced(shard.samples, start, min(start + ROWS_A_BLOCK, count))
            tokens, masked = samples.sample_offsets, samples.masked_offsets
            _write(datasets["input_ids"], start, samples.token_ids, tokens)
            _write(datasets["segment_ids"], start, segment_ids(samples), tokens)
            _write(datasets["masked_lm_positions"], start, samples.masked_positions, masked)
            _write(datasets["masked_lm_ids"], start, samples.masked_token_ids, masked)
        labels = shard.samples.next_sentence_labels.astype("i1")
        file.create_dataset("next_sentence_labels", data=labels, track_times=False)


def _write(dataset: h5py.Dataset, start: int, values: NDArray[Any], offsets: NDArray[np.int64]) -> None:
    """Write the rows values[offsets[i]:offsets[i + 1]] from row `start` on; h5py's own way takes them one by one."""
    cast = values.astype(h5py.check_vlen_dtype(dataset.dtype))
    rows = np.empty(len(offsets) - 1, dataset.dtype)
    for row, (first, end) in enumerate(pairwise(offsets.tolist())):
        rows[row] = cast[first:end]
    place = dataset.id.get_space()
    place.select_hyperslab((start,), rows.shape)
    dataset.id.write(h5py.h5s.create_simple(rows.shape), place, rows)
