"""Staging: complete copies, interrupted copies, damaged sources and targets, and files that must not be replaced."""

import errno
import json
import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.bert import length_index, staging
from benchmarks.bert.manifest import MANIFEST, MARKER, Manifest, ManifestError, NodePart, ShardEntry, mark_unfinished
from benchmarks.bert.staging import needed_shards, stage_store
from benchmarks.bert.store import SampleStore, update_manifest
from podium.core.errors import Interrupted, PodiumError, UsageError, WorkError
from tests.benchmarks.bert.test_store import make_samples, write
from tests.benchmarks.bert.test_upgrade import write_older

NAMES = ("a.h5", "b.h5", "c.h5", "d.h5")
FILES = (*NAMES, length_index.FILE)  # in the order in which they are copied
Change = Callable[[Path], None]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A store of four shards, and one file that does not belong to it."""
    folder = tmp_path / "source"
    folder.mkdir()
    for number, name in enumerate(NAMES):
        write(folder / name, make_samples([5, 60, 7 + number], seed=number))
    update_manifest(folder)
    (folder / "notes.txt").write_text("foreign")
    return folder


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "local" / "target"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def flip(path: Path) -> None:
    """Change one token."""
    with h5py.File(path, "r") as file:
        place = file["records"].id.get_offset()
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def flip_last(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def assert_is_copy(target: Path, source: Path) -> None:
    """Assert that the target has all files of the store and no other."""
    assert contents(target) == {name: data for name, data in contents(source).items() if name != "notes.txt"}
    copy = SampleStore(target)
    copy.verify()
    assert copy.manifest == SampleStore(source).manifest


@pytest.mark.parametrize("workers", [1, 8])
def test_copy_equals_the_store(source: Path, target: Path, workers: int) -> None:
    sizes: list[int] = []
    read: list[int] = []
    staged = stage_store(source, target, workers=workers, on_start=sizes.append, on_bytes=read.append)
    assert_is_copy(target, source)
    assert (staged.copied, staged.kept, staged.left_out) == (FILES, (), 0)
    assert sizes == [sum(read)] == [sum((source / name).stat().st_size for name in staged.copied)]
    before = {path: path.stat().st_mtime_ns for path in target.iterdir()}
    again = stage_store(source, target)
    assert (again.copied, again.kept) == ((), FILES)
    assert {path: path.stat().st_mtime_ns for path in target.iterdir()} == before


def test_damaged_length_index_is_an_error(source: Path, target: Path) -> None:
    flip_last(source / length_index.FILE)
    with pytest.raises(WorkError, match=rf"source/{length_index.FILE}: cannot be copied: its SHA-256 is not the one"):
        stage_store(source, target)
    flip_last(source / length_index.FILE)
    stage_store(source, target)
    assert_is_copy(target, source)
    flip_last(target / length_index.FILE)
    with pytest.raises(WorkError, match=rf"target/{length_index.FILE}: already exists .* its SHA-256 is not"):
        stage_store(source, target)


@pytest.mark.parametrize("number", range(len(FILES)))
def test_killed_copy_is_unusable_until_resumed(source: Path, target: Path, number: int) -> None:
    """Killed in the middle of file `number`, for each of the files."""

    def copy_until_killed() -> None:
        begun: list[object] = []
        copy_bytes = staging._copy_bytes

        def copy(*arguments: Any) -> str:
            begun.append(arguments)
            if len(begun) > number:
                arguments[1].write_bytes(b"half")  # the temporary file
                os.kill(os.getpid(), signal.SIGKILL)
            return copy_bytes(*arguments)

        staging._copy_bytes = copy
        stage_store(source, target, workers=1)

    process = multiprocessing.get_context("fork").Process(target=copy_until_killed)
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert list(target.glob(".*.partial"))
    with pytest.raises(PodiumError):
        SampleStore(target)
    staged = stage_store(source, target)
    assert staged.kept == FILES[:number]
    assert_is_copy(target, source)


def test_copy_without_its_manifest_is_unusable_until_resumed(
    source: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise Interrupted("interrupted")

    with monkeypatch.context() as patch:
        patch.setattr(staging, "write_manifest", interrupt)
        with pytest.raises(Interrupted):
            stage_store(source, target)
    with pytest.raises(ManifestError):
        SampleStore(target)
    assert stage_store(source, target).copied == ()
    assert_is_copy(target, source)


def test_full_disk_is_an_error_before_the_copy(source: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging.shutil, "disk_usage", lambda _: SimpleNamespace(free=1_000_000))
    with pytest.raises(WorkError, match=r"the disk is full: the copy needs 1\.\d MB more, and it has 1\.0 MB free"):
        stage_store(source, target)
    assert contents(target) == {}


def test_disk_that_fills_up_keeps_complete_files(source: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    write_some = os.write

    def write_until_full(descriptor: int, data: Any) -> int:
        written.append(descriptor)
        if len(written) > 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write_some(descriptor, data)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write_until_full)
        with pytest.raises(WorkError, match=r"target/c\.h5: the disk is full"):
            stage_store(source, target, workers=1)
    assert contents(target).keys() == {"a.h5", "b.h5", MARKER}
    assert stage_store(source, target).kept == ("a.h5", "b.h5")
    assert_is_copy(target, source)


def test_written_bytes_are_read_back_from_the_disk(source: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_some = os.write

    def write_wrongly(descriptor: int, data: Any) -> int:
        changed = bytearray(data)
        changed[len(changed) // 2 :] = bytes(len(changed) - len(changed) // 2)
        return write_some(descriptor, changed)

    monkeypatch.setattr(os, "write", write_wrongly)
    with pytest.raises(WorkError, match=r"target/a\.h5: the disk returns other bytes than were written"):
        stage_store(source, target, workers=1)
    assert contents(target).keys() == {MARKER}


def remove(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:1000])


def replace(path: Path) -> None:
    write(path, make_samples([5, 60, 8], seed=77))


@pytest.mark.parametrize("change", [flip, remove, cut, replace])
def test_corrupt_source_is_an_error(source: Path, target: Path, change: Change) -> None:
    change(source / "b.h5")
    with pytest.raises(WorkError, match=r"source/b\.h5: .*podium data verify .*source`$") as raised:
        stage_store(source, target)
    assert raised.value.exit_code == 1 and ".partial" not in str(raised.value)
    assert not (target / "b.h5").exists() and not (target / MANIFEST).exists()


@pytest.mark.parametrize("change", [flip, cut, replace])
def test_changed_target_is_an_error_and_is_kept(source: Path, target: Path, change: Change) -> None:
    stage_store(source, target)
    change(target / "b.h5")
    before = contents(target)
    with pytest.raises(
        WorkError, match=r"target/b\.h5: already exists and is not the one in .*source: .* not replaced"
    ):
        stage_store(source, target)
    assert contents(target) == before


def test_missing_shard_is_copied_again(source: Path, target: Path) -> None:
    stage_store(source, target)
    (target / "c.h5").unlink()
    assert stage_store(source, target).copied == ("c.h5",)
    assert_is_copy(target, source)


def test_copy_is_marked_unfinished_while_it_is_completed(source: Path, target: Path) -> None:
    stage_store(source, target)
    (target / "c.h5").unlink()
    seen: list[bool] = []
    stage_store(source, target, workers=1, on_bytes=lambda _: seen.append((target / MARKER).exists()))
    assert set(seen) == {True}
    assert_is_copy(target, source)


def test_shards_copied_by_other_means_are_completed_to_a_store(source: Path, target: Path) -> None:
    shutil.copytree(source, target, ignore=shutil.ignore_patterns(MANIFEST, "notes.txt"))
    assert stage_store(source, target).copied == ()
    assert_is_copy(target, source)


def test_copying_stops_after_a_failure(source: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After one shard fails, copies in progress stop and the last one does not start."""
    flip(source / "a.h5")
    stop_requested: dict[str, bool] = {}
    copy = staging._copy

    def copy_later(file: Any, stopped: Event, *rest: Any) -> None:
        if file.source.name != "a.h5":
            stop_requested[file.source.name] = stopped.wait(20)
        copy(file, stopped, *rest)

    monkeypatch.setattr(staging, "_copy", copy_later)
    with pytest.raises(WorkError, match=r"source/a\.h5"):
        stage_store(source, target, workers=2)
    assert set(stop_requested.values()) == {True} and "d.h5" not in stop_requested
    assert contents(target).keys() == {MARKER}


