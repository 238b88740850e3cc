"""Benchmark of cold random reads: the cost of one sample in each file layout, with an empty page cache.

Layouts alternate in one process. Before each batch of samples the cached pages of all files are dropped, and
mincore(2) confirms that none is left. A batch is small, so that its samples are as far apart as those of a large store.
Measured are the read requests and bytes of the block device, the bytes that this process caused, and the pages in
memory afterwards. Where the two byte counts differ, other processes use the device, and the turn is repeated.
"""

import ctypes
import mmap
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from benchmarks.bert.formats.convert import EXPORTED_SUFFIX, export_store
from benchmarks.bert.formats.rows import FIXED_DTYPES, LABELS, segment_ids
from benchmarks.bert.lengths import reference_masked_counts, wikipedia_histogram
from benchmarks.bert.manifest import has_manifest
from benchmarks.bert.preparation.settings import GenerationSettings
from benchmarks.bert.samples import Samples, offsets_of
from benchmarks.bert.shard import SUFFIX, Origin, write_shard
from benchmarks.bert.store import SampleStore, update_manifest
from benchmarks.bert.store_reader import BulkReader, coalesce_ranges
from podium.core.errors import UsageError, WorkError
from podium.core.files import atomic_file, make_folder, write_atomically
from podium.core.text import short_repr

VOCABULARY_SIZE = 30_522  # random token ids are below this
SECTOR_BYTES = 512  # bytes; the unit of Linux's block statistics, whatever the device's own sector size
MAX_FOREIGN_SHARE = 0.01  # of the device's bytes in a turn that other processes may have read
MAX_ATTEMPTS = 5
SETTLE_TIMEOUT_SECONDS = 10.0  # to wait for the device's requests in flight

VARIABLE_KEYS = ("input_ids", "segment_ids", "masked_lm_positions", "masked_lm_ids", "next_sentence_labels")
FIXED_KEYS = (*VARIABLE_KEYS, "input_mask")
# The arrays of a shard of format version 2; a sample has one slice of each.
FLAT_ARRAYS = ("token_ids", "first_segment_lengths", "masked_positions", "masked_token_ids", "next_sentence_labels")

# Reads the samples with these indices [n] and returns a checksum of their content.
SampleReader = Callable[[NDArray[np.int64]], int]


@dataclass(frozen=True)
class Layout:
    """Files with the samples of a store, and a context manager that opens a reader of them."""

    files: Sequence[Path]
    open_reader: Callable[[], AbstractContextManager[SampleReader]]


@dataclass(frozen=True)
class Cost:
    """Cost of one sample read with a cold page cache: the mean over the samples of a turn."""

    milliseconds: float
    requests: float  # completed by the device
    kib: float  # KiB read by the device
    resident_kib: float  # KiB of the files in memory afterwards


def bench_reads(
    store: Path | None,
    scratch: Path,
    *,
    shards: int,
    samples_per_shard: int,
    samples: int,
    batch: int,
    turns: int,
    chosen: Sequence[str] = (),
) -> dict[str, Any]:
    """Measure `samples` random samples, `batch` at a time, in each layout; returns a JSON document of the costs.

    Without a `store` one of random samples is generated. Files written into `scratch` are kept, and used again by
    another call with the same store. Raises WorkError where layouts have different samples, or where other processes
    use the disk.
    """
    opened = SampleStore(
        store or write_random_store(scratch / f"store_{shards}x{samples_per_shard}", shards, samples_per_shard)
    )
    layouts = build_layouts(opened, scratch / "layouts", chosen)
    os.sync()
    random = np.random.default_rng(0)
    costs: dict[str, list[Cost]] = {name: [] for name in layouts}
    repeated = 0
    with ExitStack() as stack:
        reads = {name: stack.enter_context(layout.open_reader()) for name, layout in layouts.items()}
        for turn in range(turns):
            indices = random.choice(len(opened), samples, replace=False)
            sums = set()
            for name in _rotate([*layouts], turn):
                cost, total, again = _measure_undisturbed(layouts[name].files, reads[name], indices, batch)
                costs[name].append(cost)
                sums.add(total)
                repeated += again
            if len(sums) > 1:
                raise WorkError(f"{scratch}: the layouts hold different samples; remove the folder and start again")
            print(f"turn {turn + 1} of {turns}", file=sys.stderr)
    return {
        "samples in the store": len(opened),
        "gigabytes": {name: sum(file.stat().st_size for file in one.files) / 1e9 for name, one in layouts.items()},
        "samples a turn": samples,
        "samples at a time": batch,
        "read-ahead of the device, KiB": read_ahead_kib(opened.paths[0]),
        "turns repeated, since others used the device": repeated,
        "a sample": {name: _summarize(of_layout) for name, of_layout in costs.items()},
    }


