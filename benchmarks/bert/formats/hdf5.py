"""Reading and writing of HDF5 sample files with fixed-width or variable-length rows. The files are not trusted.

Fixed width: 512 tokens and 76 masked tokens with MLPerf's defaults; rows are padded with zeros. Datasets: input_ids
i2 [N, width], input_mask and segment_ids i1 [N, width], masked_lm_positions and masked_lm_ids i2 [N, masked width],
next_sentence_labels i1 [N].

Variable length, NVIDIA's layout: no padding, so no input_mask. Datasets: input_ids rows of i2 [N], segment_ids rows
of i1, masked_lm_positions rows of i2, masked_lm_ids rows of i2, next_sentence_labels i1 [N], or [N, 1].
"""

import resource
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np
from numpy.typing import NDArray

from benchmarks.bert.formats.rows import (
    FIXED_DTYPES,
    LABELS,
    MASKED_KEYS,
    ROWS_PER_BLOCK,
    TOKEN_KEYS,
    BlockPosition,
    ImportedFile,
    Rows,
    VocabularyFacts,
    block_rows,
    check_widths,
    concatenate_samples,
    import_error,
    max_counts,
    pad_rows,
    remove_padding,
    segment_ids,
    validate_rows,
)
from benchmarks.bert.samples import Samples, slice_samples
from benchmarks.bert.shard import SUFFIX, Shard, create_hdf5, read_attributes, set_attribute
from podium.core.errors import PodiumError, UsageError, WorkError

INT16_MAX = 32_767  # of the formats' i2
# Prefix of the attributes in which an export records the shard's attributes for a later import; other programs ignore
# them.
ATTRIBUTE_PREFIX = "podium_"
# Cache of decompressed chunks per dataset, so that a chunk that overlaps several blocks of rows is read once.
CHUNK_CACHE_BYTES = 2**26
# The filters built into HDF5 and h5py. For any other filter HDF5 would load and run a plug-in library from the machine.
BUILT_IN_FILTERS = {
    h5py.h5z.FILTER_DEFLATE,
    h5py.h5z.FILTER_SHUFFLE,
    h5py.h5z.FILTER_FLETCHER32,
    h5py.h5z.FILTER_SZIP,
    h5py.h5z.FILTER_NBIT,
    h5py.h5z.FILTER_SCALEOFFSET,
    h5py.h5z.FILTER_LZF,
}


# A chunk is decompressed as a whole, so its size bounds the memory; h5py's default chunks have a MiB at most.
MAX_CHUNK_BYTES = CHUNK_CACHE_BYTES
# Maximum bytes of a dataset per byte of its file, against decompression bombs. Padded rows of Wikipedia's samples have
# 5, rows of a few words 50.
MAX_COMPRESSION = 256
ALWAYS_ALLOWED_BYTES = 2**24  # bytes that a dataset may have in a file of any size

# CPU time of one HDF5 call, which takes less than a second on an intact file. Waiting for a disk does not count.
CPU_LIMIT_SECONDS = 30.0
# Memory of one HDF5 call. A block of rows needs 100 MB. In a crafted small file all rows can refer to one long row.
MEMORY_LIMIT_BYTES = 2**30


@contextmanager
def limited_hdf5_calls(path: Path) -> Iterator[None]:
    """Raise a WorkError for any exception of h5py, and limit the CPU time and memory of the calls inside.

    On some corrupt files HDF5 loops forever, for example in the heap of variable-length rows. SIGVTALRM then kills the
    process after CPU_LIMIT_SECONDS, so files of other projects are to be read in a worker process. HDF5 may allocate
    MEMORY_LIMIT_BYTES beyond the memory in use. Wrap calls of h5py only, and do not nest: a process has one timer.
    """
    # The default action of SIGVTALRM ends the process. A Python handler would never run while HDF5 loops in C.
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_LIMIT_SECONDS)
    try:
        with _limited_memory():
            yield
    except PodiumError:
        raise
    except (OSError, RuntimeError, ValueError, KeyError, TypeError, MemoryError) as error:
        raise import_error(path, f"it cannot be read as HDF5 ({' '.join(str(error).split())})") from error
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