def test_foreign_file_with_a_shards_name_is_kept(source: Path, target: Path) -> None:
    target.mkdir(parents=True)
    (target / "c.h5").write_text("mine")
    with pytest.raises(WorkError, match=r"target/c\.h5: already exists"):
        stage_store(source, target)
    assert (target / "c.h5").read_text() == "mine"
    (target / "c.h5").unlink()
    (target / "c.h5").symlink_to(source / "c.h5")
    with pytest.raises(WorkError, match=r"target/c\.h5: already exists .*: it is a link"):
        stage_store(source, target)


def test_file_created_during_the_copy_is_kept(source: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy_bytes = staging._copy_bytes

    def copy(file: Any, *rest: Any) -> str:
        file.target.write_text("mine")
        return copy_bytes(file, *rest)

    monkeypatch.setattr(staging, "_copy_bytes", copy)
    with pytest.raises(WorkError, match=r"another process created it during the copy"):
        stage_store(source, target, workers=1)
    assert (target / "a.h5").read_text() == "mine"


def test_other_files_in_the_target_are_kept(source: Path, target: Path) -> None:
    target.mkdir(parents=True)
    for name in ("notes.txt", ".other.0123abcd.partial"):
        (target / name).write_text("mine")
    stage_store(source, target)
    assert [(target / name).read_text() for name in ("notes.txt", ".other.0123abcd.partial")] == ["mine"] * 2
    SampleStore(target).verify()


def test_target_with_another_store_is_an_error(source: Path, target: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    write(other / "a.h5", make_samples([9, 9], seed=9))
    update_manifest(other)
    before = contents(other)
    with pytest.raises(UsageError, match=r"other: holds another store \(.*a\.h5"):
        stage_store(source, other)
    (other / MANIFEST).unlink()
    (other / "a.h5").rename(other / "z.h5")
    with pytest.raises(UsageError, match=r"other: holds another store, with z\.h5"):
        stage_store(source, other)
    assert contents(other) == {"z.h5": before["a.h5"], length_index.FILE: before[length_index.FILE]}


def test_target_that_overlaps_the_source_is_an_error(source: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(source)
    for wrong in (source, source / "inside", tmp_path, tmp_path / "link", tmp_path / "link" / "inside"):
        before = contents(source)
        with pytest.raises(UsageError, match=r"is the store .*, or one contains the other"):
            stage_store(source, wrong)
        assert contents(source) == before


def test_unfinished_source_is_an_error(source: Path, target: Path) -> None:
    mark_unfinished(source)
    with pytest.raises(ManifestError, match=MARKER):
        stage_store(source, target)
    assert not target.exists()


def test_interruption_leaves_no_partial_file(source: Path, target: Path) -> None:
    def interrupt(_: int) -> None:
        raise Interrupted("interrupted")

    with pytest.raises(Interrupted):
        stage_store(source, target, on_bytes=interrupt)
    assert contents(target).keys() == {MARKER}
    stage_store(source, target)
    assert_is_copy(target, source)


def test_part_of_a_store_has_the_shards_that_a_node_reads(source: Path, target: Path) -> None:
    part = NodePart(1, 3)  # samples 4 to 7 of 12, three a shard
    staged = stage_store(source, target, part)
    assert (staged.copied, staged.left_out) == (("b.h5", "c.h5", length_index.FILE), 2)
    assert contents(target).keys() == {*staged.copied, MANIFEST}
    store, whole = SampleStore(target, part), SampleStore(source)
    store.verify()
    for index in range(*part.range_of(12)):
        assert np.array_equal(store.read(index).token_ids, whole.read(index).token_ids)
    with pytest.raises(ManifestError, match=r"a\.h5 is missing"):
        SampleStore(target)
    more = stage_store(source, target)
    assert (more.copied, more.kept) == (("a.h5", "d.h5"), staged.copied)
    assert_is_copy(target, source)


def test_part_of_a_store_without_a_length_index_is_an_error(source: Path, target: Path) -> None:
    for name in (MANIFEST, length_index.FILE):
        (source / name).unlink()
    with pytest.raises(UsageError, match=r"source: the store has no length index.*`podium data upgrade .*source`"):
        stage_store(source, target, NodePart(0, 2))
    assert not target.exists()
    stage_store(source, target)
    assert SampleStore(target).manifest == SampleStore(source).manifest


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.data())
def test_needed_shards_are_those_with_samples_of_the_part(sizes: list[int], data: st.DataObject) -> None:
    nodes = data.draw(st.integers(1, sum(sizes)))  # each has a sample, as its ranks need one
    shards = tuple(ShardEntry(f"{number}.h5", size, 1, 1, "") for number, size in enumerate(sizes))
    part = NodePart(data.draw(st.integers(0, nodes - 1)), nodes)
    shard_of = [number for number, size in enumerate(sizes) for _ in range(size)]
    expected = {shard_of[index] for index in range(*part.range_of(sum(sizes)))}
    found = needed_shards(Path("store"), Manifest("", 512, shards, lengths_sha256="ab"), part)
    assert [shard.name for shard in found] == [f"{number}.h5" for number in sorted(expected)]


def test_part_without_samples_is_an_error(source: Path, target: Path) -> None:
    with pytest.raises(UsageError, match="has 12 samples, of which node 0 of 13 reads none; train on more samples"):
        stage_store(source, target, NodePart(0, 13))
    assert not target.exists()


@pytest.mark.parametrize("change", [{"max_sequence_length": 2**40}, {"max_predictions": 100}, {"selection": "x"}])
def test_manifest_that_contradicts_its_shards_is_an_error(source: Path, target: Path, change: dict[str, Any]) -> None:
    path = source / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | change), encoding="utf-8")
    with pytest.raises(WorkError, match=rf"its {next(iter(change))} is .*, and manifest\.json lists"):
        stage_store(source, target)
    assert not (target / MANIFEST).exists()


def test_error_for_an_older_shard_names_the_source(source: Path, target: Path) -> None:
    write_older(source / "b.h5")
    with pytest.raises(WorkError, match=rf"its format_version is 2, not 3; see `podium data verify {source}`"):
        stage_store(source, target)