def _rotate(names: Sequence[str], turn: int) -> list[str]:
    start = turn % len(names)
    return [*names[start:], *names[:start]]


def _summarize(costs: Sequence[Cost]) -> dict[str, Any]:
    """Median, minimum and maximum of each field of Cost."""
    return {
        field.name: [round(of(values), 4) for of in (median, min, max)]
        for field in fields(Cost)
        for values in [[getattr(cost, field.name) for cost in costs]]
    }


def _measure_undisturbed(
    files: Sequence[Path], read: SampleReader, indices: NDArray[np.int64], batch: int
) -> tuple[Cost, int, int]:
    """Measure until other processes leave the device alone.

    Returns the cost, the checksum of the samples, and the number of repetitions. Raises WorkError after MAX_ATTEMPTS.
    """
    for attempt in range(MAX_ATTEMPTS):
        cost, total, foreign = _measure(files, read, indices, batch)
        if foreign <= MAX_FOREIGN_SHARE:
            return cost, total, attempt
    raise WorkError(
        f"{files[0]}: other processes use the disk, {foreign:.0%} of what it read in a turn; wait until it is idle, "
        "or use a --scratch on another disk"
    )


def _measure(
    files: Sequence[Path], read: SampleReader, indices: NDArray[np.int64], batch: int
) -> tuple[Cost, int, float]:
    """One measurement: the cost, the checksum, and the share of the device's bytes that other processes caused."""
    seconds = requests = total = device = own = resident = 0.0
    for start in range(0, len(indices), batch):
        here = indices[start : start + batch]
        drop_page_cache(files)
        before = Counters.read(files[0])
        begin = perf_counter()
        total += read(here)
        seconds += perf_counter() - begin
        after = Counters.read(files[0])
        requests += after.requests - before.requests
        device += after.device_bytes - before.device_bytes
        own += after.process_bytes - before.process_bytes
        resident += resident_bytes(files)
    count = len(indices)
    cost = Cost(1000 * seconds / count, requests / count, device / 1024 / count, resident / 1024 / count)
    return cost, int(total), abs(device - own) / max(device, 1.0)


@dataclass(frozen=True)
class Counters:
    """Cumulative counts: of one block device, and of this process over all devices."""

    requests: int
    device_bytes: int
    process_bytes: int

    @classmethod
    def read(cls, file: Path) -> "Counters":
        """Read the counters of a file's device once no request is in flight. WorkError where it has no block device."""
        device = _device(file)
        deadline = perf_counter() + SETTLE_TIMEOUT_SECONDS
        while int((device / "inflight").read_text().split()[0]) and perf_counter() < deadline:
            sleep(0.0002)
        requests, _, sectors = map(int, (device / "stat").read_text().split()[:3])
        own = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
        return cls(requests, sectors * SECTOR_BYTES, int(own["read_bytes"]))


def _device(file: Path) -> Path:
    """Folder in /sys of a file's block device. Raises WorkError for network and memory file systems."""
    number = file.stat().st_dev
    device = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
    if not (device / "inflight").is_file():
        raise WorkError(f"{file}: is not on a block device, so its requests cannot be counted; use a local --scratch")
    return device


