"""Import and export of many files: names, formats, processes, and errors before anything is written."""

import errno
import fcntl
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import pytest

from benchmarks.bert.formats import convert
from benchmarks.bert.formats.convert import FORMATS, detect_format, export_store, import_file, import_files
from benchmarks.bert.formats.rows import VocabularyFacts
from benchmarks.bert.length_index import FILE
from benchmarks.bert.manifest import MANIFEST, MARKER, read_manifest
from benchmarks.bert.samples import Samples
from benchmarks.bert.shard import Origin, Shard, write_shard
from benchmarks.bert.store import SampleStore, shard_paths
from podium.core.errors import UsageError, WorkError
from podium.core.processes import WorkerDied

HDF5 = ("hdf5-fixed", "hdf5-variable")


@pytest.fixture
def foreign(
    tmp_path: Path,
    foreign_arrays: Callable[[str], dict[str, Any]],
    write_foreign: Callable[[str, Path, dict[str, Any]], Path],
) -> dict[str, Path]:
    """One file of each format, with a typical name."""
    names = {"hdf5-fixed": "part_0.hdf5", "hdf5-variable": "part_1.h5", "tfrecord": "part-2.tfrecord"}
    (tmp_path / "in").mkdir()
    return {name: write_foreign(name, tmp_path / "in" / file, foreign_arrays(name)) for name, file in names.items()}


@pytest.fixture
def store(tmp_path: Path, make_samples: Callable[..., Samples], allowed: VocabularyFacts) -> Path:
    """Three shards."""
    folder = tmp_path / "store"
    folder.mkdir()
    for number in range(3):
        origin = Origin(f"part-{number}", "", allowed.sha256, 64, 9, made_by="tfrecord")
        write_shard(folder / f"part-{number}.h5", make_samples([5, 64, 9 + number], seed=number, most=9), origin)
    return folder


def test_format_of_a_file_is_detected(foreign: dict[str, Path]) -> None:
    assert {name: detect_format(file) for name, file in foreign.items()} == {name: name for name in FORMATS}


def test_files_of_several_formats_become_shards_in_their_order(
    foreign: dict[str, Path], tmp_path: Path, vocabulary: Path
) -> None:
    """Files without a recorded width are taken for 512 tokens, so they cannot be in one store with the others."""
    with h5py.File(foreign["hdf5-fixed"], "r+") as file:
        file["input_ids"][0, 1] = 13  # else it would have the same samples as the TFRecord file
    finished: list[Path] = []
    files, out = [*foreign.values()][::-1], tmp_path / "new" / "out"
    with pytest.raises(WorkError, match=r"part_1\.h5: its max_sequence_length is 512, that of .*part-2\.h5 is 16"):
        import_files(files, "auto", vocabulary, out, 2, finished.append)
    assert not (out / MANIFEST).exists()
    shards = [out / name for name in ("part-2.h5", "part_1.h5", "part_0.h5")]
    (out / "part_1.h5").unlink()
    assert import_files([files[0], files[2]], "auto", vocabulary, out) == [shards[0], shards[2]]
    assert sorted(path.name for path in out.iterdir()) == [FILE, MANIFEST, "part-2.h5", "part_0.h5"]
    assert read_manifest(out) == SampleStore(out).manifest
    import_files([files[1]], "auto", vocabulary, tmp_path / "other")
    shards[1] = tmp_path / "other" / "part_1.h5"
    assert sorted(path.name for path in finished) == sorted(path.name for path in shards)
    assert [Shard(shard).origin.made_by for shard in shards] == [*FORMATS][::-1]
    for shard in shards:
        Shard(shard).verify()
        assert len(Shard(shard)) == 3
    assert multiprocessing.active_children() == []


def test_file_names_with_other_suffixes_are_kept(foreign: dict[str, Path], tmp_path: Path, vocabulary: Path) -> None:
    folder = tmp_path / "in"
    names = ("part-00000-of-00500", "a.b.hdf5.txt", ".hdf5")
    for name in names:
        (folder / name).write_bytes(foreign["hdf5-fixed"].read_bytes())
    # into separate folders, since a store may not have equal shards
    shards = [
        shard
        for name in names
        for shard in import_files([folder / name], "hdf5-fixed", vocabulary, tmp_path / "out" / name)
    ]
    assert [shard.name for shard in shards] == ["part-00000-of-00500.h5", "a.b.hdf5.txt.h5", ".hdf5.h5"]


def test_existing_shard_is_replaced(foreign: dict[str, Path], tmp_path: Path, vocabulary: Path) -> None:
    (tmp_path / "part_0.h5").write_bytes(b"old")
    (shard,) = import_files([foreign["hdf5-fixed"]], "auto", vocabulary, tmp_path)
    Shard(shard).verify()


