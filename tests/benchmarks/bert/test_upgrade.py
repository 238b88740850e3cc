"""Conversion of stores of version 2 in place: the same samples and the same digest."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from benchmarks.bert import upgrade as upgrade_module
from benchmarks.bert.length_index import FILE
from benchmarks.bert.manifest import MANIFEST, Manifest, ManifestError, read_manifest, write_manifest
from benchmarks.bert.shard import OLDER_VERSION, Shard, create_hdf5, set_attribute, stored_arrays, write_shard
from benchmarks.bert.store import SampleStore, update_manifest
from benchmarks.bert.upgrade import has_older_shards, upgrade
from podium.core.errors import WorkError
from tests.benchmarks.bert.test_store import make_samples, write


def write_older(path: Path, **changes: Any) -> None:
    """Replace a shard by one of version 2 with the same samples."""
    shard = Shard(path)
    arrays = stored_arrays(shard.samples) | changes
    with create_hdf5(path) as file:
        for name, value in (shard.attributes | {"format_version": OLDER_VERSION}).items():
            set_attribute(file, name, value)
        for name, array in arrays.items():
            file.create_dataset(name, data=array, track_times=False)


def write_older_copy(store: Path, target: Path) -> Path:
    """A copy of a store in version 2, without a length index."""
    shutil.copytree(store, target)
    manifest = SampleStore(target).manifest
    for shard in manifest.shards:
        write_older(target / shard.name)
    (target / FILE).unlink()
    write_manifest(target, Manifest(manifest.vocabulary_sha256, manifest.max_sequence_length, manifest.shards))
    assert '"version": 1' in (target / MANIFEST).read_text(encoding="utf-8")
    return target


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store of three shards of version 2, with a manifest of version 1."""
    (tmp_path / "store").mkdir()
    for number, name in enumerate("abc"):
        write(tmp_path / "store" / f"{name}.h5", make_samples([5, 60, 7 + number], seed=number))
    update_manifest(tmp_path / "store")
    return write_older_copy(tmp_path / "store", tmp_path / "older")


def test_older_store_is_an_error_that_names_the_upgrade_command(folder: Path) -> None:
    with pytest.raises(
        WorkError, match="its format_version is 2, not 3; convert the store, or a copy of it, with `podium"
    ):
        SampleStore(folder)
    assert has_older_shards(folder)


@pytest.mark.parametrize("processes", [1, 2])
def test_upgrade_keeps_samples_and_digest(folder: Path, processes: int) -> None:
    before = read_manifest(folder)
    counted: list[None] = []
    converted, others = upgrade(folder, processes, lambda: counted.append(None))
    assert ([path.name for path in converted], others, len(counted)) == (["a.h5", "b.h5", "c.h5"], [], 3)
    store = SampleStore(folder)
    store.verify()
    assert before is not None and store.manifest == before and store.manifest.digest == before.digest
    assert (folder / FILE).exists() and not has_older_shards(folder)
    expected = folder / "expected"
    expected.mkdir()
    for number, name in enumerate("abc"):
        whole = write(expected / f"{name}.h5", make_samples([5, 60, 7 + number], seed=number))
        assert whole.read_bytes() == (folder / f"{name}.h5").read_bytes()
    assert upgrade(folder) == ([], store.paths)


def test_interrupted_upgrade_is_resumed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(path: Path, *rest: Any) -> None:
        if path.name == "b.h5":
            raise KeyboardInterrupt
        write_shard(path, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(upgrade_module, "write_shard", interrupted)
        with pytest.raises(KeyboardInterrupt):
            upgrade(folder)
    with pytest.raises(WorkError, match=r"b\.h5: .*`podium data upgrade"):
        SampleStore(folder)
    converted, others = upgrade(folder)
    assert [path.name for path in converted] == ["b.h5", "c.h5"] and [path.name for path in others] == ["a.h5"]
    SampleStore(folder).verify()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"token_ids": np.zeros(74, "<u2")}, "its content has the SHA-256"),
        ({"token_ids": np.zeros(73, "<u2")}, "token_ids has 73 elements, not 74"),
        ({"sample_offsets": np.array([0, 60, 5, 74], "<i8")}, "sample_offsets do not ascend from 0 to 74 in steps of"),
        ({"masked_offsets": np.array([1, 2, 10, 11], "<i8")}, "masked_offsets do not ascend from 0 to"),
        ({"next_sentence_labels": np.zeros(3, "<u2")}, r"next_sentence_labels is uint16 \[3\], not uint8"),
    ],
)
def test_damaged_shard_is_not_converted(folder: Path, changes: dict[str, Any], expected: str) -> None:
    write(folder / "c.h5", make_samples([5, 60, 9], seed=2))
    write_older(folder / "c.h5", **changes)
    before = (folder / "c.h5").read_bytes()
    with pytest.raises(WorkError, match=expected):
        upgrade(folder)
    assert (folder / "c.h5").read_bytes() == before
    with h5py.File(folder / "c.h5") as file:
        assert file.attrs["format_version"] == OLDER_VERSION


def test_store_with_a_missing_shard_is_not_upgraded(folder: Path) -> None:
    (folder / "c.h5").unlink()
    with pytest.raises(ManifestError, match=r"c\.h5 is missing, manifest\.json has it"):
        upgrade(folder)
    assert not (folder / FILE).exists() and has_older_shards(folder)


def test_missing_length_index_is_written_again(folder: Path) -> None:
    upgrade(folder)
    content = (folder / FILE).read_bytes()
    (folder / FILE).unlink()
    assert upgrade(folder)[0] == []
    assert (folder / FILE).read_bytes() == content


def test_upgraded_store_is_not_written_again(folder: Path) -> None:
    upgrade(folder)
    before = {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in folder.iterdir()}
    upgrade(folder)
    assert {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in folder.iterdir()} == before


def test_upgraded_store_may_be_on_a_read_only_file_system(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(*_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    upgrade(folder)
    monkeypatch.setattr(Path, "unlink", read_only)
    assert upgrade(folder)[0] == []


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir])
def test_length_index_that_is_not_a_file_is_an_error(folder: Path, make: Callable[[Path], None]) -> None:
    make(folder / FILE)
    with pytest.raises(WorkError, match=r"lengths\.bin: (is a device or a pipe|a folder exists at this path)"):
        upgrade(folder)
    assert not (folder / FILE).is_file() and '"version": 1' in (folder / MANIFEST).read_text(encoding="utf-8")