def read_ahead_kib(file: Path) -> int:
    """KiB that the kernel reads at most around a missing page."""
    device = _device(file).resolve()
    queue = device if (device / "queue").is_dir() else device.parent  # a partition has no queue, only its disk
    return int((queue / "queue" / "read_ahead_kb").read_text())


def drop_page_cache(files: Sequence[Path]) -> None:
    """Drop the files' pages from the page cache, mapped ones too. Raises WorkError if some stay in memory."""
    for _ in range(MAX_ATTEMPTS):
        _release_mappings(files)
        for path in files:
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if not (left := resident_bytes(files)):
            return
    raise WorkError(
        f"{files[0].parent}: {left:,} bytes of its files stay in memory; use a folder that is not on a file system "
        "in memory, and end other processes that map these files"
    )


def _release_mappings(files: Sequence[Path]) -> None:
    """Remove the files' pages from this process's mappings. A later access maps them again."""
    # posix_fadvise(DONTNEED) skips pages that a process has mapped.
    names = {str(path.resolve()) for path in files}
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, _, _, _, _, *name = line.split(maxsplit=5)
        if name and name[0] in names:
            start, end = (int(place, 16) for place in span.split("-"))
            ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), mmap.MADV_DONTNEED)


def resident_bytes(files: Sequence[Path]) -> int:
    """Bytes of files in the page cache, by mincore(2), which needs write permission for the files."""
    return mmap.PAGESIZE * sum(map(_resident_pages, files))


