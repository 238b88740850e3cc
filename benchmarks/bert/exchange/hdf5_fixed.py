"""HDF5 with rows of fixed width: 512 tokens and 76 masked ones, where the defaults are MLPerf's; zeros fill the rest.

Datasets: input_ids i2 [N, width], input_mask i1 and segment_ids i1 alike, masked_lm_positions i2 [N, masked width],
masked_lm_ids i2 alike, next_sentence_labels i1 [N].
"""

from pathlib import Path

import h5py

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
from benchmarks.bert.exchange.padded import (
    FIXED_DTYPES,
    MASKED,
    WIDE,
    Rectangles,
    block_rows,
    check_widths,
    padded,
    unpadded,
)
from benchmarks.bert.exchange.rows import AllowedTokens, Place, checked_samples, joined, sliced, unusable
from benchmarks.bert.store import Shard

ROWS_A_CHUNK = 1024
"""Of an exported file: half a megabyte to one of input_ids at the usual width."""
GZIP_LEVEL = 1
"""Mostly zeros: higher levels take several times as long for a few percent."""


def read(path: Path, allowed: AllowedTokens) -> Contents:
    """The samples of a file. Raises WorkError that names what is wrong with it."""
    with opened(path) as file:
        datasets = {name: _dataset(file, path, name) for name in (*WIDE, *MASKED)}
        labels = labels_of(file, path)
        sizes = {name: dataset.shape[0] for name, dataset in datasets.items()}
        count = require_rows(path, sizes | {"next_sentence_labels": labels.shape[0]})
        width, masked_width = check_widths(path, {name: dataset.shape[1] for name, dataset in datasets.items()})
        step = block_rows(width, masked_width)
        blocks = []
        for start in range(0, count, step):
            stop, place = min(start + step, count), Place(path, start)
            with as_sentence(path):
                arrays = {name: dataset[start:stop] for name, dataset in datasets.items()}
            block = Rectangles(**arrays, next_sentence_labels=read_labels(path, labels, start, stop))
            blocks.append(checked_samples(unpadded(block, place), allowed, place))
        return Contents(joined(blocks), width, masked_width, notes_of(file, path))


def _dataset(file: h5py.File, path: Path, name: str) -> h5py.Dataset:
    dataset = dataset_of(file, path, name)
    with as_sentence(path):
        dtype = dataset.dtype
    require_integers(path, name, dtype)
    if dataset.ndim != 2:
        raise unusable(path, f"{name} is {list(dataset.shape)}, not [rows, columns]")
    return dataset


def write(path: Path, shard: Shard) -> None:
    """Write the samples of a shard as one file, whole or not at all; what is there is replaced.

    The widths are the shard's max_sequence_length and max_predictions. Raises UsageError for samples that the format
    cannot hold, and WorkError if the disk does not allow it.
    """
    samples, count = shard.samples, len(shard)
    width, masked_width = shard.attributes["max_sequence_length"], shard.attributes["max_predictions"]
    columns = dict.fromkeys(WIDE, (width,)) | dict.fromkeys(MASKED, (masked_width,))
    with exported(path, shard) as file:
        for name, dtype in FIXED_DTYPES.items():
            rest = columns.get(name, ())
            chunk = (min(count, ROWS_A_CHUNK), *rest)
            packed = {"chunks": chunk, "compression": "gzip", "compression_opts": GZIP_LEVEL, "shuffle": True}
            file.create_dataset(name, (count, *rest), dtype, track_times=False, **packed)
        step = block_rows(width, masked_width)
        for start in range(0, count, step):
            stop = min(start + step, count)
            block = padded(sliced(samples, start, stop), width, masked_width)
            for name in FIXED_DTYPES:
                file[name][start:stop] = getattr(block, name)