def test_invalid_import_arguments_are_errors_before_anything_is_written(
    foreign: dict[str, Path], tmp_path: Path, vocabulary: Path
) -> None:
    files, out = [*foreign.values()], tmp_path / "out"

    def refused(match: str, files: list[Path] = files, to: Path = out, vocabulary_file: Path = vocabulary) -> None:
        with pytest.raises(UsageError, match=match):
            import_files(files, "auto", vocabulary_file, to)

    refused("no files were given", [])
    refused("none.hdf5: there is no such sample file", [*files, tmp_path / "none.hdf5"])
    refused("in: this is a folder; give the sample files in it", [tmp_path / "in"])
    refused("there is no such vocabulary", vocabulary_file=tmp_path / "none.txt")
    same = tmp_path / "in" / "part_0.tfrecord"
    same.write_bytes(files[2].read_bytes())
    refused(r"part_0\.hdf5 and .*part_0\.tfrecord would both become part_0: a shard is named for its", [*files, same])
    refused(r"part_1\.h5: would be replaced by the output for .*part_1\.h5; give another folder", to=tmp_path / "in")
    (tmp_path / "link").symlink_to(tmp_path / "in")
    refused(r"part_1\.h5: would be replaced", to=tmp_path / "link")
    refused(r"part_1\.h5: would be replaced", [tmp_path / "link" / "part_1.h5"], to=tmp_path / "in")
    other = tmp_path / "in" / "part_1.tfrecord"
    other.write_bytes(files[2].read_bytes())
    refused(r"part_1\.h5: would be replaced by the output for .*part_1\.tfrecord|both become", [files[1], other])
    refused("a file exists at this path", to=vocabulary)
    assert not out.exists()
    assert {path.read_bytes()[:4] for path in files[:2]} == {b"\x89HDF"}


def test_a_source_is_not_replaced_by_the_shard_of_another(
    foreign: dict[str, Path], tmp_path: Path, vocabulary: Path
) -> None:
    """The shard of in/part_0.hdf5 is out/part_0.h5, which is a link to a source."""
    one, two = tmp_path / "in" / "x.h5", tmp_path / "out" / "x.h5.hdf5"
    two.parent.mkdir()
    one.write_bytes(foreign["hdf5-fixed"].read_bytes())
    two.write_bytes(foreign["hdf5-fixed"].read_bytes())
    source = tmp_path / "out" / "part_0.h5"
    source.symlink_to(foreign["hdf5-fixed"])
    with pytest.raises(UsageError, match=r"out/part_0\.h5: would be replaced by the output for .*in/part_0\.hdf5"):
        import_files([foreign["hdf5-fixed"], one], "auto", vocabulary, tmp_path / "out")
    assert source.is_symlink()


def test_after_an_invalid_file_only_complete_shards_remain(
    foreign: dict[str, Path], tmp_path: Path, vocabulary: Path
) -> None:
    files = [*foreign.values()]
    with h5py.File(files[1], "r+") as file:
        file["next_sentence_labels"][2] = 7
    with pytest.raises(WorkError, match=r"part_1\.h5: .* row 2, counted from 0: next_sentence_labels is 7, not 0 or 1"):
        import_files(files, "auto", vocabulary, tmp_path / "out", 2)
    left = sorted(path.name for path in (tmp_path / "out").iterdir() if path.name != MARKER)
    assert set(left) <= {"part_0.h5", "part-2.h5"}
    for name in left:
        Shard(tmp_path / "out" / name).verify()
    assert multiprocessing.active_children() == []


