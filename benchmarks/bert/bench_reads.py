"""Cold random reads: what one sample costs in each layout of a store, with nothing of it in the page cache.

Layouts take turns in one process. Before each batch of samples the pages of all files are dropped, and it is checked
that none is left; a batch is small, so that its samples are as far apart as those of a large store. Counted are read
requests and bytes of the block device, the bytes that this process has caused (where the two differ, others use the
device, and the turn is repeated) and the pages that are in memory afterwards.
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
from benchmarks.bert.lengths import usual_masked_counts, wikipedia_histogram
from benchmarks.bert.manifest import has_manifest
from benchmarks.bert.preparation.settings import GenerationSettings
from benchmarks.bert.samples import Samples, offsets_of
from benchmarks.bert.shard import SUFFIX, Origin, write_shard
from benchmarks.bert.store import SampleStore, renew_manifest
from benchmarks.bert.store_reader import BulkReader, byte_ranges
from podium.core.errors import UsageError, WorkError
from podium.core.files import make_folder, whole_file, write_whole
from podium.core.text import quoted

VOCABULARY = 30_522  # words, of which ids are drawn
SECTOR = 512  # bytes, the unit of Linux's block statistics on any device
DISTURBED = 0.01  # a share of the device's bytes that others may have read during a turn
TRIES = 5
SETTLED_SECONDS = 10.0  # for the device to finish what was asked for

VARIABLE_KEYS = ("input_ids", "segment_ids", "masked_lm_positions", "masked_lm_ids", "next_sentence_labels")
FIXED_KEYS = (*VARIABLE_KEYS, "input_mask")
# The arrays of a shard of format version 2, of which a sample is a piece each.
FLAT_ARRAYS = ("token_ids", "first_segment_lengths", "masked_positions", "masked_token_ids", "next_sentence_labels")

# Reads samples [n] of the store, and sums what identifies them.
Read = Callable[[NDArray[np.int64]], int]


@dataclass(frozen=True)
class Layout:
    """Samples in files, and how they are read from there."""

    files: Sequence[Path]
    opened: Callable[[], AbstractContextManager[Read]]


@dataclass(frozen=True)
class Cost:
    """What one cold sample costs, on average over the samples of a turn."""

    milliseconds: float
    requests: float  # that the device has completed
    kib: float  # KiB that the device has read
    resident_kib: float  # KiB of the files that are in memory afterwards


def bench_reads(
    store: Path | None,
    scratch: Path,
    *,
    shards: int,
    samples_a_shard: int,
    samples: int,
    batch: int,
    turns: int,
    chosen: Sequence[str] = (),
) -> dict[str, Any]:
    """Costs of `samples` random samples, `batch` at a time, in each layout; a store of random samples unless given.

    What is written into `scratch` stays there, for another call with the same store.
    """
    opened = SampleStore(store or random_store(scratch / f"store_{shards}x{samples_a_shard}", shards, samples_a_shard))
    layouts = layouts_of(opened, scratch / "layouts", chosen)
    os.sync()
    random = np.random.default_rng(0)
    costs: dict[str, list[Cost]] = {name: [] for name in layouts}
    repeated = 0
    with ExitStack() as stack:
        reads = {name: stack.enter_context(layout.opened()) for name, layout in layouts.items()}
        for turn in range(turns):
            indices = random.choice(len(opened), samples, replace=False)
            sums = set()
            for name in _rotated([*layouts], turn):
                cost, total, again = _undisturbed(layouts[name].files, reads[name], indices, batch)
                costs[name].append(cost)
                sums.add(total)
                repeated += again
            if len(sums) > 1:
                raise WorkError(f"{scratch}: the layouts hold different samples; remove the folder, and start again")
            print(f"turn {turn + 1} of {turns}", file=sys.stderr)
    return {
        "samples in the store": len(opened),
        "gigabytes": {name: sum(file.stat().st_size for file in one.files) / 1e9 for name, one in layouts.items()},
        "samples a turn": samples,
        "samples at a time": batch,
        "read-ahead of the device, KiB": read_ahead_kib(opened.paths[0]),
        "turns repeated, since others used the device": repeated,
        "a sample": {name: _summary(of_layout) for name, of_layout in costs.items()},
    }


def _rotated(names: Sequence[str], turn: int) -> list[str]:
    start = turn % len(names)
    return [*names[start:], *names[:start]]


def _summary(costs: Sequence[Cost]) -> dict[str, Any]:
    """Median, least and greatest of each figure."""
    return {
        field.name: [round(of(values), 4) for of in (median, min, max)]
        for field in fields(Cost)
        for values in [[getattr(cost, field.name) for cost in costs]]
    }


def _undisturbed(files: Sequence[Path], read: Read, indices: NDArray[np.int64], batch: int) -> tuple[Cost, int, int]:
    """The cost of these samples, the sum of what was read, and how often others disturbed the measurement before."""
    for attempt in range(TRIES):
        cost, total, foreign = _cost(files, read, indices, batch)
        if foreign <= DISTURBED:
            return cost, total, attempt
    raise WorkError(
        f"{files[0]}: other processes use the disk, {foreign:.0%} of what it read in a turn; wait until it is quiet, "
        "or give a --scratch on another one"
    )


def _cost(files: Sequence[Path], read: Read, indices: NDArray[np.int64], batch: int) -> tuple[Cost, int, float]:
    """`_undisturbed` without repetition; the share of the device's bytes that this process has not caused."""
    seconds = requests = total = device = own = resident = 0.0
    for start in range(0, len(indices), batch):
        here = indices[start : start + batch]
        drop(files)
        before = Counters.of(files[0])
        begin = perf_counter()
        total += read(here)
        seconds += perf_counter() - begin
        after = Counters.of(files[0])
        requests += after.requests - before.requests
        device += after.device_bytes - before.device_bytes
        own += after.process_bytes - before.process_bytes
        resident += resident_bytes(files)
    count = len(indices)
    cost = Cost(1000 * seconds / count, requests / count, device / 1024 / count, resident / 1024 / count)
    return cost, int(total), abs(device - own) / max(device, 1.0)


