"""Benchmark of cold reads: equal samples in all layouts, dropped page cache, detection of other disk users."""

import mmap
import os
from pathlib import Path

import numpy as np
import pytest

from benchmarks.bert import bench_reads
from benchmarks.bert.bench_reads import (
    Counters,
    build_layouts,
    drop_page_cache,
    random_samples,
    resident_bytes,
    write_random_store,
)
from benchmarks.bert.samples import find_invalid_value
from benchmarks.bert.store import SampleStore
from podium.core.errors import UsageError, WorkError

SHARDS, SAMPLES = 2, 30


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder on a block device; skips where the temporary folder is in memory."""
    folder = tmp_path_factory.mktemp("reads")
    (folder / "probe").write_bytes(b"x")
    try:
        Counters.read(folder / "probe")
    except WorkError as error:
        pytest.skip(str(error))
    return folder


@pytest.fixture(scope="module")
def store(folder: Path) -> SampleStore:
    return SampleStore(write_random_store(folder / "store", SHARDS, SAMPLES))


def test_random_samples_have_valid_values() -> None:
    samples = random_samples(500, seed=3)
    assert find_invalid_value(samples, bench_reads.VOCABULARY_SIZE) is None
    masked = np.diff(samples.masked_offsets)
    assert masked.min() >= 1 and masked.max() <= 76
    for start, end in zip(samples.masked_offsets[:-1], samples.masked_offsets[1:], strict=True):
        positions = samples.masked_positions[start:end].astype(int)
        assert positions[0] >= 1 and (np.diff(positions) > 0).all()


def test_all_layouts_read_the_same_samples(folder: Path, store: SampleStore) -> None:
    layouts = build_layouts(store, folder / "layouts")
    assert len(layouts) == 7
    samples = [store.read(index) for index in range(len(store))]
    for name, layout in layouts.items():
        with layout.open_reader() as read:
            for index in (0, SAMPLES - 1, SAMPLES, len(store) - 1):
                one = samples[index]
                expected = sum(int(a.sum()) for a in (one.token_ids, one.masked_positions, one.masked_token_ids))
                assert read(np.array([index])) == expected + one.next_sentence_label, name
            total = read(np.arange(len(store)))
            assert total == sum(read(np.array([index])) for index in range(len(store))), name


def test_unknown_layout_is_an_error(folder: Path, store: SampleStore) -> None:
    with pytest.raises(UsageError, match=r"--layout: found 'zarr', allowed is .*'hdf5-fixed'"):
        build_layouts(store, folder / "layouts", ["zarr"])


def test_dropped_pages_leave_the_page_cache_and_read_pages_return(folder: Path) -> None:
    path = folder / "pages"
    path.write_bytes(bytes(20 * mmap.PAGESIZE))
    os.sync()
    mapped = np.memmap(path, np.uint8, "r")
    assert mapped.sum() == 0
    assert resident_bytes([path]) == 20 * mmap.PAGESIZE
    drop_page_cache([path])  # also drops mapped pages
    assert resident_bytes([path]) == 0
    assert mapped[0] == 0
    assert resident_bytes([path]) >= mmap.PAGESIZE


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accept reads of other tests from the same disk."""
    monkeypatch.setattr(bench_reads, "MAX_FOREIGN_SHARE", float("inf"))


@pytest.mark.usefixtures("busy")
def test_cold_reads_count_requests_and_bytes(folder: Path) -> None:
    costs = bench_reads.bench_reads(
        None,
        folder,
        shards=SHARDS,
        samples_per_shard=SAMPLES,
        samples=4,
        batch=2,
        turns=1,
        chosen=["flat arrays, asked for ahead", "store, page faults"],
    )["a sample"]
    assert {*costs} == {"flat arrays, asked for ahead", "store, page faults"}
    for cost in costs.values():
        assert cost["requests"][0] > 0 and cost["kib"][0] >= 1 and cost["resident_kib"][0] >= 1


def test_disk_used_by_other_processes_is_an_error(store: SampleStore, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = iter(range(10**6))
    monkeypatch.setattr(Counters, "read", lambda _: Counters(number := next(counted), number * 2**20, number * 2**19))
    with pytest.raises(WorkError, match=r"other processes use the disk, 50% of what it read"):
        bench_reads._measure_undisturbed(store.paths, lambda indices: len(indices), np.arange(4), 2)


@pytest.mark.usefixtures("busy")
def test_layouts_with_different_samples_are_an_error(folder: Path, store: SampleStore) -> None:
    build_layouts(store, folder / "own" / "layouts", ["flat arrays, page faults"])
    file = folder / "own" / "layouts" / "flat" / f"{store.paths[0].name}.bin"
    file.write_bytes(bytes(file.stat().st_size))
    with pytest.raises(WorkError, match="hold different samples"):
        bench_reads.bench_reads(
            store.paths[0].parent,
            folder / "own",
            shards=0,
            samples_per_shard=0,
            samples=len(store),
            batch=30,
            turns=1,
            chosen=["flat arrays, page faults", "store, asked for ahead"],
        )
