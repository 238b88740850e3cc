"""HDF5 sample files of fixed and of variable row length, read without trusting them, and written.

Fixed width: 512 tokens and 76 masked ones, where the defaults are MLPerf's; zeros fill the rest. Datasets: input_ids
i2 [N, width], input_mask and segment_ids i1 [N, width], masked_lm_positions and masked_lm_ids i2 [N, masked width],
next_sentence_labels i1 [N].

Variable length, NVIDIA's layout: no padding, so no input_mask. Datasets: input_ids rows of i2 [N], segment_ids rows
of i1, masked_lm_positions rows of i2, masked_lm_ids rows of i2, next_sentence_labels i1 [N], or [N, 1].
"""

import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from benchmarks.bert.formats.rows import (
    FIXED_DTYPES,
    MASKED,
    ROWS_A_BLOCK,
    WIDE,
    AllowedTokens,
    Contents,
    Place,
    Rectangles,
    Rows,
    block_rows,
    check_widths,
    checked_samples,
    joined,
    padded,
    segment_ids,
    sliced,
    unpadded,
    unusable,
)
from benchmarks.bert.preparation.settings import GenerationSettings
from benchmarks.bert.store import SUFFIX, Shard, new_hdf5, set_attribute
from podium.core.errors import PodiumError, UsageError, WorkError

LARGEST = 32_767  # of the formats' i2
# Begins the names of the attributes that an export leaves for an import; other programs do not look at them.
NOTE = "podium_"
# Of decompressed chunks of each dataset, so that a chunk which lies in several blocks of rows is read once.
CHUNK_CACHE_BYTES = 2**26
# Those that come with HDF5 and h5py; for any other, HDF5 would load a library that it finds on the machine.
FILTERS = {
    h5py.h5z.FILTER_DEFLATE,
    h5py.h5z.FILTER_SHUFFLE,
    h5py.h5z.FILTER_FLETCHER32,
    h5py.h5z.FILTER_SZIP,
    h5py.h5z.FILTER_NBIT,
    h5py.h5z.FILTER_SCALEOFFSET,
    h5py.h5z.FILTER_LZF,
}


CPU_SECONDS = 30.0  # that HDF5 may compute at a time, where it needs less than one; waiting for a disk does not count


@contextmanager
def as_sentence(path: Path) -> Iterator[None]:
    """Turn what h5py raises for a corrupt file into a WorkError; for calls of h5py alone, not to be nested.

    Where HDF5 gets lost in a corrupt file for ever (a heap of variable-length rows can be such) this ends the process
    by SIGVTALRM after CPU_SECONDS, so foreign files are to be read in a process of their own.
    """
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_SECONDS)
    try:
        yield
    except PodiumError:
        raise
    except (OSError, RuntimeError, ValueError, KeyError, TypeError, MemoryError) as error:
        raise unusable(path, f"it cannot be read as HDF5 ({' '.join(str(error).split())})") from error
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


@contextmanager
def opened(path: Path) -> Iterator[h5py.File]:
    """A foreign file, to be read. Raises WorkError if it is no HDF5."""
    with as_sentence(path):
        file = h5py.File(path, "r", locking=False, rdcc_nbytes=CHUNK_CACHE_BYTES)
    try:
        yield file
    finally:
        with as_sentence(path):
            file.close()


def has_dataset(path: Path, name: str) -> bool:
    """Whether something has that name in the file. Raises WorkError if it is no HDF5."""
    with opened(path) as file, as_sentence(path):
        return name in file.keys()  # noqa: SIM118 (`in file` would follow links)


def dataset_of(file: h5py.File, path: Path, name: str) -> tuple[h5py.Dataset, np.dtype[Any]]:
    """The dataset of that name, which lies in this file alone, and its type; type and shape are unchecked.

    Raises WorkError if there is none, or if reading it would read another file.
    """
    with as_sentence(path):
        names = list(file.keys())
        if name not in names:
            raise unusable(path, f"it has no dataset {name}; it has {', '.join(map(repr, names[:20])) or 'nothing'}")
        if not isinstance(file.get(name, getlink=True), h5py.HardLink):
            raise unusable(path, f"{name} is a link to elsewhere, which is not followed")
        if file.get(name, getclass=True) != h5py.Dataset:
            raise unusable(path, f"{name} is no dataset")
        dataset = file[name]
        if dataset.is_virtual or dataset.external:
            raise unusable(path, f"{name} lies in other files, which are not read")
        if dataset.shape is None:
            raise unusable(path, f"{name} is empty, without a shape")
        properties = dataset.id.get_create_plist()
        filters = {properties.get_filter(number)[0] for number in range(properties.get_nfilters())}
        if not filters <= FILTERS:
            unknown = max(filters - FILTERS)
            raise unusable(path, f"{name} is compressed with the HDF5 filter {unknown}, which is not known here")
        return dataset, dataset.dtype


def require_integers(path: Path, name: str, dtype: np.dtype[Any]) -> None:
    """Raise WorkError unless it is a plain integer type of any width."""
    if dtype.kind not in "iu":
        found = "of variable length" if dtype.kind == "O" else dtype
        raise unusable(path, f"{name} is {found}, not an integer type")


def require_rows(path: Path, datasets: Mapping[str, h5py.Dataset], labels: h5py.Dataset) -> int:
    """The number of rows on which all datasets agree; raises WorkError if they do not, or if there is none."""
    rows: dict[str, int] = {
        name: dataset.shape[0] for name, dataset in {**datasets, "next_sentence_labels": labels}.items()
    }
    first, count = next(iter(rows.items()))
    for name, found in rows.items():
        if found != count:
            raise unusable(path, f"{name} has {found} rows, and {first} has {count}")
    if count == 0:
        raise unusable(path, "there is no row in it")
    return count