@contextmanager
def _limited_memory() -> Iterator[None]:
    """Make allocations fail beyond MEMORY_LIMIT_BYTES more than the memory in use; no limit without /proc."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[5])  # data and stack, which RLIMIT_DATA counts
    except OSError:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = pages * resource.getpagesize() + MEMORY_LIMIT_BYTES
    allowed = min([wanted, *(limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY)])
    resource.setrlimit(resource.RLIMIT_DATA, (allowed, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


@contextmanager
def open_hdf5(path: Path) -> Iterator[h5py.File]:
    """Open an HDF5 file of another project for reading. Raises WorkError if it is not HDF5."""
    with limited_hdf5_calls(path):
        file = h5py.File(path, "r", locking=False, rdcc_nbytes=CHUNK_CACHE_BYTES)
    try:
        yield file
    finally:
        with limited_hdf5_calls(path):
            file.close()


def has_dataset(path: Path, name: str) -> bool:
    """Whether the file's root group has an entry of that name. Raises WorkError if the file is not HDF5."""
    with open_hdf5(path) as file, limited_hdf5_calls(path):
        return name in file.keys()  # noqa: SIM118 (`in file` would follow links)


def get_dataset(file: h5py.File, path: Path, name: str, rows: Literal["fixed", "variable"]) -> h5py.Dataset:
    """Return the dataset of that name: integers in rows of fixed or variable length, stored in this file alone.

    Raises WorkError if it is missing or of another type or shape, if reading it would read another file or load a
    filter library, or if it would take far more memory than the file has bytes.
    """
    with limited_hdf5_calls(path):
        names = list(file.keys())
        if name not in names:
            raise import_error(
                path, f"it has no dataset {name}; it has {', '.join(map(repr, names[:20])) or 'nothing'}"
            )
        if not isinstance(file.get(name, getlink=True), h5py.HardLink):
            # Checked before the dataset is opened: a link could read any file that the user can read.
            raise import_error(path, f"{name} is a soft or external link, which is not followed")
        if file.get(name, getclass=True) != h5py.Dataset:
            raise import_error(path, f"{name} is not a dataset")
        dataset = file[name]
        if dataset.is_virtual or dataset.external:
            raise import_error(path, f"{name} is stored in other files, which are not read")
        if dataset.shape is None:
            raise import_error(path, f"{name} is empty, without a shape")
        properties = dataset.id.get_create_plist()
        filters = {properties.get_filter(number)[0] for number in range(properties.get_nfilters())}
        if not filters <= BUILT_IN_FILTERS:
            unknown = max(filters - BUILT_IN_FILTERS)
            raise import_error(path, f"{name} is compressed with the HDF5 filter {unknown}, which is not supported")
        dtype = dataset.dtype
        chunk_bytes = prod(dataset.chunks or (0,)) * dtype.itemsize
        all_bytes = prod(dataset.shape) * dtype.itemsize
        largest = max(ALWAYS_ALLOWED_BYTES, MAX_COMPRESSION * path.stat().st_size)
        if chunk_bytes > MAX_CHUNK_BYTES or all_bytes > largest:
            raise import_error(
                path,
                f"{name} has chunks of {chunk_bytes:,} bytes and {all_bytes:,} in all; allowed are chunks of up to "
                f"{MAX_CHUNK_BYTES:,} and, in a file of this size, {largest:,} bytes in all",
            )
    _check_integers(path, name, dtype, list(dataset.shape), rows)
    return dataset


def _check_integers(
    path: Path, name: str, dtype: np.dtype[Any], shape: list[int], rows: Literal["fixed", "variable"]
) -> None:
    subject = name
    if name != LABELS and rows == "variable":
        inside, subject = h5py.check_vlen_dtype(dtype), f"a row of {name}"
        if not isinstance(inside, np.dtype):
            raise import_error(path, f"{name} is {dtype} {shape}, not integers in rows of variable length")
        dtype = inside
    if dtype.kind not in "iu":
        found = "of variable length" if dtype.kind == "O" else dtype
        raise import_error(path, f"{subject} is {found}, not an integer type")
    if name == LABELS:
        fits, expected = len(shape) == 1 or (len(shape) == 2 and shape[1] == 1), "[rows] or [rows, 1]"
    elif rows == "variable":
        fits, expected = len(shape) == 1, "[rows]"
    else:
        fits, expected = len(shape) == 2, "[rows, columns]"
    if not fits:
        raise import_error(path, f"{name} is {shape}, not {expected}")