@dataclass(frozen=True)
class Counters:
    """What a block device has completed, and what this process has had read from all of them."""

    requests: int
    device_bytes: int
    process_bytes: int

    @classmethod
    def of(cls, file: Path) -> "Counters":
        """Of the device that a file lies on, once nothing is in flight; WorkError if it lies on none."""
        device = _device(file)
        deadline = perf_counter() + SETTLED_SECONDS
        while int((device / "inflight").read_text().split()[0]) and perf_counter() < deadline:
            sleep(0.0002)
        requests, _, sectors = map(int, (device / "stat").read_text().split()[:3])
        own = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
        return cls(requests, sectors * SECTOR, int(own["read_bytes"]))


def _device(file: Path) -> Path:
    """The block device of a file in /sys. WorkError where it is on a network or in memory."""
    number = file.stat().st_dev
    device = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
    if not (device / "inflight").is_file():
        raise WorkError(f"{file}: is on no block device, whose requests could be counted; give a --scratch on one")
    return device


def read_ahead_kib(file: Path) -> int:
    """What the kernel reads around a page that is missing, at most."""
    device = _device(file).resolve()
    queue = device if (device / "queue").is_dir() else device.parent  # of a partition: its disk's
    return int((queue / "queue" / "read_ahead_kb").read_text())


def drop(files: Sequence[Path]) -> None:
    """Have the kernel forget the files' pages, mapped ones too. WorkError if some are in memory afterwards."""
    for _ in range(TRIES):
        _unmap(files)
        for path in files:
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if not (left := resident_bytes(files)):
            return
    raise WorkError(
        f"{files[0].parent}: {left:,} bytes of its files stay in memory; see that it is not on a file system in "
        "memory, and that no other process has them mapped"
    )