def labels_of(file: h5py.File, path: Path) -> h5py.Dataset:
    """next_sentence_labels, integers [N] or [N, 1]."""
    labels, dtype = dataset_of(file, path, "next_sentence_labels")
    require_integers(path, "next_sentence_labels", dtype)
    if labels.ndim not in (1, 2) or labels.shape[1:] not in ((), (1,)):
        raise unusable(path, f"next_sentence_labels is {list(labels.shape)}, not [rows] or [rows, 1]")
    return labels


def read_labels(path: Path, labels: h5py.Dataset, start: int, stop: int) -> NDArray[Any]:
    """Those of the rows start..stop−1, [stop − start]."""
    with as_sentence(path):
        values: NDArray[Any] = labels[start:stop]
    return values.reshape(stop - start)


def notes_of(file: h5py.File, path: Path) -> dict[str, Any]:
    """The attributes that an export left, as int, float or str; others of the same prefix are passed over."""
    noted: dict[str, Any] = {}
    with as_sentence(path):
        for name in file.attrs:
            if not (isinstance(name, str) and name.startswith(NOTE)):
                continue  # a name that is not UTF-8 comes as bytes
            stored = file.attrs.get_id(name)
            if stored.shape != () or stored.dtype.kind not in "ifS":
                continue
            value = file.attrs[name].item()
            try:
                noted[name.removeprefix(NOTE)] = value.decode("utf-8") if isinstance(value, bytes) else value
            except UnicodeDecodeError:
                continue
    return noted


@contextmanager
def exported(path: Path, shard: Shard) -> Iterator[h5py.File]:
    """A new file to write the shard's samples to, with its attributes noted; it is on the disk when the block ends.

    Raises UsageError if a number of the samples is too large for the format, WorkError if a [CLS] is masked or the disk
    does not allow the file.
    """
    _check_exportable(shard)
    with new_hdf5(path) as file:
        for name, value in shard.attributes.items():
            set_attribute(file, NOTE + name, value)
        yield file


def _check_exportable(shard: Shard) -> None:
    samples = shard.samples
    numbers = {
        "the token": samples.token_ids.max(),
        "the masked token": samples.masked_token_ids.max(),
        "the length": shard.attributes["max_sequence_length"],
        "the number of masked tokens": shard.attributes["max_predictions"],
    }
    for what, largest in numbers.items():
        if largest > LARGEST:
            raise UsageError(
                f"{shard.path}: cannot be exported: {what} {largest} is larger than {LARGEST}, and the HDF5 formats of "
                f"others have two signed bytes for it; keep these samples as *{SUFFIX} shards"
            )
    if (samples.masked_positions[samples.masked_offsets[:-1]] == 0).any():
        raise WorkError(
            f"{shard.path}: cannot be exported: a sample masks its position 0, which is [CLS] and in the HDF5 formats "
            "of others means padding; prepare it again with `podium data prepare`"
        )


ROWS_A_CHUNK = 1024  # of an exported file: half a megabyte to one of input_ids at the usual width
GZIP_LEVEL = 1  # mostly zeros: higher levels take several times as long for a few percent


def read_fixed(path: Path, allowed: AllowedTokens) -> Contents:
    """The samples of a file. Raises WorkError that names what is wrong with it."""
    with opened(path) as file:
        datasets = {name: _fixed_dataset(file, path, name) for name in (*WIDE, *MASKED)}
        labels = labels_of(file, path)
        count = require_rows(path, datasets, labels)
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


def _fixed_dataset(file: h5py.File, path: Path, name: str) -> h5py.Dataset:
    dataset, dtype = dataset_of(file, path, name)
    require_integers(path, name, dtype)
    if dataset.ndim != 2:
        raise unusable(path, f"{name} is {list(dataset.shape)}, not [rows, columns]")
    return dataset


def write_fixed(path: Path, shard: Shard) -> None:
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


# The datasets of rows and the types of what is in the rows.
ROW_DTYPES = {name: FIXED_DTYPES[name] for name in ("input_ids", "segment_ids", *MASKED)}


def read_variable(path: Path, allowed: AllowedTokens) -> Contents:
    """The samples of a file. Raises WorkError that names what is wrong with it.

    Their greatest length and number of masked tokens are unknown: MLPerf's, unless a sample exceeds them.
    """
    with opened(path) as file:
        datasets = {name: _variable_dataset(file, path, name) for name in ROW_DTYPES}
        labels = labels_of(file, path)
        count = require_rows(path, datasets, labels)
        blocks = []
        for start in range(0, count, ROWS_A_BLOCK):
            stop, place = min(start + ROWS_A_BLOCK, count), Place(path, start)
            flat = {name: _read(path, dataset, start, stop) for name, dataset in datasets.items()}
            block = _rows(flat, read_labels(path, labels, start, stop), place)
            blocks.append(checked_samples(block, allowed, place))
        samples, usual = joined(blocks), GenerationSettings()
        longest, most = (int(np.diff(offsets).max()) for offsets in (samples.sample_offsets, samples.masked_offsets))
        width, masked_width = max(usual.max_sequence_length, longest), max(usual.max_predictions, most)
        return Contents(samples, width, masked_width, notes_of(file, path))


def _variable_dataset(file: h5py.File, path: Path, name: str) -> h5py.Dataset:
    dataset, dtype = dataset_of(file, path, name)
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


def write_variable(path: Path, shard: Shard) -> None:
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
