"""Import of sample files of other projects as shards, and export of shards in their formats."""

from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import h5py

from benchmarks.bert.formats import hdf5, tfrecord
from benchmarks.bert.formats.hdf5 import has_dataset
from benchmarks.bert.formats.rows import ImportedFile, VocabularyFacts, determine_origin, import_error
from benchmarks.bert.formats.tfrecord import GZIP_FOUND, is_gzip, is_tfrecord
from benchmarks.bert.manifest import mark_unfinished
from benchmarks.bert.preparation.settings import GenerationSettings
from benchmarks.bert.shard import STRIPPED_SUFFIX, SUFFIX, Shard, write_shard
from benchmarks.bert.store import SampleStore, require_replaceable, update_manifest
from podium.core.errors import UsageError
from podium.core.files import make_folder, require_readable
from podium.core.locks import folder_lock
from podium.core.processes import WorkerDied, run_jobs, run_jobs_in_processes


class Format(NamedTuple):
    """The functions that read and write a file format; `write` is None for a format that is only imported."""

    read: Callable[[Path, VocabularyFacts], ImportedFile]
    write: Callable[[Path, Shard], None] | None = None


# By the name that users give on the command line; an imported shard records it as `made_by`.
FORMATS: Mapping[str, Format] = {
    "hdf5-fixed": Format(hdf5.read_fixed, hdf5.write_fixed),
    "hdf5-variable": Format(hdf5.read_variable, hdf5.write_variable),
    "tfrecord": Format(tfrecord.read),
}
AUTO = "auto"  # detect the format of each file
EXPORTED_SUFFIX = ".hdf5"


def import_files(
    files: Sequence[Path],
    format_name: str,
    vocabulary: Path,
    out: Path,
    processes: int = 1,
    on_finished: Callable[[Path], None] = lambda _: None,
    settings: GenerationSettings | None = None,
) -> list[Path]:
    """Write the shard out/STEM.h5 of each file and return the shards in the order of the files.

    `format_name` is a key of FORMATS, or AUTO. `settings` are those that the samples were generated with; files whose
    rows have no padding do not contain them. A shard that exists is replaced, and the folder's manifest is written at
    the end. At most `processes` worker processes share the files. `on_finished` is called with each finished shard, in
    the order of finishing.

    Raises UsageError, before anything is written, for unusable arguments, and for a file that was exported from a shard
    of another vocabulary or whose samples were generated with other settings. Raises WorkError for a file that violates
    its format, for a full disk, and for shards that cannot be in one store. After a failure the finished shards are
    complete and no partial file remains.
    """
    if not files:
        raise UsageError("no files were given; give the sample files to import")
    require_readable(files, "sample file")
    names = [STRIPPED_SUFFIX.sub("", file.name) for file in files]
    shards = _map_outputs(files, names, out, SUFFIX, "a shard is named for its file")
    allowed = VocabularyFacts.from_file(vocabulary)
    jobs = {shard: (file, format_name, allowed, shard, settings) for shard, file in shards.items()}
    try:
        with folder_lock(make_folder(out), "podium data import"):
            # Never in this process: HDF5 can crash on a corrupt file, or be ended by a signal after its time limit.
            _run_jobs(run_jobs_in_processes(import_file, jobs, processes), on_finished)
            update_manifest(out)
    except WorkerDied as error:
        raise import_error(
            shards[error.file],
            "the process that read it died: the file is corrupt, or the machine does not have enough memory for "
            f"{min(processes, len(files))} processes",
        ) from error
    return list(shards)


def import_file(
    file: Path, format_name: str, allowed: VocabularyFacts, shard: Path, settings: GenerationSettings | None = None
) -> None:
    """Write the shard of one file. Raises as import_files does. A corrupt HDF5 file may kill the process."""
    if format_name == AUTO:
        format_name = detect_format(file)
    imported = FORMATS[format_name].read(file, allowed)
    origin = determine_origin(imported, file, format_name, allowed, settings)
    require_replaceable([shard], origin)
    mark_unfinished(shard.parent)
    write_shard(shard, imported.samples, origin)


def detect_format(file: Path) -> str:
    """Return the name of a file's format by its content. Raises WorkError if the format is not recognised."""
    if h5py.is_hdf5(file):
        return "hdf5-fixed" if has_dataset(file, "input_mask") else "hdf5-variable"
    if is_tfrecord(file):
        return "tfrecord"
    if is_gzip(file):
        raise import_error(file, GZIP_FOUND)
    raise import_error(file, f"it looks like none of {', '.join(FORMATS)}")


def export_store(
    store: Path | Sequence[Path],
    format_name: str,
    out: Path,
    processes: int = 1,
    on_finished: Callable[[Path], None] = lambda _: None,
) -> list[Path]:
    """Write out/NAME.hdf5 of each shard NAME.h5 of a store and return the files in the order of the shards.

    `store` is a folder or the paths of shards, as for SampleStore. A file that exists is replaced. At most `processes`
    processes share the shards. `on_finished` is called with each finished file.

    Raises UsageError for unusable arguments and for samples that the format cannot represent, and WorkError for a shard
    whose content does not match its hash and for a full disk. After a failure the finished files are complete and no
    partial file remains.
    """
    shards = SampleStore(store).paths
    names = [shard.name.removesuffix(SUFFIX) for shard in shards]
    files = _map_outputs(shards, names, out, EXPORTED_SUFFIX, "a file is named for its shard")
    jobs = {file: (shard, format_name, file) for file, shard in files.items()}
    with folder_lock(make_folder(out), "podium data export"):
        _run_jobs(run_jobs(export_shard, jobs, processes), on_finished)
    return list(files)


def export_shard(path: Path, format_name: str, file: Path) -> None:
    """Verify one shard and write its samples as a file of a format that has `write`."""
    shard, write = Shard(path), FORMATS[format_name].write
    assert write is not None, f"{format_name} cannot be written"
    shard.verify()
    write(file, shard)


def _map_outputs(sources: Sequence[Path], names: Sequence[str], out: Path, suffix: str, why: str) -> dict[Path, Path]:
    """Map each output file OUT/NAME to its source. UsageError if two names are equal or a source would be replaced."""
    name, occurrences = Counter(names).most_common(1)[0]
    if occurrences > 1:
        same = " and ".join(str(source) for source, one in zip(sources, names, strict=True) if one == name)
        raise UsageError(f"{same} would both become {name}: {why}, so rename one or give another --out")
    targets = {out / f"{name}{suffix}": source for name, source in zip(names, sources, strict=True)}
    # Resolved, so that a source is protected under any path, also through a symbolic link.
    given = {source.resolve() for source in sources}
    for target, source in targets.items():
        if target.resolve() in given:
            raise UsageError(f"{target}: would be replaced by the output for {source}; give another folder as --out")
    return targets


def _run_jobs(results: Generator[tuple[Path, None], None, None], on_finished: Callable[[Path], None]) -> None:
    with closing(results) as finished:
        for file, _ in finished:
            on_finished(file)
