"""Import of other projects' sample files as shards, and export of shards in their formats."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import h5py

from benchmarks.bert.formats import hdf5, tfrecord
from benchmarks.bert.formats.hdf5 import has_dataset
from benchmarks.bert.formats.rows import AllowedTokens, Contents, origin_of, unusable
from benchmarks.bert.formats.tfrecord import begins_as_gzip, begins_as_tfrecord
from benchmarks.bert.store import SUFFIX, SampleStore, Shard, write_shard
from podium.core.errors import UsageError
from podium.core.files import make_folder, require_readable
from podium.core.locks import folder_lock
from podium.core.processes import WorkerDied, results_in_processes, results_of


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
# What a shard's name drops of the name of the file that it is imported from.
STRIPPED_SUFFIXES = (".hdf5", ".h5", ".tfrecord")


def import_files(
    files: Sequence[Path],
    format_name: str,
    vocabulary: Path,
    out: Path,
    processes: int = 1,
    on_finished: Callable[[Path], None] | None = None,
) -> list[Path]:
    """Make the shard out/STEM.h5 of each file of a format, or of AUTO, and return them in the order of the files.

    A shard that is there already is replaced. At most `processes` worker processes share the files; there is always
    one, since a corrupt HDF5 file can end the process that reads it. `on_finished` is told of each finished shard, in
    the order of finishing.

    Raises UsageError, before anything is written, for arguments that cannot serve, and for a file that was exported
    from a shard of another vocabulary; WorkError for a file of which anything is not as its format has it, and for a
    full disk. After a failure the finished shards are whole and nothing half-written remains.
    """
    _check_format(format_name, [AUTO, *FORMATS], "imported from")
    if not files:
        raise UsageError("no files were given; give the files of samples to import")
    require_readable(files, "sample file")
    _check_processes(processes)
    shards = {out / f"{_stem(file)}{SUFFIX}": file for file in files}
    _check_distinct(files, [_stem(file) for file in files], "a shard is named for its file")
    _check_apart(files, shards)
    allowed = AllowedTokens.of(vocabulary)
    jobs = {shard: (file, format_name, allowed, shard) for shard, file in shards.items()}
    try:
        with (
            folder_lock(make_folder(out), "podium data import"),
            closing(results_in_processes(import_file, jobs, processes)) as finished,
        ):
            for shard, _ in finished:
                if on_finished is not None:
                    on_finished(shard)
    except WorkerDied as error:
        raise unusable(
            shards[error.file],
            "the process that read it came to an end: it is corrupt, or the machine has not enough memory for "
            f"{min(processes, len(files))} processes",
        ) from error
    return list(shards)


def import_file(file: Path, format_name: str, allowed: AllowedTokens, shard: Path) -> None:
    """Make the shard of one file. Raises as import_files does; a corrupt HDF5 file may end the process."""
    if format_name == AUTO:
        format_name = detected_format(file)
    contents = FORMATS[format_name].read(file, allowed)
    write_shard(shard, contents.samples, origin_of(contents, file, format_name, allowed))


def detected_format(file: Path) -> str:
    """The name of the format that a file looks like; raises WorkError if it is none of them."""
    if h5py.is_hdf5(file):
        return "hdf5-fixed" if has_dataset(file, "input_mask") else "hdf5-variable"
    if begins_as_tfrecord(file):
        return "tfrecord"
    if begins_as_gzip(file):
        raise unusable(file, "it is compressed with gzip, so decompress it first (gunzip)")
    raise unusable(file, f"it looks like none of {', '.join(FORMATS)}")


def export_store(
    store: Path | Sequence[Path],
    format_name: str,
    out: Path,
    processes: int = 1,
    on_finished: Callable[[Path], None] | None = None,
) -> list[Path]:
    """Write out/NAME.hdf5 of each shard NAME.h5 of a store and return them in the order of the shards.

    `store` is a folder or the paths of shards, as SampleStore takes them. A file that is there already is replaced.
    At most `processes` processes share the shards. `on_finished` is told of each finished file.

    Raises UsageError for arguments that cannot serve and for samples that the format cannot hold, and WorkError for a
    shard whose content is not what was written and for a full disk. After a failure the finished files are whole and
    nothing half-written remains.
    """
    _check_format(format_name, [name for name, one in FORMATS.items() if one.write], "exported to")
    _check_processes(processes)
    shards = SampleStore(store).paths
    names = [shard.name.removesuffix(SUFFIX) for shard in shards]
    _check_distinct(shards, names, "a file is named for its shard")
    files = {out / f"{name}{EXPORTED_SUFFIX}": shard for name, shard in zip(names, shards, strict=True)}
    _check_apart(shards, files)
    jobs = {file: (shard, format_name, file) for file, shard in files.items()}
    with (
        folder_lock(make_folder(out), "podium data export"),
        closing(results_of(export_shard, jobs, processes)) as finished,
    ):
        for file, _ in finished:
            if on_finished is not None:
                on_finished(file)
    return list(files)


def export_shard(path: Path, format_name: str, file: Path) -> None:
    """Write one shard, verified, as a file of a format that can be written."""
    shard, write = Shard(path), FORMATS[format_name].write
    assert write is not None, f"{format_name} cannot be written"
    shard.verify()
    write(file, shard)


def _stem(file: Path) -> str:
    for suffix in STRIPPED_SUFFIXES:
        if file.name.endswith(suffix) and file.name != suffix:
            return file.name.removesuffix(suffix)
    return file.name


def _check_format(name: str, allowed: Sequence[str], what: str) -> None:
    if name not in allowed:
        raise UsageError(f"there is no format {name!r} that samples are {what}; give one of {', '.join(allowed)}")


def _check_processes(processes: int) -> None:
    if processes < 1:
        raise UsageError(f"{processes} processes were asked for; give 1 or more")


def _check_distinct(sources: Sequence[Path], names: Sequence[str], why: str) -> None:
    """Raise UsageError unless each source has a name of its own."""
    name, occurrences = Counter(names).most_common(1)[0]
    if occurrences > 1:
        same = " and ".join(str(source) for source, one in zip(sources, names, strict=True) if one == name)
        raise UsageError(f"{same} would both become {name}: {why}, so rename one or give another --out")


def _check_apart(sources: Sequence[Path], targets: Mapping[Path, Path]) -> None:
    """Raise UsageError if one of the sources would be replaced by what is made of another, or of itself."""
    given = {source.resolve() for source in sources}
    for target, source in targets.items():
        if target.resolve() in given:
            raise UsageError(f"{target}: would be replaced by what is made of {source}; give another folder as --out")