def _resident_pages(path: Path) -> int:
    size = path.stat().st_size
    answer = np.empty(-(-size // mmap.PAGESIZE), np.uint8)
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) as mapped:
        first = ctypes.c_char.from_buffer(mapped)
        failed = ctypes.CDLL(None).mincore(
            ctypes.byref(first), ctypes.c_size_t(size), ctypes.c_void_p(answer.ctypes.data)
        )
        del first  # the mapping cannot be closed while ctypes exports its buffer
    if failed:
        raise WorkError(f"{path}: mincore failed, so its pages in memory cannot be counted")
    return int(np.count_nonzero(answer & 1))


def build_layouts(store: SampleStore, folder: Path, chosen: Sequence[str] = ()) -> dict[str, Layout]:
    """The chosen layouts by name, or all of them; missing files are written into the folder.

    Raises UsageError for an unknown name.
    """
    builders: Mapping[str, Callable[[Path], Layout]] = {
        "store, asked for ahead": lambda _: Layout(store.paths, lambda: _open_store_reader(store, ahead=True)),
        "store, page faults": lambda _: Layout(store.paths, lambda: _open_store_reader(store, ahead=False)),
        "flat arrays, asked for ahead": lambda folder: _flat_layout(store, folder, ahead=True),
        "flat arrays, page faults": lambda folder: _flat_layout(store, folder, ahead=False),
        "hdf5-variable": lambda folder: _exported_layout(store, folder, "hdf5-variable", VARIABLE_KEYS),
        "hdf5-variable, row by row": lambda folder: _row_by_row_layout(store, folder),
        "hdf5-fixed": lambda folder: _exported_layout(store, folder, "hdf5-fixed", FIXED_KEYS),
    }
    if unknown := [name for name in chosen if name not in builders]:
        raise UsageError(f"--layout: found {short_repr(unknown[0])}, allowed is {', '.join(map(repr, builders))}")
    return {name: make(folder) for name, make in builders.items() if not chosen or name in chosen}


@contextmanager
def _open_store_reader(store: SampleStore, *, ahead: bool) -> Iterator[SampleReader]:
    """Reader of a store as the data loader reads: prefetch all samples, then copy; without `ahead` only page faults."""
    with BulkReader(store) as reader:

        def read(indices: NDArray[np.int64]) -> int:
            if ahead:
                reader.prefetch(indices)
            found = reader.gather(indices)
            return _checksum(
                found.token_ids, found.masked_positions, found.masked_token_ids, found.next_sentence_labels
            )

        yield read


def _checksum(*arrays: NDArray[Any]) -> int:
    return sum(int(array.sum(dtype=np.int64)) for array in arrays)


def _flat_layout(store: SampleStore, folder: Path, *, ahead: bool) -> Layout:
    """Files like shards of format version 2: one array after another, so that a sample lies in five places."""
    files = [make_folder(folder / "flat") / f"{path.name}.bin" for path in store.paths]
    starts = np.array(store.shard_starts)
    with BulkReader(store) as reader:
        for number, file in enumerate(files):
            if not file.exists():
                found = reader.gather(np.arange(starts[number], starts[number + 1]))
                write_atomically(file, b"".join(getattr(found, name).tobytes() for name in FLAT_ARRAYS))
    return Layout(files, lambda: _open_flat_reader(store, files, starts, ahead=ahead))


@contextmanager
def _open_flat_reader(
    store: SampleStore, files: Sequence[Path], starts: NDArray[np.int64], *, ahead: bool
) -> Iterator[SampleReader]:
    # For each shard and each of its five arrays: the byte offset of every sample in the file [samples + 1].
    places: list[list[NDArray[np.int64]]] = []
    for number, start in enumerate(starts[:-1].tolist()):
        here = slice(start, int(starts[number + 1]))
        tokens = 2 * offsets_of(np.asarray(store.lengths[here]))
        masked = 2 * offsets_of(np.asarray(store.masked_counts[here]))
        samples = np.arange(here.stop - here.start + 1)
        arrays = [tokens, 2 * samples, masked, masked, samples]
        begins = offsets_of([array[-1] for array in arrays])
        places.append([array + begin for array, begin in zip(arrays, begins, strict=False)])
    mapped = [np.memmap(file, np.uint8, "r").view(np.ndarray) for file in files]
    descriptors = [os.open(file, os.O_RDONLY) for file in files]

    def read(indices: NDArray[np.int64]) -> int:
        shards = np.searchsorted(starts, indices, side="right") - 1
        for shard in np.unique(shards).tolist() if ahead else ():
            own = indices[shards == shard] - starts[shard]
            begins = np.concatenate([array[own] for array in places[shard]])
            ends = np.concatenate([array[own + 1] for array in places[shard]])
            for begin, length in coalesce_ranges(begins, ends):
                os.posix_fadvise(descriptors[shard], begin, length, os.POSIX_FADV_WILLNEED)
        total = 0
        for shard, index in zip(shards.tolist(), (indices - starts[shards]).tolist(), strict=True):
            tokens, first, positions, masked, label = (
                mapped[shard][array[index] : array[index + 1]] for array in places[shard]
            )
            first.sum()
            total += _checksum(tokens.view("<u2"), positions.view("<u2"), masked.view("<u2"), label)
        return total

    try:
        yield read
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _exported_layout(store: SampleStore, folder: Path, format_name: str, keys: Sequence[str]) -> Layout:
    """Files written by `podium data export`, read sample by sample with h5py."""
    files = [folder / format_name / f"{path.name.removesuffix(SUFFIX)}{EXPORTED_SUFFIX}" for path in store.paths]
    for path, file in zip(store.paths, files, strict=True):
        if not file.exists():
            export_store([path], format_name, file.parent)
    starts = np.array(store.shard_starts)
    return Layout(files, lambda: _open_hdf5_reader(files, starts, keys))


def _row_by_row_layout(store: SampleStore, folder: Path) -> Layout:
    """The variable-length HDF5 format, written sample by sample instead of dataset by dataset.

    The rows of a sample are then neighbours in the file, while an export has all rows of a dataset together.
    """
    files = [make_folder(folder / "row_by_row") / f"{path.name}{EXPORTED_SUFFIX}" for path in store.paths]
    starts = np.array(store.shard_starts)
    with BulkReader(store) as reader:
        for number, file in enumerate(files):
            if not file.exists():
                with atomic_file(file) as temporary, h5py.File(temporary, "w") as written:
                    _write_rows(written, reader.gather(np.arange(starts[number], starts[number + 1])))
    return Layout(files, lambda: _open_hdf5_reader(files, starts, VARIABLE_KEYS))


def _write_rows(file: h5py.File, samples: Samples) -> None:
    tokens, masked = samples.sample_offsets.tolist(), samples.masked_offsets.tolist()
    columns = []
    for name, values, offsets in (
        ("input_ids", samples.token_ids, tokens),
        ("segment_ids", segment_ids(samples), tokens),
        ("masked_lm_positions", samples.masked_positions, masked),
        ("masked_lm_ids", samples.masked_token_ids, masked),
    ):
        dataset = file.create_dataset(name, (len(samples),), h5py.vlen_dtype(FIXED_DTYPES[name]))
        row = np.empty(1, dataset.dtype)
        columns.append((dataset.id, dataset.id.get_space(), row, values.astype(FIXED_DTYPES[name]), offsets))
    one = h5py.h5s.create_simple((1,))
    for number in range(len(samples)):
        for dataset, place, row, values, offsets in columns:
            row[0] = values[offsets[number] : offsets[number + 1]]
            place.select_hyperslab((number,), (1,))
            dataset.write(one, place, row)
    file.create_dataset(LABELS, data=samples.next_sentence_labels.astype(FIXED_DTYPES[LABELS]))


@contextmanager
def _open_hdf5_reader(files: Sequence[Path], starts: NDArray[np.int64], keys: Sequence[str]) -> Iterator[SampleReader]:
    with ExitStack() as stack:
        opened = [stack.enter_context(h5py.File(file, "r")) for file in files]
        datasets = [{key: file[key] for key in keys} for file in opened]

        def read(indices: NDArray[np.int64]) -> int:
            total = 0
            for index in indices.tolist():
                shard = int(np.searchsorted(starts, index, side="right")) - 1
                row = {key: dataset[index - starts[shard]] for key, dataset in datasets[shard].items()}
                counted = ("input_ids", "masked_lm_positions", "masked_lm_ids", "next_sentence_labels")
                total += _checksum(*(np.asarray(row[key]) for key in counted))
            return total

        yield read


def write_random_store(folder: Path, shards: int, samples: int) -> Path:
    """Write a store of `shards` shards with `samples` random samples each, keeping existing shards; its folder."""
    make_folder(folder)
    for number in range(shards):
        path = folder / f"part-{number:05}{SUFFIX}"
        if not path.exists():
            origin = Origin.of_text(path.name.removesuffix(SUFFIX), "00" * 32, "00" * 32, GenerationSettings())
            write_shard(path, random_samples(samples, seed=number), origin)
    if not has_manifest(folder):
        update_manifest(folder)
    return folder


def random_samples(count: int, seed: int) -> Samples:
    """`count` random samples of Wikipedia's lengths."""
    random = np.random.default_rng(seed)
    histogram = wikipedia_histogram()
    lengths = np.maximum(random.choice(len(histogram), count, p=histogram / histogram.sum()), 5)
    masked = np.minimum(reference_masked_counts(lengths), lengths - 3)
    masked_offsets = offsets_of(masked)
    # index of each masked token within its sample
    number = np.arange(masked_offsets[-1]) - np.repeat(masked_offsets[:-1], masked)

    def ids(size: int) -> NDArray[np.uint16]:
        # log-uniform, as by Zipf's law: uniform ids would put compressed layouts at a disadvantage
        found: NDArray[np.uint16] = (VOCABULARY_SIZE ** random.random(size, np.float32) - 1).astype(np.uint16)
        return found

    return Samples(
        token_ids=ids(int(lengths.sum())),
        sample_offsets=offsets_of(lengths),
        first_segment_lengths=random.integers(2, lengths - 1).astype(np.uint16),
        masked_positions=(1 + number * np.repeat((lengths - 1) // masked, masked)).astype(np.uint16),
        masked_token_ids=ids(int(masked_offsets[-1])),
        masked_offsets=masked_offsets,
        next_sentence_labels=random.integers(0, 2, count).astype(np.uint8),
    )
