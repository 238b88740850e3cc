"""Import of other projects' sample files as shards, and export of shards in their formats."""

from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import h5py

from benchmarks.bert.formats import hdf5, tfrecord
from benchmarks.bert.formats.hdf5 import has_dataset
from benchmarks.bert.formats.rows import AllowedTokens, Contents, origin_of, unusable
from benchmarks.bert.formats.tfrecord import COMPRESSED, begins_as_gzip, begins_as_tfrecord
from benchmarks.bert.manifest import mark_unfinished
from benchmarks.bert.preparation.settings import GenerationSettings
from benchmarks.bert.shard import STRIPPED_SUFFIX, SUFFIX, Shard, write_shard
from benchmarks.bert.store import SampleStore, require_replaceable, update_manifest
from podium.core.errors import UsageError
from podium.core.files import make_folder, require_readable
from podium.core.locks import folder_lock
from podium.core.processes import WorkerDied, run_jobs, run_jobs_in_processes


class Format(NamedTuple):
    """How samples are read from a file of a format and written to one."""

    read: Callable[[Path, AllowedTokens], Contents]
    write: Callable[[Path, Shard], None] | None = None


# By the names that a user gives and that an imported shard keeps as `made_by`.
FORMATS: Mapping[str, Format] = {
    "hdf5-fixed": Format(hdf5.read_fixed, hdf5.write_fixed),
    "hdf5-variable": Format(hdf5.read_variable, hdf5.write_variable),
    "tfrecord": Format(tfrecord.read),
}
AUTO = "auto"  # the format that a file looks like
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
    """Make the shard out/STEM.h5 of each file of a format, or of AUTO, and return them in the order of the files.

    `settings` are those that the samples were made with, which rows without padding do not say.

    A shard that is there already is replaced, and the folder's manifest is written at the end. At most `processes`
    worker processes share the files; there is always one, since a corrupt HDF5 file can end the process that reads it.
    `on_finished` is called with each finished shard, in the order of finishing.

    Raises UsageError, before anything is written, for arguments that cannot serve, and for a file that was exported
    from a shard of another vocabulary or whose samples were made with other settings; WorkError for a file of which
    anything is not as its format has it, for a full disk, and for shards that cannot be in one store. After a failure
    the finished shards are whole and nothing half-written remains.
    """
    if not files:
        raise UsageError("no files were given; give the files of samples to import")
    require_readable(files, "sample file")
    names = [STRIPPED_SUFFIX.sub("", file.name) for file in files]
    shards = _targets(files, names, out, SUFFIX, "a shard is named for its file")
    allowed = AllowedTokens.of(vocabulary)
    jobs = {shard: (file, format_name, allowed, shard, settings) for shard, file in shards.items()}
    try:
        with folder_lock(make_folder(out), "podium data import"):
            _make_files(run_jobs_in_processes(import_file, jobs, processes), on_finished)
            update_manifest(out)
    except WorkerDied as error:
        raise unusable(
            shards[error.file],
            "the process that read it came to an end: it is corrupt, or the machine has not enough memory for "
            f"{min(processes, len(files))} processes",
        ) from error
    return list(shards)


def import_file(
    file: Path, format_name: str, allowed: AllowedTokens, shard: Path, settings: GenerationSettings | None = None
) -> None:
    """Make the shard of one file. Raises as import_files does; a corrupt HDF5 file may end the process."""
    if format_name == AUTO:
        format_name = detected_format(file)
    contents = FORMATS[format_name].read(file, allowed)
    origin = origin_of(contents, file, format_name, allowed, settings)
    require_replaceable([shard], origin)
    mark_unfinished(shard.parent)
    write_shard(shard, contents.samples, origin)


def detected_format(file: Path) -> str:
    """The name of the format that a file looks like; raises WorkError if it is none of them."""
    if h5py.is_hdf5(file):
        return "hdf5-fixed" if has_dataset(file, "input_mask") else "hdf5-variable"
    if begins_as_tfrecord(file):
        return "tfrecord"
    if begins_as_gzip(file):
        raise unusable(file, COMPRESSED)
    raise unusable(file, f"it looks like none of {', '.join(FORMATS)}")


def export_store(
    store: Path | Sequence[Path],
    format_name: str,
    out: Path,
    processes: int = 1,
    on_finished: Callable[[Path], None] = lambda _: None,
) -> list[Path]:
    """Write out/NAME.hdf5 of each shard NAME.h5 of a store and return them in the order of the shards.

    `store` is a folder or the paths of shards, as SampleStore takes them. A file that is there already is replaced.
    At most `processes` processes share the shards. `on_finished` is called with each finished file.

    Raises UsageError for arguments that cannot serve and for samples that the format cannot hold, and WorkError for a
    shard whose content is not what was written and for a full disk. After a failure the finished files are whole and
    nothing half-written remains.
    """
    shards = SampleStore(store).paths
    names = [shard.name.removesuffix(SUFFIX) for shard in shards]
    files = _targets(shards, names, out, EXPORTED_SUFFIX, "a file is named for its shard")
    jobs = {file: (shard, format_name, file) for file, shard in files.items()}
    with folder_lock(make_folder(out), "podium data export"):
        _make_files(run_jobs(export_shard, jobs, processes), on_finished)
    return list(files)


def export_shard(path: Path, format_name: str, file: Path) -> None:
    """Write one shard, verified, as a file of a format that can be written."""
    shard, write = Shard(path), FORMATS[format_name].write
    assert write is not None, f"{format_name} cannot be written"
    shard.verify()
    write(file, shard)


def _targets(sources: Sequence[Path], names: Sequence[str], out: Path, suffix: str, why: str) -> dict[Path, Path]:
    """The file OUT/NAME to make of each source. UsageError if two have one name, or if a source would be replaced."""
    name, occurrences = Counter(names).most_common(1)[0]
    if occurrences > 1:
        same = " and ".join(str(source) for source, one in zip(sources, names, strict=True) if one == name)
        raise UsageError(f"{same} would both become {name}: {why}, so rename one or give another --out")
    targets = {out / f"{name}{suffix}": source for name, source in zip(names, sources, strict=True)}
    given = {source.resolve() for source in sources}
    for target, source in targets.items():
        if target.resolve() in given:
            raise UsageError(f"{target}: would be replaced by what is made of {source}; give another folder as --out")
    return targets


def _make_files(results: Generator[tuple[Path, None], None, None], on_finished: Callable[[Path], None]) -> None:
    with closing(results) as finished:
        for file, _ in finished:
            on_finished(file)