def test_file_of_another_format_is_an_error(foreign: dict[str, Path], tmp_path: Path, allowed: VocabularyFacts) -> None:
    expected = {
        ("hdf5-fixed", "hdf5-variable"): "input_ids is int16 [3, 16], not integers in rows of variable length",
        ("hdf5-variable", "hdf5-fixed"): "input_ids is of variable length, not an integer type",
        ("tfrecord", "hdf5-fixed"): "it cannot be read as HDF5 (",
        ("hdf5-fixed", "tfrecord"): "no record begins at byte 0: the length there does not match its checksum",
    }
    for (is_of, format_name), found in expected.items():
        with pytest.raises(WorkError) as caught:
            import_file(foreign[is_of], format_name, allowed, tmp_path / "shard.h5")
        assert str(caught.value).startswith(f"{foreign[is_of]}: the file cannot be imported: {found}")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_worker_that_dies_on_a_file_is_an_error_naming_the_file(
    foreign: dict[str, Path], tmp_path: Path, vocabulary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HDF5 can crash on a corrupt file; here the death of the worker is simulated."""

    def dies(function: Any, jobs: dict[Path, Any], processes: int) -> Any:
        assert function is convert.import_file
        yield next(iter(jobs)), None
        raise WorkerDied([*jobs][1])

    monkeypatch.setattr(convert, "run_jobs_in_processes", dies)
    with pytest.raises(
        WorkError, match=r"in/part_1\.h5: .* the process that read it died: the file is corrupt, or .* memory"
    ):
        import_files([*foreign.values()], "auto", vocabulary, tmp_path / "out", processes=2)


@pytest.mark.parametrize(("format_name", "processes"), [("hdf5-fixed", 1), ("hdf5-variable", 2)])
def test_exported_store_is_imported_byte_for_byte(
    store: Path, tmp_path: Path, vocabulary: Path, format_name: str, processes: int
) -> None:
    finished: list[Path] = []
    files = export_store(store, format_name, tmp_path / "new" / "out", processes, finished.append)
    assert [file.name for file in files] == ["part-0.hdf5", "part-1.hdf5", "part-2.hdf5"]
    assert sorted(finished) == files == sorted((tmp_path / "new" / "out").iterdir())
    assert [detect_format(file) for file in files] == [format_name] * 3
    shards = import_files(files, "auto", vocabulary, tmp_path / "back")
    for shard in shards:
        assert shard.read_bytes() == (store / shard.name).read_bytes()
    SampleStore(tmp_path / "back").verify()


def test_single_shards_are_exported(store: Path, tmp_path: Path) -> None:
    (file,) = export_store([store / "part-1.h5"], "hdf5-fixed", tmp_path / "out")
    with h5py.File(file) as opened:
        assert opened["input_ids"].shape == (3, 64)
        assert opened["masked_lm_ids"].shape == (3, 9)


def test_invalid_export_arguments_are_errors_before_anything_is_written(store: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"

    def refused(match: str, given: Any = store, to: Path = out) -> None:
        with pytest.raises(UsageError, match=match):
            export_store(given, "hdf5-fixed", to)

    refused("there is no such folder of shards", tmp_path / "none")
    refused("no shard was given", [])
    refused("a file exists at this path", to=store / "part-0.h5")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "part-0.h5").write_bytes((store / "part-1.h5").read_bytes())
    refused("would both become part-0", [store / "part-0.h5", tmp_path / "other" / "part-0.h5"])
    (store / "x.hdf5").write_bytes((store / "part-0.h5").read_bytes())
    (store / "x.h5").write_bytes((store / "part-1.h5").read_bytes())
    refused(r"x\.hdf5: would be replaced by the output for .*x\.h5", [store / "x.h5", store / "x.hdf5"], to=store)
    assert not out.exists()


@pytest.mark.parametrize("format_name", HDF5)
def test_a_damaged_shard_is_not_exported(store: Path, tmp_path: Path, format_name: str) -> None:
    with h5py.File(store / "part-1.h5", "r+") as file:
        file["records"][1] += 1
    with pytest.raises(WorkError, match=r"part-1\.h5: the shard cannot be used: its content has the SHA-256"):
        export_store(store, format_name, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["part-0.hdf5"]


@pytest.mark.parametrize("format_name", HDF5)
def test_full_disk_is_an_error_and_leaves_no_partial_file(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format_name: str
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(WorkError, match=r"part-0\.hdf5: cannot be written \(No space left on device\)"):
        export_store(store, format_name, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_interruption_leaves_only_complete_files(store: Path, tmp_path: Path, vocabulary: Path) -> None:
    def interrupt(path: Path) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_store(store, "hdf5-fixed", tmp_path / "out", 2, interrupt)
    assert all(path.suffix == ".hdf5" for path in (tmp_path / "out").iterdir())
    files = export_store(store, "hdf5-fixed", tmp_path / "out")
    with pytest.raises(KeyboardInterrupt):
        import_files(files, "auto", vocabulary, tmp_path / "back", 2, interrupt)
    assert {path.suffix for path in (tmp_path / "back").iterdir()} == {".h5", ".unfinished"}
    SampleStore(shard_paths(tmp_path / "back")).verify()
    with pytest.raises(WorkError, match=r"back/manifest\.unfinished: the preparation"):
        SampleStore(tmp_path / "back")
    assert multiprocessing.active_children() == []


def test_folder_locked_by_another_command_is_an_error(store: Path, tmp_path: Path, vocabulary: Path) -> None:
    files = export_store(store, "hdf5-fixed", tmp_path / "out")
    (tmp_path / "back").mkdir()
    for folder in (tmp_path / "out", tmp_path / "back"):
        descriptor = os.open(folder, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with pytest.raises(UsageError, match=r"another `podium data (import|export)` is using this folder"):
            if folder.name == "out":
                export_store(store, "hdf5-fixed", folder)
            else:
                import_files(files, "auto", vocabulary, folder)
        os.close(descriptor)
    assert list((tmp_path / "back").iterdir()) == []