def read_blocks(
    path: Path,
    datasets: Mapping[str, h5py.Dataset],
    step: int,
    to_rows: Callable[[Mapping[str, NDArray[Any]], BlockPosition], Rows],
    allowed: VocabularyFacts,
) -> Samples:
    """Read the datasets `step` rows at a time, convert each block with `to_rows`, and return the validated samples.

    Raises WorkError if the datasets differ in their number of rows or have none, and for a row that is not a sample.
    """
    counts = {name: len(dataset) for name, dataset in datasets.items()}
    first, count = next(iter(counts.items()))
    for name, found in counts.items():
        if found != count:
            raise import_error(path, f"{name} has {found} rows, and {first} has {count}")
    if count == 0:
        raise import_error(path, "there is no row in it")
    blocks = []
    for start in range(0, count, step):
        with limited_hdf5_calls(path):
            block = {name: dataset[start : start + step] for name, dataset in datasets.items()}
        block[LABELS] = block[LABELS].reshape(-1)
        position = BlockPosition(path, start)
        blocks.append(validate_rows(to_rows(block, position), allowed, position))
    return concatenate_samples(blocks)


def read_exported_attributes(file: h5py.File, path: Path) -> dict[str, Any]:
    """Return the attributes of the shard that the file was exported from, unchecked; empty if it was not exported."""
    with limited_hdf5_calls(path):
        return read_attributes(file, ATTRIBUTE_PREFIX)


@contextmanager
def create_export(path: Path, shard: Shard) -> Iterator[tuple[h5py.File, Samples]]:
    """Create a file with the shard's attributes; yield it and the shard's samples. The file is synced at the end.

    Raises UsageError if a value of the samples is too large for the format, WorkError if a [CLS] is masked or the file
    cannot be written.
    """
    samples = shard.samples
    numbers = {
        "the token": samples.token_ids.max(),
        "the masked token": samples.masked_token_ids.max(),
        "the length": shard.attributes["max_sequence_length"],
        "the number of masked tokens": shard.attributes["max_predictions"],
    }
    for subject, largest in numbers.items():
        if largest > INT16_MAX:
            raise UsageError(
                f"{shard.path}: cannot be exported: {subject} {largest} is larger than {INT16_MAX}, the maximum of the "
                f"16-bit integers of these HDF5 formats; keep the samples as *{SUFFIX} shards"
            )
    # Readers of these formats take a masked position 0 as padding.
    if (samples.masked_positions[samples.masked_offsets[:-1]] == 0).any():
        raise WorkError(
            f"{shard.path}: cannot be exported: a sample masks its position 0, which is [CLS] and in these HDF5 "
            "formats means padding; prepare it again with `podium data prepare`"
        )
    with create_hdf5(path) as file:
        for name, value in shard.attributes.items():
            set_attribute(file, ATTRIBUTE_PREFIX + name, value)
        yield file, samples


def iterate_blocks(samples: Samples, step: int) -> Iterator[tuple[slice, Samples]]:
    """Yield blocks of `step` samples, each with its range of indices."""
    for start in range(0, len(samples), step):
        span = slice(start, min(start + step, len(samples)))
        yield span, slice_samples(samples, span.start, span.stop)


ROWS_PER_CHUNK = 1024  # of an exported file: 1 MiB of input_ids at width 512
GZIP_LEVEL = 1  # mostly zeros: higher levels take several times as long for a few percent


def read_fixed(path: Path, allowed: VocabularyFacts) -> ImportedFile:
    """Read the samples of a fixed-width file. Raises WorkError, naming the fault, if it violates the format."""
    with open_hdf5(path) as file:
        datasets = {name: get_dataset(file, path, name, "fixed") for name in (*TOKEN_KEYS, *MASKED_KEYS, LABELS)}
        width, masked_width = check_widths(
            path, {name: datasets[name].shape[1] for name in (*TOKEN_KEYS, *MASKED_KEYS)}
        )
        samples = read_blocks(path, datasets, block_rows(width, masked_width), remove_padding, allowed)
        return ImportedFile(samples, width, masked_width, read_exported_attributes(file, path))


