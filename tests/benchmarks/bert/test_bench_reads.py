"""Cold reads: all layouts hold the same samples, what is dropped is out of memory, and disturbances are noticed."""

import mmap
import os
from pathlib import Path

import numpy as np
import pytest

from benchmarks.bert import bench_reads
from benchmarks.bert.bench_reads import Counters, drop, layouts_of, random_samples, random_store, resident_bytes
from benchmarks.bert.samples import value_fault
from benchmarks.bert.store import SampleStore
from podium.core.errors import UsageError, WorkError

SHARDS, SAMPLES = 2, 30


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """On a disk; skips where the temporary folder is in memory."""
    folder = tmp_path_factory.mktemp("reads")
    (folder / "probe").write_bytes(b"x")
    try:
        Counters.of(folder / "probe")
    except WorkError as error:
        pytest.skip(str(error))
    return folder


@pytest.fixture(scope="module")
def store(folder: Path) -> SampleStore:
    return SampleStore(random_store(folder / "store", SHARDS, SAMPLES))


def test_random_samples_are_samples() -> None:
    samples = random_samples(500, seed=3)
    assert value_fault(samples, bench_reads.VOCABULARY) is None
    masked = np.diff(samples.masked_offsets)
    assert masked.min() >= 1 and masked.max() <= 76
    for start, end in zip(samples.masked_offsets[:-1], samples.masked_offsets[1:], strict=True):
        positions = samples.masked_positions[start:end].astype(int)
        assert positions[0] >= 1 and (np.diff(positions) > 0).all()


def test_all_layouts_read_the_same_samples(folder: Path, store: SampleStore) -> None:
    layouts = layouts_of(store, folder / "layouts")
    assert len(layouts) == 7
    samples = [store.read(index) for index in range(len(store))]
    for name, layout in layouts.items():
        with layout.opened() as read:
            for index in (0, SAMPLES - 1, SAMPLES, len(store) - 1):
                one = samples[index]
                expected = sum(int(a.sum()) for a in (one.token_ids, one.masked_positions, one.masked_token_ids))
                assert read(np.array([index])) == expected + one.next_sentence_label, name
            total = read(np.arange(len(store)))
            assert total == sum(read(np.array([index])) for index in range(len(store))), name


def test_an_unknown_layout_is_refused(folder: Path, store: SampleStore) -> None:
    with pytest.raises(UsageError, match=r"--layout: found 'zarr', allowed is .*'hdf5-fixed'"):
        layouts_of(store, folder / "layouts", ["zarr"])


def test_dropped_pages_are_out_of_memory_and_read_ones_in_it(folder: Path) -> None:
    path = folder / "pages"
    path.write_bytes(bytes(20 * mmap.PAGESIZE))
    os.sync()
    mapped = np.memmap(path, np.uint8, "r")
    assert mapped.sum() == 0
    assert resident_bytes([path]) == 20 * mmap.PAGESIZE
    drop([path])  # although it is mapped
    assert resident_bytes([path]) == 0
    assert mapped[0] == 0
    assert resident_bytes([path]) >= mmap.PAGESIZE


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever other tests read from the same disk."""
    monkeypatch.setattr(bench_reads, "DISTURBED", float("inf"))


@pytest.mark.usefixtures("busy")
def test_a_cold_sample_is_counted(folder: Path) -> None:
    costs = bench_reads.bench_reads(
        None,
        folder,
        shards=SHARDS,
        samples_a_shard=SAMPLES,
        samples=4,
        batch=2,
        turns=1,
        chosen=["flat arrays, asked for ahead", "store, page faults"],
    )["a sample"]
    assert {*costs} == {"flat arrays, asked for ahead", "store, page faults"}
    for cost in costs.values():
        assert cost["requests"][0] > 0 and cost["kib"][0] >= 1 and cost["resident_kib"][0] >= 1


def test_a_disk_that_others_use_is_refused(store: SampleStore, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = iter(range(10**6))
    monkeypatch.setattr(Counters, "of", lambda _: Counters(number := next(counted), number * 2**20, number * 2**19))
    with pytest.raises(WorkError, match=r"other processes use the disk, 50% of what it read"):
        bench_reads._undisturbed(store.paths, lambda indices: len(indices), np.arange(4), 2)


@pytest.mark.usefixtures("busy")
def test_layouts_of_other_samples_are_refused(folder: Path, store: SampleStore) -> None:
    layouts_of(store, folder / "own" / "layouts", ["flat arrays, page faults"])
    file = folder / "own" / "layouts" / "flat" / f"{store.paths[0].name}.bin"
    file.write_bytes(bytes(file.stat().st_size))
    with pytest.raises(WorkError, match="hold different samples"):
        bench_reads.bench_reads(
            store.paths[0].parent,
            folder / "own",
            shards=0,
            samples_a_shard=0,
            samples=len(store),
            batch=30,
            turns=1,
            chosen=["flat arrays, page faults", "store, asked for ahead"],
        )
