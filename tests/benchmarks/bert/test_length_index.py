"""The length index: packing and unpacking, the size of an entry, and errors for an index of another store."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.bert.length_index import FILE, JoinedColumn, StoredLengths, entry_dtype
from benchmarks.bert.manifest import MANIFEST
from benchmarks.bert.preparation.settings import GenerationSettings
from benchmarks.bert.store import JoinedStores, SampleStore, update_manifest
from podium.core.errors import WorkError
from tests.benchmarks.bert.test_store import make_samples, write


@given(st.integers(1, 65_535), st.integers(1, 65_535), st.data())
@settings(deadline=None)
def test_counts_are_packed_and_unpacked(longest: int, most: int, data: st.DataObject) -> None:
    lengths = np.array([*data.draw(st.lists(st.integers(1, longest), max_size=9)), longest, 1])
    masked = np.array(data.draw(st.lists(st.integers(1, most), min_size=len(lengths), max_size=len(lengths))))
    index = StoredLengths.of(lengths, masked, longest, most)
    assert len(index) == len(lengths)
    assert np.array_equal(np.asarray(index.lengths), lengths)
    assert np.array_equal(np.asarray(index.masked_counts, "int64"), masked)
    chosen = np.array([len(lengths) - 1, 0, 0])
    assert np.array_equal(index.lengths[chosen], lengths[chosen])
    assert np.array_equal(index.masked_counts[1:], masked[1:])
    by_entry = np.argsort(index.entries, kind="stable")
    assert np.array_equal(lengths[by_entry], np.sort(lengths))


def test_mlperf_limits_take_two_bytes_an_entry() -> None:
    assert entry_dtype(512, 76).itemsize == entry_dtype(128, 20).itemsize == 2
    assert entry_dtype(512, 128).itemsize == 2
    assert entry_dtype(512, 129).itemsize == 4
    assert entry_dtype(65_535, 65_535).itemsize == 4


@given(st.lists(st.lists(st.integers(1, 512), min_size=1, max_size=5), min_size=1, max_size=4), st.data())
@settings(deadline=None)
def test_joined_columns_equal_the_concatenated_array(parts: list[list[int]], data: st.DataObject) -> None:
    columns = [StoredLengths.of(np.array(part), np.array(part), 512, 600).lengths for part in parts]
    whole = np.concatenate([np.array(part) for part in parts])
    joined = JoinedColumn(columns, [0, *np.cumsum([len(part) for part in parts]).tolist()])
    assert len(joined) == len(whole)
    assert np.array_equal(np.asarray(joined), whole)
    indices = np.array(data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=9)), dtype=np.int64)
    assert np.array_equal(joined[indices], whole[indices])
    assert np.array_equal(joined[1:3], whole[1:3])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store of two shards, with three and two samples."""
    write(tmp_path / "a.h5", make_samples([5, 60, 7], seed=1))
    write(tmp_path / "b.h5", make_samples([512, 9], seed=2))
    update_manifest(tmp_path)
    return tmp_path


def test_store_reads_lengths_from_the_index_without_opening_shards(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.bert.store.Shard", None)
    store = SampleStore(folder)
    assert np.asarray(store.lengths).tolist() == [5, 60, 7, 512, 9]
    assert np.asarray(store.masked_counts).tolist() == [1, 8, 1, 73, 1]
    assert (folder / FILE).stat().st_size == 2 * 5
    assert not store.index.entries.flags.owndata and not store.index.entries.flags.writeable


def test_stores_of_different_lengths_are_joined(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    short = tmp_path_factory.mktemp("short")
    write(short / "c.h5", make_samples([100, 30], seed=3), chosen=GenerationSettings.from_lengths(128, 20))
    update_manifest(short)
    joined = JoinedStores([SampleStore(short), SampleStore(folder)])
    assert np.asarray(joined.lengths).tolist() == [100, 30, 5, 60, 7, 512, 9]
    assert joined.locate(1) == (0, 1) and joined.locate(6) == (2, 1)
    assert len(joined.read(5).token_ids) == 512


def change_entry(folder: Path) -> None:
    content = bytearray((folder / FILE).read_bytes())
    content[0] ^= 1
    (folder / FILE).write_bytes(content)


def swap(folder: Path) -> None:
    """Swap two entries: the sums of each shard and the size of the file stay the same."""
    entries = np.fromfile(folder / FILE, "<u2")
    entries[[0, 1]] = entries[[1, 0]]
    entries.tofile(folder / FILE)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (change_entry, r"its SHA-256 is [0-9a-f]{20}…, and manifest\.json lists"),
        (swap, "its SHA-256 is"),
        (lambda folder: (folder / FILE).write_bytes(b"12345678"), "it has 8 bytes, and 5 samples need 10"),
        (lambda folder: (folder / FILE).write_bytes(b""), "it has 0 bytes"),
        (lambda folder: (folder / FILE).unlink(), "it cannot be read .No such file"),
    ],
)
def test_index_that_does_not_match_its_store_is_an_error(folder: Path, change: object, expected: str) -> None:
    change(folder)  # type: ignore[operator]
    with pytest.raises(WorkError, match=expected) as caught:
        SampleStore(folder)
    assert str(caught.value).startswith(f"{folder / FILE}: the length index does not match its store: ")
    assert f"write it again with `podium data upgrade {folder}`, or, where only some" in str(caught.value)


def test_verification_compares_the_index_with_the_samples(folder: Path) -> None:
    """Index and manifest agree with each other and not with the samples."""
    listed = SampleStore(folder).index.sha256
    swap(folder)
    content = (folder / MANIFEST).read_text(encoding="utf-8")
    forged = StoredLengths(np.fromfile(folder / FILE, "<u2"), 512, 76).sha256
    (folder / MANIFEST).write_text(content.replace(listed, forged), encoding="utf-8")
    store = SampleStore(folder)
    with pytest.raises(WorkError, match=r"lengths\.bin: .* its lengths are not those of the samples in .*/a\.h5"):
        store.verify()