def _unmap(files: Sequence[Path]) -> None:
    """Take the pages out of this process's mappings, since the kernel drops no mapped page; a later access maps them
    again."""
    names = {str(path.resolve()) for path in files}
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, _, _, _, _, *name = line.split(maxsplit=5)
        if name and name[0] in names:
            start, end = (int(place, 16) for place in span.split("-"))
            ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), mmap.MADV_DONTNEED)


def resident_bytes(files: Sequence[Path]) -> int:
    """Bytes of files that are in the page cache, by mincore(2), which answers who may write a file."""
    return mmap.PAGESIZE * sum(map(_resident_pages, files))


def _resident_pages(path: Path) -> int:
    size = path.stat().st_size
    answer = np.empty(-(-size // mmap.PAGESIZE), np.uint8)
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) as mapped:
        first = ctypes.c_char.from_buffer(mapped)
        failed = ctypes.CDLL(None).mincore(
            ctypes.byref(first), ctypes.c_size_t(size), ctypes.c_void_p(answer.ctypes.data)
        )
        del first  # the mapping cannot be closed before
    if failed:
        raise WorkError(f"{path}: the kernel does not say which of its pages are in memory")
    return int(np.count_nonzero(answer & 1))


def layouts_of(store: SampleStore, folder: Path, chosen: Sequence[str] = ()) -> dict[str, Layout]:
    """The layouts by name, written into the folder where they are not there yet: all of them unless some are chosen."""
    makers: Mapping[str, Callable[[Path], Layout]] = {
        "store, asked for ahead": lambda _: Layout(store.paths, lambda: _store_reads(store, ahead=True)),
        "store, page faults": lambda _: Layout(store.paths, lambda: _store_reads(store, ahead=False)),
        "flat arrays, asked for ahead": lambda folder: _flat(store, folder, ahead=True),
        "flat arrays, page faults": lambda folder: _flat(store, folder, ahead=False),
        "hdf5-variable": lambda folder: _exported(store, folder, "hdf5-variable", VARIABLE_KEYS),
        "hdf5-variable, row by row": lambda folder: _row_by_row(store, folder),
        "hdf5-fixed": lambda folder: _exported(store, folder, "hdf5-fixed", FIXED_KEYS),
    }
    if unknown := [name for name in chosen if name not in makers]:
        raise UsageError(f"--layout: found {quoted(unknown[0])}, allowed is {', '.join(map(repr, makers))}")
    return {name: make(folder) for name, make in makers.items() if not chosen or name in chosen}


@contextmanager
def _store_reads(store: SampleStore, *, ahead: bool) -> Iterator[Read]:
    """As the loader reads: what is needed is asked for at once, then copied; or copied by page faults alone."""
    with BulkReader(store) as reader:

        def read(indices: NDArray[np.int64]) -> int:
            if ahead:
                reader.will_need(indices)
            found = reader.gather(indices)
            return _sum(found.token_ids, found.masked_positions, found.masked_token_ids, found.next_sentence_labels)

        yield read


def _sum(*arrays: NDArray[Any]) -> int:
    return sum(int(array.sum(dtype=np.int64)) for array in arrays)


def _flat(store: SampleStore, folder: Path, *, ahead: bool) -> Layout:
    """Format version 2: in each shard one array after another, so that a sample lies in five places."""
    files = [make_folder(folder / "flat") / f"{path.name}.bin" for path in store.paths]
    starts = np.array(store.shard_starts)
    with BulkReader(store) as reader:
        for number, file in enumerate(files):
            if not file.exists():
                found = reader.gather(np.arange(starts[number], starts[number + 1]))
                write_whole(file, b"".join(getattr(found, name).tobytes() for name in FLAT_ARRAYS))
    return Layout(files, lambda: _flat_reads(store, files, starts, ahead=ahead))


@contextmanager
def _flat_reads(store: SampleStore, files: Sequence[Path], starts: NDArray[np.int64], *, ahead: bool) -> Iterator[Read]:
    # The bytes of each of the five arrays, by sample, where offset 0 is that of the shard.
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
            for begin, length in byte_ranges(begins, ends):
                os.posix_fadvise(descriptors[shard], begin, length, os.POSIX_FADV_WILLNEED)
        total = 0
        for shard, index in zip(shards.tolist(), (indices - starts[shards]).tolist(), strict=True):
            tokens, first, positions, masked, label = (
                mapped[shard][array[index] : array[index + 1]] for array in places[shard]
            )
            first.sum()
            total += _sum(tokens.view("<u2"), positions.view("<u2"), masked.view("<u2"), label)
        return total

    try:
        yield read
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _exported(store: SampleStore, folder: Path, format_name: str, keys: Sequence[str]) -> Layout:
    """The files of `podium data export`, read sample by sample with h5py."""
    files = [folder / format_name / f"{path.name.removesuffix(SUFFIX)}{EXPORTED_SUFFIX}" for path in store.paths]
    for path, file in zip(store.paths, files, strict=True):
        if not file.exists():
            export_store([path], format_name, file.parent)
    starts = np.array(store.shard_starts)
    return Layout(files, lambda: _hdf5_reads(files, starts, keys))


def _row_by_row(store: SampleStore, folder: Path) -> Layout:
    """The variable-length format as its users write it: a row of each dataset, then the next row of each.

    A sample's rows are then neighbours in the file, while an export has all rows of a dataset together.
    """
    files = [make_folder(folder / "row_by_row") / f"{path.name}{EXPORTED_SUFFIX}" for path in store.paths]
    starts = np.array(store.shard_starts)
    with BulkReader(store) as reader:
        for number, file in enumerate(files):
            if not file.exists():
                with whole_file(file) as temporary, h5py.File(temporary, "w") as written:
                    _write_rows(written, reader.gather(np.arange(starts[number], starts[number + 1])))
    return Layout(files, lambda: _hdf5_reads(files, starts, VARIABLE_KEYS))


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
def _hdf5_reads(files: Sequence[Path], starts: NDArray[np.int64], keys: Sequence[str]) -> Iterator[Read]:
    with ExitStack() as stack:
        opened = [stack.enter_context(h5py.File(file, "r")) for file in files]
        datasets = [{key: file[key] for key in keys} for file in opened]

        def read(indices: NDArray[np.int64]) -> int:
            total = 0
            for index in indices.tolist():
                shard = int(np.searchsorted(starts, index, side="right")) - 1
                row = {key: dataset[index - starts[shard]] for key, dataset in datasets[shard].items()}
                counted = ("input_ids", "masked_lm_positions", "masked_lm_ids", "next_sentence_labels")
                total += _sum(*(np.asarray(row[key]) for key in counted))
            return total

        yield read


def random_store(folder: Path, shards: int, samples: int) -> Path:
    """A folder with shards of so many samples of Wikipedia's lengths each, of random ids; those there are kept."""
    make_folder(folder)
    for number in range(shards):
        path = folder / f"part-{number:05}{SUFFIX}"
        if not path.exists():
            origin = Origin.of_text(path.name.removesuffix(SUFFIX), "00" * 32, "00" * 32, GenerationSettings())
            write_shard(path, random_samples(samples, seed=number), origin)
    if not has_manifest(folder):
        renew_manifest(folder)
    return folder


def random_samples(count: int, seed: int) -> Samples:
    """Samples of Wikipedia's lengths; ids by Zipf's law, so that files with compression are not at a disadvantage."""
    random = np.random.default_rng(seed)
    histogram = wikipedia_histogram()
    lengths = np.maximum(random.choice(len(histogram), count, p=histogram / histogram.sum()), 5)
    masked = np.minimum(usual_masked_counts(lengths), lengths - 3)
    masked_offsets = offsets_of(masked)
    number = np.arange(masked_offsets[-1]) - np.repeat(
        masked_offsets[:-1], masked
    )  # of each masked token in its sample

    def ids(size: int) -> NDArray[np.uint16]:
        found: NDArray[np.uint16] = (VOCABULARY ** random.random(size, np.float32) - 1).astype(np.uint16)
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