def write_fixed(path: Path, shard: Shard) -> None:
    """Write the samples of a shard as a fixed-width file, atomically; an existing file is replaced.

    The widths are the shard's max_sequence_length and max_predictions. Raises UsageError for samples that the format
    cannot represent, and WorkError if the file cannot be written.
    """
    count = len(shard)
    width, masked_width = shard.attributes["max_sequence_length"], shard.attributes["max_predictions"]
    columns = dict.fromkeys(TOKEN_KEYS, (width,)) | dict.fromkeys(MASKED_KEYS, (masked_width,))
    with create_export(path, shard) as (file, samples):
        for name, dtype in FIXED_DTYPES.items():
            rest = columns.get(name, ())
            chunk = (min(count, ROWS_PER_CHUNK), *rest)
            packed = {"chunks": chunk, "compression": "gzip", "compression_opts": GZIP_LEVEL, "shuffle": True}
            # Without time stamps, so that the same samples give the same bytes.
            file.create_dataset(name, (count, *rest), dtype, track_times=False, **packed)
        for span, block in iterate_blocks(samples, block_rows(width, masked_width)):
            for name, values in pad_rows(block, width, masked_width).items():
                file[name][span] = values


# The variable-length datasets and the types of the elements of their rows.
ROW_DTYPES = {name: FIXED_DTYPES[name] for name in ("input_ids", "segment_ids", *MASKED_KEYS)}


def read_variable(path: Path, allowed: VocabularyFacts) -> ImportedFile:
    """Read the samples of a variable-length file. Raises WorkError, naming the fault, if it violates the format."""
    with open_hdf5(path) as file:
        datasets = {name: get_dataset(file, path, name, "variable") for name in (*ROW_DTYPES, LABELS)}
        samples = read_blocks(path, datasets, ROWS_PER_BLOCK, _concatenate_rows, allowed)
        return ImportedFile(samples, *max_counts(samples), read_exported_attributes(file, path), is_padded=False)


def _concatenate_rows(block: Mapping[str, NDArray[Any]], position: BlockPosition) -> Rows:
    lengths = {name: np.fromiter(map(len, block[name]), np.int64, len(block[name])) for name in ROW_DTYPES}
    for name, like in (("segment_ids", "input_ids"), ("masked_lm_ids", "masked_lm_positions")):
        for row in np.flatnonzero(lengths[name] != lengths[like])[:1]:
            raise position.row_error(
                row, f"{name} has {lengths[name][row]} elements, and {like} has {lengths[like][row]}"
            )
    return Rows(
        **{name: np.concatenate(list(block[name])) for name in ROW_DTYPES},
        lengths=lengths["input_ids"],
        masked_counts=lengths["masked_lm_positions"],
        next_sentence_labels=block[LABELS],
    )


def write_variable(path: Path, shard: Shard) -> None:
    """Write the samples of a shard as a variable-length file, atomically; an existing file is replaced.

    Raises UsageError for samples that the format cannot represent, and WorkError if the file cannot be written.
    """
    count = len(shard)
    with create_export(path, shard) as (file, samples):
        datasets = {
            name: file.create_dataset(name, (count,), h5py.vlen_dtype(dtype), track_times=False)
            for name, dtype in ROW_DTYPES.items()
        }
        for span, block in iterate_blocks(samples, ROWS_PER_BLOCK):
            tokens, masked = block.sample_offsets, block.masked_offsets
            _write_rows(datasets["input_ids"], span.start, block.token_ids, tokens)
            _write_rows(datasets["segment_ids"], span.start, segment_ids(block), tokens)
            _write_rows(datasets["masked_lm_positions"], span.start, block.masked_positions, masked)
            _write_rows(datasets["masked_lm_ids"], span.start, block.masked_token_ids, masked)
        labels = samples.next_sentence_labels.astype(FIXED_DTYPES[LABELS])
        file.create_dataset(LABELS, data=labels, track_times=False)


def _write_rows(dataset: h5py.Dataset, start: int, values: NDArray[Any], offsets: NDArray[np.int64]) -> None:
    """Write the rows values[offsets[i]:offsets[i + 1]] from row `start` on, in one call of the low-level API.

    `dataset[start:end] = rows` of h5py would write variable-length rows one at a time.
    """
    cast = values.astype(h5py.check_vlen_dtype(dataset.dtype))
    rows = np.empty(len(offsets) - 1, dataset.dtype)
    for row, (first, end) in enumerate(pairwise(offsets.tolist())):
        rows[row] = cast[first:end]
    file_space = dataset.id.get_space()
    file_space.select_hyperslab((start,), rows.shape)
    dataset.id.write(h5py.h5s.create_simple(rows.shape), file_space, rows)
