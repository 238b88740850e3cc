"""Bulk reading: equal to single reads, and prefetch requests cover the bytes that are read."""

import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from benchmarks.bert import records, store_reader
from benchmarks.bert.preparation.settings import GenerationSettings
from benchmarks.bert.records import record_lengths
from benchmarks.bert.samples import SAMPLE_DTYPES, Samples
from benchmarks.bert.shard import Origin, write_shard
from benchmarks.bert.store import SampleStore
from benchmarks.bert.store_reader import BLOCK_SAMPLES, BulkReader, coalesce_ranges
from podium.core.errors import WorkError

COUNTS = (3, 2 * BLOCK_SAMPLES + 5, BLOCK_SAMPLES, 1)  # samples of each shard


def write(path: Path, count: int) -> Path:
    random = np.random.default_rng(count)
    lengths = random.integers(5, 500, count)
    masked = np.maximum(1, lengths // 7)
    positions = [np.arange(m) * (n // m) + random.integers(0, n // m) for n, m in zip(lengths, masked, strict=True)]
    samples = Samples(
        token_ids=random.integers(0, 65_536, lengths.sum()).astype(np.uint16),
        sample_offsets=np.cumsum([0, *lengths]),
        first_segment_lengths=random.integers(1, lengths + 1).astype(np.uint16),
        masked_positions=np.concatenate(positions).astype(np.uint16),
        masked_token_ids=random.integers(0, 65_536, masked.sum()).astype(np.uint16),
        masked_offsets=np.cumsum([0, *masked]),
        next_sentence_labels=random.integers(0, 2, count).astype(np.uint8),
    )
    write_shard(path, samples, Origin.of_text("text", "ef" * 32, "ab" * 32, GenerationSettings()))
    return path


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> SampleStore:
    folder = tmp_path_factory.mktemp("bulk")
    return SampleStore([write(folder / f"{number}.h5", count) for number, count in enumerate(COUNTS)])


@pytest.fixture(scope="module")
def reader(store: SampleStore) -> Iterator[BulkReader]:
    with BulkReader(store) as opened:
        yield opened


INDICES = st.lists(st.integers(0, sum(COUNTS) - 1), max_size=30).map(lambda given: np.array(given, dtype=np.int64))


def assert_holds(samples: Samples, store: SampleStore, indices: np.ndarray) -> None:
    assert len(samples) == len(indices) == len(samples.first_segment_lengths)
    tokens, masked = samples.sample_offsets, samples.masked_offsets
    assert (tokens[0], tokens[-1], len(tokens)) == (0, len(samples.token_ids), len(indices) + 1)
    assert (masked[0], masked[-1], len(masked)) == (0, len(samples.masked_token_ids), len(indices) + 1)
    for place, index in enumerate(indices.tolist()):
        expected = store.read(index)
        assert np.array_equal(samples.token_ids[tokens[place] : tokens[place + 1]], expected.token_ids)
        here = slice(masked[place], masked[place + 1])
        assert np.array_equal(samples.masked_positions[here], expected.masked_positions)
        assert np.array_equal(samples.masked_token_ids[here], expected.masked_token_ids)
        assert samples.first_segment_lengths[place] == expected.first_segment_length
        assert samples.next_sentence_labels[place] == expected.next_sentence_label
    assert {name: getattr(samples, name).dtype for name in SAMPLE_DTYPES} == dict(SAMPLE_DTYPES)
    assert all(getattr(samples, name).flags.owndata for name in SAMPLE_DTYPES)


@given(INDICES)
@settings(deadline=None)
def test_gather_equals_single_reads(store: SampleStore, reader: BulkReader, indices: np.ndarray) -> None:
    assert_holds(reader.gather(indices), store, indices)


def test_gather_reads_all_samples_in_reverse(store: SampleStore, reader: BulkReader) -> None:
    indices = np.arange(len(store))[::-1].copy()
    assert_holds(reader.gather(indices), store, indices)


@given(INDICES)
@settings(deadline=None)
def test_prefetch_requests_exactly_the_bytes_that_are_read(
    store: SampleStore, reader: BulkReader, indices: np.ndarray
) -> None:
    """No byte is requested twice; with gap 0 no other byte is requested."""
    requested: list[tuple[int, int, int]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            store_reader, "coalesce_ranges", lambda starts, ends: coalesce_ranges(starts, ends, gap=0, piece=100)
        )
        patch.setattr(os, "posix_fadvise", lambda file, start, length, _: requested.append((file, start, length)))
        assert reader.prefetch(indices) == sum(length for _, _, length in requested)
    covered: dict[str, set[int]] = {}
    for file, start, length in requested:
        ranges = covered.setdefault(os.path.realpath(f"/proc/self/fd/{file}"), set())
        assert ranges.isdisjoint(range(start, start + length))
        ranges.update(range(start, start + length))
    first = np.cumsum([0, *COUNTS])
    needed: dict[str, set[int]] = {}
    for index in set(indices.tolist()):
        number = int(np.searchsorted(first, index, side="right")) - 1
        shard, inside = store.shards[number], index - first[number]
        before = record_lengths(shard.lengths[:inside], shard.masked_counts[:inside]).sum()
        size = record_lengths(shard.lengths[inside : inside + 1], shard.masked_counts[inside : inside + 1])[0]
        start = shard.dataset_ranges["records"].start + 2 * int(before)
        needed.setdefault(str(shard.path.resolve()), set()).update(range(start, start + 2 * int(size)))
    assert covered == needed


def test_neighbouring_samples_share_a_request(reader: BulkReader, monkeypatch: pytest.MonkeyPatch) -> None:
    requested: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda _, start, length, advice: requested.append((start, advice)))
    reader.prefetch(np.arange(3, 103, 2))  # gaps below MAX_GAP_BYTES, in all less than MAX_REQUEST_BYTES
    assert len(requested) == 1
    assert requested[0][1] == os.POSIX_FADV_WILLNEED


@given(
    st.lists(st.tuples(st.integers(0, 400), st.integers(1, 30)), min_size=1, max_size=20),
    st.integers(0, 20),
    st.integers(1, 64),
)
@example([(0, 10), (15, 5)], 4, 64)
@example([(0, 10), (15, 5)], 5, 64)
@settings(deadline=None)
def test_ranges_are_joined_over_small_gaps_and_cut_into_pieces(
    given: list[tuple[int, int]], gap: int, piece: int
) -> None:
    starts, lengths = (np.array(each, dtype=np.int64) for each in zip(*given, strict=True))
    found = list(coalesce_ranges(starts, starts + lengths, gap, piece))
    needed = sorted({byte for start, length in given for byte in range(start, start + length)})
    wanted = {
        byte
        for one, other in zip(needed, [*needed[1:], needed[-1]], strict=True)
        for byte in range(one, other + 1 if other - one - 1 <= gap else one + 1)
    }
    assert [byte for start, length in found for byte in range(start, start + length)] == sorted(wanted)
    assert all(1 <= length <= piece for _, length in found)
    runs = sum(byte - 1 not in wanted for byte in wanted)
    assert len(found) <= runs + len(wanted) // piece


@pytest.mark.parametrize("index", [-1, sum(COUNTS)])
def test_index_outside_of_the_store_is_an_error(reader: BulkReader, index: int) -> None:
    for read in (reader.gather, reader.prefetch):
        with pytest.raises(IndexError, match=f"of a store of {sum(COUNTS)}"):
            read(np.array([0, index]))


def test_token_id_beyond_the_vocabulary_is_an_error_that_names_the_sample(store: SampleStore) -> None:
    """Without the vocabulary's size every token id is accepted."""
    indices = np.array([70, 3])  # samples 67 and 0 of shard 1
    fresh = SampleStore(store.paths)
    largest = int(fresh.read(70).token_ids.max())
    with BulkReader(fresh) as reader:
        reader.gather(indices)
        fresh.vocabulary_size = largest
        with pytest.raises(
            WorkError, match=rf"1\.h5: sample 67: token_ids has {largest}, allowed are 0 to {largest - 1};"
        ):
            reader.gather(np.array([70]))
        again = pickle.loads(pickle.dumps(fresh))
        with BulkReader(again) as other, pytest.raises(WorkError, match=f"token_ids has {largest}"):
            other.gather(np.array([70]))


def test_creating_a_reader_opens_no_shard(store: SampleStore, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = SampleStore(store.paths)

    def refuse(*_: object, **__: object) -> Any:
        raise AssertionError("a shard was opened")

    with monkeypatch.context() as patch:
        patch.setattr(np, "memmap", refuse)
        patch.setattr(os, "open", refuse)
        reader = BulkReader(fresh)
    assert_holds(reader.gather(np.array([70, 0])), fresh, np.array([70, 0]))


def descriptors_of(store: SampleStore) -> int:
    """Number of descriptors of the store's files in this process; mappings have one too."""
    paths = {path.resolve() for path in store.paths}
    return sum(descriptor.resolve() in paths for descriptor in Path("/proc/self/fd").iterdir())


def test_closed_files_are_opened_again(store: SampleStore) -> None:
    before = descriptors_of(store)
    with BulkReader(store) as reader:
        for indices in ([0, 100, sum(COUNTS) - 1], [1]):
            reader.prefetch(np.array(indices))
            assert descriptors_of(store) == before + 3
        reader.close()
        assert descriptors_of(store) == before
        assert reader.prefetch(np.array([1])) > 0
        assert descriptors_of(store) == before + 1
    assert descriptors_of(store) == before


def test_missing_shard_is_an_error(tmp_path: Path) -> None:
    store = SampleStore([write(tmp_path / "a.h5", 5)])
    reader = BulkReader(store)
    store.paths[0].unlink()
    with pytest.raises(WorkError, match=r"a\.h5: the shard cannot be opened \(No such file"):
        reader.prefetch(np.array([1]))
    with pytest.raises(WorkError, match=r"a\.h5: the shard cannot be memory-mapped"):
        reader.gather(np.array([1]))


def test_copying_releases_the_interpreter_lock() -> None:
    """By numba's option: another thread runs while a page is read from the disk."""
    for function in (records._unpack_at, store_reader._record_offsets):
        assert function.targetoptions["nogil"]  # type: ignore[attr-defined]
