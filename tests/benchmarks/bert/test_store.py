"""The sample store: writing and reading, and errors for damaged shards."""

import os
import re
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from benchmarks.bert import shard as shard_module
from benchmarks.bert.preparation.settings import GenerationSettings
from benchmarks.bert.samples import Samples
from benchmarks.bert.shard import Origin, Shard, write_shard
from benchmarks.bert.store import SampleStore, update_manifest
from podium.core.errors import UsageError, WorkError
from podium.core.files import remove_partial_files

SETTINGS = GenerationSettings()


def make_samples(lengths: list[int], seed: int = 0) -> Samples:
    """Random samples of the given lengths; every seventh token is masked, at least one."""
    random = np.random.default_rng(seed)
    counts = [max(1, length // 7) for length in lengths]
    positions = [np.sort(random.choice(n, c, replace=False)) for n, c in zip(lengths, counts, strict=True)]
    return Samples(
        token_ids=random.integers(0, 65_535, sum(lengths)).astype(np.uint16),
        sample_offsets=np.cumsum([0, *lengths]).astype(np.int64),
        first_segment_lengths=np.array([length // 2 for length in lengths], dtype=np.uint16),
        masked_positions=np.concatenate(positions).astype(np.uint16),
        masked_token_ids=random.integers(0, 65_535, sum(counts)).astype(np.uint16),
        masked_offsets=np.cumsum([0, *counts]).astype(np.int64),
        next_sentence_labels=random.integers(0, 2, len(lengths)).astype(np.uint8),
    )


def write(
    path: Path,
    samples: Samples | None = None,
    vocabulary: str = "ab" * 32,
    chosen: GenerationSettings = SETTINGS,
    source: str | None = None,
) -> Path:
    """Write a shard that was made from the text of its name, unless another `source` is given."""
    origin = Origin.of_text(path.stem if source is None else source, "ef" * 32, vocabulary, chosen)
    write_shard(path, samples or make_samples([5, 512, 77]), origin)
    return path


def assert_holds(shard: Shard | SampleStore, samples: Samples, start: int = 0) -> None:
    for index in range(len(samples)):
        tokens = slice(*samples.sample_offsets[index : index + 2])
        masked = slice(*samples.masked_offsets[index : index + 2])
        sample = shard.read(start + index)
        assert np.array_equal(sample.token_ids, samples.token_ids[tokens])
        assert sample.first_segment_length == samples.first_segment_lengths[index]
        assert np.array_equal(sample.masked_positions, samples.masked_positions[masked])
        assert np.array_equal(sample.masked_token_ids, samples.masked_token_ids[masked])
        assert sample.next_sentence_label == samples.next_sentence_labels[index]


@given(st.lists(st.integers(5, 512), min_size=1, max_size=20), st.integers(0, 100))
@settings(deadline=None)
def test_written_samples_are_read(tmp_path_factory: pytest.TempPathFactory, lengths: list[int], seed: int) -> None:
    samples = make_samples(lengths, seed)
    shard = Shard(write(tmp_path_factory.mktemp("shard") / "a.h5", samples))
    assert len(shard) == len(samples)
    assert shard.lengths.tolist() == lengths
    assert shard.masked_counts.tolist() == np.diff(samples.masked_offsets).tolist()
    assert shard.lengths.dtype == shard.masked_counts.dtype == np.uint16
    assert_holds(shard, samples)
    shard.verify()


def test_shard_stores_its_origin(tmp_path: Path) -> None:
    chosen = GenerationSettings(masked_lm_probability=1, seed=2**40)
    attributes = Shard(write(tmp_path / "a.h5", chosen=chosen, source="tëxt")).attributes
    assert attributes["source"] == "tëxt"
    assert attributes["vocabulary_sha256"] == "ab" * 32
    assert (attributes["samples"], attributes["tokens"], attributes["seed"]) == (3, 594, 2**40)


def test_equal_samples_give_equal_bytes(tmp_path: Path) -> None:
    one, two = (write(tmp_path / name, source="text") for name in ("a.h5", "b.h5"))
    assert one.read_bytes() == two.read_bytes()
    other = write(tmp_path / "c.h5", make_samples([5, 512, 77], seed=1), source="text")
    assert one.read_bytes() != other.read_bytes()


def test_store_concatenates_shards_by_name(tmp_path: Path) -> None:
    first, second = make_samples([5, 6, 7], seed=1), make_samples([8, 9], seed=2)
    paths = [write(tmp_path / "b.h5", second), write(tmp_path / "a.h5", first)]
    (tmp_path / ".c.h5.0123abcd.partial").write_bytes(b"unfinished")
    for store in (SampleStore(tmp_path), SampleStore(paths)):
        assert store.paths == [tmp_path / "a.h5", tmp_path / "b.h5"]
        assert len(store) == 5
        assert np.asarray(store.lengths).tolist() == [5, 6, 7, 8, 9]
        assert np.asarray(store.masked_counts).tolist() == [1] * 5
        assert (store.max_sequence_length, store.vocabulary_sha256) == (512, "ab" * 32)
        assert_holds(store, first)
        assert_holds(store, second, start=3)
        store.verify()
        for index in (-1, 5):
            with pytest.raises(IndexError, match=f"sample {index} of a store of 5"):
                store.read(index)


def test_shard_is_mapped_at_the_first_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mapped: list[Any] = []
    memmap = np.memmap

    def record(path: Path, **settings: Any) -> Any:
        mapped.append(path)
        return memmap(path, **settings)

    monkeypatch.setattr(np, "memmap", record)
    store = SampleStore([write(tmp_path / "a.h5"), write(tmp_path / "b.h5", make_samples([9], seed=1))])
    assert mapped == []
    sample = store.read(0)
    store.read(1)
    assert mapped == [tmp_path / "a.h5"]
    assert not sample.token_ids.flags.writeable
    assert not sample.token_ids.flags.owndata


def test_single_reads_use_random_access_and_verification_sequential(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the kernel's flags of the mapping: `rr` is MADV_RANDOM."""
    path = write(tmp_path / "a.h5")

    def for_random_reads(records: NDArray[np.uint16]) -> bool:
        place, found = records.ctypes.data, False
        for line in Path("/proc/self/smaps").read_text().splitlines():
            if bounds := re.match(r"([0-9a-f]+)-([0-9a-f]+) .*a\.h5$", line):
                found = int(bounds[1], 16) <= place < int(bounds[2], 16)
            elif found and line.startswith("VmFlags:"):
                return "rr" in line.split()
        raise AssertionError("the records are not mapped")

    seen = []
    unpack = shard_module.unpack
    monkeypatch.setattr(
        shard_module, "unpack", lambda records, *rest: seen.append(for_random_reads(records)) or unpack(records, *rest)
    )
    shard = Shard(path)
    assert for_random_reads(shard.records)
    shard.verify()
    assert seen == [False]


def test_incompatible_shards_are_an_error(tmp_path: Path) -> None:
    good = write(tmp_path / "a.h5")
    vocabulary = write(tmp_path / "b.h5", vocabulary="cd" * 32)
    length = write(tmp_path / "c.h5", chosen=GenerationSettings(max_sequence_length=600))
    with pytest.raises(WorkError, match=r"b\.h5: its vocabulary_sha256 is 'cdcd.*a\.h5 is 'abab"):
        SampleStore([good, vocabulary])
    with pytest.raises(WorkError, match=r"c\.h5: its max_sequence_length is 600.*a\.h5 is 512"):
        SampleStore([good, length])


def test_copied_or_swapped_shards_are_an_error(tmp_path: Path) -> None:
    one = write(tmp_path / "a.h5")
    two = write(tmp_path / "b.h5", make_samples([9], seed=1))
    shutil.copy(one, tmp_path / "c.h5")
    for source in ([one, two, tmp_path / "c.h5"], [one, tmp_path / "c.h5"]):
        with pytest.raises(WorkError, match=r"c\.h5: has the same samples as .*/a\.h5, and no sample may occur tw"):
            SampleStore(source)
    (tmp_path / "c.h5").unlink()
    one.rename(tmp_path / "swap")
    two.rename(one)
    (tmp_path / "swap").rename(two)
    with pytest.raises(WorkError, match=r"a\.h5: was made from b, and a shard has the name of that file; give it that"):
        SampleStore(tmp_path)
    with pytest.raises(WorkError, match=r"a\.h5: was made from b"):
        update_manifest(tmp_path)


@pytest.mark.parametrize(
    ("source", "name"), [("a.txt", "a.txt"), ("a.hdf5", "a"), ("a.h5", "a.h5"), ("\udcff", "\udcff")]
)
def test_shard_is_named_after_its_source(tmp_path: Path, source: str, name: str) -> None:
    SampleStore(write(tmp_path / f"{name}.h5", source=source).parent)


FIRST = {"token_ids": 30, "masked_token_ids": 31, "masked_positions": 6, "first_segment_lengths": 7}


@pytest.mark.parametrize(("name", "value"), [*FIRST.items(), ("first_segment_lengths", 0), ("next_sentence_labels", 2)])
def test_impossible_value_is_an_error_despite_a_correct_hash(tmp_path: Path, name: str, value: int) -> None:
    """In the last of three samples, of 5, 5 and 6 tokens; the vocabulary has 30 words."""
    whole = make_samples([5, 5, 6])
    arrays = {key: array % 30 if "token_ids" in key else array for key, array in vars(whole).items()}
    shard = Shard(write(tmp_path / "a.h5", Samples(**arrays)))
    shard.require_values(30)
    arrays[name] = np.append(arrays[name][:-1], np.array([value], arrays[name].dtype))
    shard = Shard(write(tmp_path / "a.h5", Samples(**arrays)))
    shard.verify()  # the hash is correct
    with pytest.raises(WorkError, match=rf"a\.h5: the shard cannot be used: sample 2: {name} has {value}, allowed"):
        shard.require_values(30)
    if "token_ids" in name:
        shard.require_values(None)  # without the vocabulary's size ids are not checked
    store = SampleStore([shard.path])
    store.vocabulary_size = 30
    with pytest.raises(WorkError, match=f"sample 2: {name} has {value}, allowed"):
        store.verify()


def test_verification_names_the_first_damaged_shard(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{n}.h5", make_samples([50 + n], seed=n)) for n in range(5)]
    store = SampleStore(paths)
    for path in paths[2:4]:
        content = bytearray(path.read_bytes())
        content[content.index(Shard(path).read(0).token_ids.tobytes())] ^= 1
        path.write_bytes(content)
    with pytest.raises(WorkError, match=r"2\.h5: the shard cannot be used: its content has the SHA-256"):
        store.verify()


def test_missing_shards_are_an_error(tmp_path: Path) -> None:
    for source in (tmp_path, tmp_path / "none", [], [tmp_path / "none.h5"]):
        with pytest.raises(UsageError, match="podium data prepare"):
            SampleStore(source)


def change(name: str, array: Any) -> Callable[[h5py.File], None]:
    """Replace a dataset."""

    def edit(file: h5py.File) -> None:
        del file[name]
        file.create_dataset(name, data=array)

    return edit


def set_attribute(name: str, value: Any) -> Callable[[h5py.File], None]:
    return lambda file: file.attrs.__setitem__(name, value)


def chunk(file: h5py.File) -> None:
    data = file["records"][:]
    del file["records"]
    file.create_dataset("records", data=data, chunks=(10,), compression="gzip")


def replace_by_external_link(file: h5py.File) -> None:
    del file["records"]
    file["records"] = h5py.ExternalLink("other.h5", "/records")


def replace_by_group(file: h5py.File) -> None:
    del file["records"]
    file.create_group("records")


# Numbers in the records of the samples of 5, 512 and 77 tokens, of which 1, 73 and 11 are masked.
NUMBERS = 594 + 2 * 85 + 2 * 3


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (set_attribute("format", np.bytes_("other")), "its format is 'other', not 'podium-samples'"),
        (set_attribute("format", "podium-samples"), "its attribute format is not of type str"),
        (set_attribute("format_version", 1), "its format_version is 1, not 3"),
        (set_attribute("tokens", 1.5), "its attribute tokens is not of type int"),
        (set_attribute("seed", [1, 2]), "its attribute seed is not of type int"),
        (set_attribute("source", np.bytes_(b"\xff")), "its attribute source is not of type str"),
        (lambda file: file.attrs.__delitem__("content_sha256"), "it has no attribute content_sha256"),
        (lambda file: file.__delitem__("masked_counts"), "it has no dataset masked_counts"),
        (replace_by_group, "it has no dataset records"),
        (replace_by_external_link, "it has no dataset records"),
        (chunk, "records is not contiguous"),
        (change("records", np.zeros(NUMBERS, "<u4")), rf"records is uint32 \[{NUMBERS}\], not uint16"),
        (change("records", np.zeros((NUMBERS // 2, 2), "<u2")), rf"records is uint16 \[{NUMBERS // 2}, 2\]"),
        (change("records", np.zeros(NUMBERS - 1, "<u2")), f"records has {NUMBERS - 1} elements, not {NUMBERS}"),
        (change("records", np.zeros(0, "<u2")), "records is not contiguous"),
        (change("lengths", np.zeros(4, "<u2")), "lengths has 4 elements, not 3"),
        (set_attribute("samples", 4), f"records has {NUMBERS} elements, not {NUMBERS + 2}"),
        (set_attribute("masked_tokens", 84), f"records has {NUMBERS} elements, not {NUMBERS - 2}"),
        (change("lengths", np.array([5, 513, 76], "<u2")), "lengths has 5 to 513, allowed are 1 to 512"),
        (change("lengths", np.array([0, 512, 82], "<u2")), "lengths has 0 to 512, allowed are 1 to 512"),
        (change("lengths", np.array([5, 512, 78], "<u2")), "lengths has a sum of 595, not 594"),
        (change("masked_counts", np.array([1, 77, 7], "<u2")), "masked_counts has 1 to 77, allowed are 1 to 76"),
    ],
)
def test_shard_with_an_invalid_format_is_an_error(
    tmp_path: Path, edit: Callable[[h5py.File], None], expected: str
) -> None:
    path = write(tmp_path / "a.h5")
    with h5py.File(path, "r+") as file:
        edit(file)
    with pytest.raises(WorkError, match=expected) as caught:
        SampleStore([path])
    assert str(caught.value).startswith(f"{path}: the shard cannot be used: ")
    assert str(caught.value).endswith("prepare it again with `podium data prepare`")


@pytest.mark.parametrize("keep", [0, 7, 100, 1000, 3000, -1])
def test_truncated_shard_is_an_error(tmp_path: Path, keep: int) -> None:
    path = write(tmp_path / "a.h5")
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(WorkError, match=r"a\.h5: the shard cannot be used: it cannot be read as HDF5"):
        Shard(path)


def test_file_that_is_not_hdf5_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    path.write_text("a text", encoding="utf-8")
    with pytest.raises(WorkError, match="cannot be read as HDF5"):
        Shard(path)


def test_flipped_bytes_are_detected_or_harmless(tmp_path: Path) -> None:
    path, samples = tmp_path / "a.h5", make_samples([5, 40, 9])
    whole = write(path, samples).read_bytes()
    random = np.random.default_rng(0)
    for place in random.integers(0, len(whole), 300).tolist():
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x41]) + whole[place + 1 :])
        try:
            shard = Shard(path)
            shard.verify()
        except WorkError:
            continue
        assert_holds(shard, samples)


# Each number of the first record: 5 tokens, a masked position, a masked token, and the trailer of 2.
@pytest.mark.parametrize("number", range(9))
def test_verify_detects_changed_content(tmp_path: Path, number: int) -> None:
    path = write(tmp_path / "a.h5", make_samples([5, 512, 77]))
    with h5py.File(path, "r+") as file:
        file["records"][number] += 1
    with pytest.raises(WorkError, match=r"a\.h5: the shard cannot be used: its content has the SHA-256"):
        SampleStore(tmp_path).verify()


@pytest.mark.parametrize("name", ["lengths", "masked_counts"])
def test_verify_detects_changed_sample_boundaries(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / "a.h5", make_samples([50, 512, 77]))
    with h5py.File(path, "r+") as file:
        file[name][0] += 1
        file[name][2] -= 1
    with pytest.raises(WorkError, match=r"a\.h5: the shard cannot be used: its content has the SHA-256"):
        SampleStore(tmp_path).verify()


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_failed_write_keeps_the_existing_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    path = write(tmp_path / "a.h5")
    before = path.read_bytes()

    def fail(*arguments: Any) -> None:
        raise error

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises((WorkError, KeyboardInterrupt)):
        write(path, make_samples([9]))
    assert [*tmp_path.iterdir()] == [path]
    assert path.read_bytes() == before


def test_path_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "way.h5").mkdir()
    for path in (tmp_path / "none" / "a.h5", tmp_path / "file" / "a.h5", tmp_path / "way.h5"):
        with pytest.raises(WorkError, match=r"cannot be written|a folder exists at this path"):
            write(path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "way.h5"]


def test_only_the_partial_files_of_a_shard_are_removed(tmp_path: Path) -> None:
    kept = [write(tmp_path / "a[1].h5"), tmp_path / ".a1.h5.0123abcd.partial"]
    kept[1].touch()
    (tmp_path / ".a[1].h5.0123abcd.partial").touch()
    remove_partial_files(tmp_path / "a[1].h5")
    assert sorted(tmp_path.iterdir()) == sorted(kept)


def test_samples_longer_than_the_settings_are_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "a.h5", make_samples([5, 6]), chosen=GenerationSettings(max_sequence_length=5))
    with pytest.raises(WorkError, match="lengths has 5 to 6, allowed are 1 to 5"):
        SampleStore([path])


def test_sparse_file_is_an_error_before_memory_is_allocated(tmp_path: Path) -> None:
    """A few KB on the disk that claim 256 million samples, whose records would take 5 GiB."""
    write(tmp_path / "whole.h5")
    count = 1 << 28
    with h5py.File(tmp_path / "whole.h5") as whole, h5py.File(tmp_path / "holes.h5", "w") as file:
        for name, value in whole.attrs.items():
            file.attrs.create(name, value, dtype=whole.attrs.get_id(name).dtype)
        file.attrs.update({"samples": count, "tokens": 5 * count, "masked_tokens": count})
        for name, length in (("records", 9 * count), ("lengths", count), ("masked_counts", count)):
            properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
            properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
            space = h5py.h5s.create_simple((length,))
            h5py.h5d.create(file.id, name.encode(), h5py.h5t.py_create(np.dtype("<u2")), space, properties)
            if name == "records":
                file[name][-1] = 1
    assert (tmp_path / "holes.h5").stat().st_blocks * 512 < 1 << 20
    tracemalloc.start()
    try:
        with pytest.raises(WorkError, match="lengths has 0 to 0, allowed are 1 to 512"):
            SampleStore([tmp_path / "holes.h5"])
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
