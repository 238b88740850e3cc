"""Staging: a verified copy of a sample store in a folder of a node's own disk, or of the shards that the node needs.

A shard is copied to a temporary name, read back from the disk and compared with the manifest of the store, and then
named. The manifest is written last: until then the copy is marked as unfinished and refused. A copy that was broken off
is resumed by the next call, which keeps the shards that are whole. No file of another origin is replaced.
"""

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from benchmarks.bert import length_index
from benchmarks.bert.manifest import (
    MANIFEST,
    MARKER,
    WHOLE_STORE,
    Manifest,
    NodePart,
    ShardEntry,
    has_manifest,
    mark_unfinished,
    read_manifest,
    require_finished,
    write_manifest,
)
from benchmarks.bert.shard import SUFFIX, Shard
from benchmarks.bert.store import SampleStore, shard_paths
from podium.core.errors import Interrupted, PodiumError, UsageError, WorkError
from podium.core.files import make_folder, open_regular, remove_unfinished, sha256_of, unwritable, whole_file
from podium.core.locks import folder_lock

COMMAND = "podium data stage"
BLOCK = 8 * 2**20  # bytes that are copied at a time
SPARE = 2**20  # bytes of the disk beside those of the copied files, for the manifest and the folder

Advance = Callable[[int], None]  # by so many bytes


@dataclass(frozen=True)
class Staged:
    """What a call has done."""

    target: Path
    copied: tuple[str, ...]  # names of files
    kept: tuple[str, ...]  # that were there already, whole
    left_out: int  # shards that are not needed here


@dataclass(frozen=True)
class _File:
    """One file of a store that is to be in the copy."""

    source: Path
    target: Path
    size: int
    manifest: Manifest
    number: int | None  # of a shard in the manifest; None: the length index


def store_manifest(source: Path) -> Manifest:
    """The manifest of a finished store; where it lists no length index, that of the shards, which are opened for it."""
    shard_paths(source)
    require_finished(source)
    manifest = read_manifest(source)
    return SampleStore(source).manifest if manifest is None or manifest.lengths_sha256 is None else manifest


def needed_shards(source: Path, manifest: Manifest, part: NodePart) -> Sequence[ShardEntry]:
    """The shards that have a sample of a node's part, in the store's order."""
    if part == WHOLE_STORE:
        return manifest.shards
    if manifest.lengths_sha256 is None:
        raise UsageError(
            f"{source}: the store has no length index, without which no part of it can be used; write it with `podium "
            f"data upgrade {source}`, or copy all of the store, without --system"
        )
    first, end = part.range_of(manifest.samples)
    if first == end:
        raise UsageError(
            f"{source}: has {manifest.samples:,} samples, of which node {part.node} of {part.nodes} reads none; train "
            "on more samples, or on fewer nodes"
        )
    return [manifest.shards[number] for number in manifest.shards_of(part)]


def stage_store(
    source: Path,
    target: Path,
    part: NodePart = WHOLE_STORE,
    workers: int = 4,
    on_start: Callable[[int], None] = lambda _: None,
    on_bytes: Advance = lambda _: None,
) -> Staged:
    """Copy a store into the folder `target`, all of it or the shards with samples of a node's part.

    `on_start` is called with the bytes of all needed files, `on_bytes` as they are copied or found whole, from several
    threads.

    Raises UsageError for a target that holds something else or lies in the source, and WorkError for a source that is
    incomplete or corrupt, a file of the target that is not the one of the source, and a disk without room. What was
    copied by then stays, for the next call.
    """
    manifest = store_manifest(source)
    _require_apart(source, target)
    entries = needed_shards(source, manifest, part)
    files = _files(source, target, manifest, entries)
    with folder_lock(make_folder(target), COMMAND):
        _require_own(target, manifest)
        for name in (MANIFEST, length_index.FILE, *(shard.name for shard in manifest.shards)):
            remove_unfinished(target / name)
        there = [file for file in files if os.path.lexists(file.target)]
        missing = [file for file in files if file not in there]
        _require_space(target, missing)
        on_start(sum(file.size for file in files))
        if missing or not has_manifest(target):
            mark_unfinished(target)
        _in_threads(workers, lambda file, _: _require_whole(file, on_bytes), there)
        _in_threads(workers, lambda file, stopped: _copy(file, stopped, on_bytes), missing)
        if os.path.lexists(target / MARKER):
            write_manifest(target, manifest)
    copied, kept = (tuple(file.source.name for file in part) for part in (missing, there))
    return Staged(target, copied, kept, len(manifest.shards) - len(entries))


def _files(source: Path, target: Path, manifest: Manifest, entries: Sequence[ShardEntry]) -> list[_File]:
    """The files to copy, with their sizes; WorkError for one that is missing in the source."""
    numbers = {entry.name: number for number, entry in enumerate(manifest.shards)}
    named: dict[str, int | None] = {entry.name: numbers[entry.name] for entry in entries}
    if manifest.lengths_sha256 is not None:
        named[length_index.FILE] = None
    files = []
    for name, number in named.items():
        try:
            with open_regular(source / name) as file:
                size = os.fstat(file.fileno()).st_size
        except OSError as error:
            raise WorkError(
                f"{source / name}: {MANIFEST} lists this file, and it cannot be read ({error.strerror}); see "
                f"`podium data verify {source}`"
            ) from None
        files.append(_File(source / name, target / name, size, manifest, number))
    return files


def _require_apart(source: Path, target: Path) -> None:
    """UsageError for a target that is the source, is inside it, or has it inside."""
    here, there = source.resolve(), target.resolve()
    if here == there or here in there.parents or there in here.parents:
        raise UsageError(f"{target}: is the store {source}, or one lies in the other; name a folder outside of it")


def _require_own(target: Path, manifest: Manifest) -> None:
    """UsageError for a folder that holds another store, or a part of one."""
    advice = "name a new folder, or remove that store"
    if (found := read_manifest(target)) is not None and found != manifest:
        what = next(found.differences(manifest)).sentence(target, "the store to be copied")
        raise UsageError(f"{target}: holds another store ({what}); {advice}")
    known = {shard.name for shard in manifest.shards}
    for path in sorted(target.glob(f"*{SUFFIX}")):
        if path.name not in known:
            raise UsageError(f"{target}: holds another store, with {path.name}; {advice}")


def _require_space(target: Path, missing: Sequence[_File]) -> None:
    """WorkError where the disk has no room for these files."""
    needed = sum(file.size for file in missing) + SPARE
    free = shutil.disk_usage(target).free
    if missing and needed > free:
        raise WorkError(
            f"{target}: the disk is full: the copy needs {needed / 1e6:,.1f} MB more, and it has {free / 1e6:,.1f} MB "
            "free; make room, or name a folder on another disk"
        )


def _in_threads(workers: int, work: Callable[[_File, Event], None], files: Sequence[_File]) -> None:
    """Call `work` for every file, several at a time. After a failure or an interruption no further call is begun, and
    the event asks the others to leave.
    """
    stopped = Event()
    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(work, file, stopped) for file in files]
        try:
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            for future in (one for one in futures if one in done):
                future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            stopped.set()
            raise


def _require_whole(file: _File, on_bytes: Advance) -> None:
    """WorkError unless the file that is there already is the one of the source."""
    why = "it is a link" if file.target.is_symlink() else _fault(file, file.target)
    if why:
        raise WorkError(
            f"{file.target}: is there already and is not that of {file.source.parent}: {why}; it is not replaced: "
            "remove it, or name another folder"
        )
    on_bytes(file.size)


def _copy(file: _File, stopped: Event, on_bytes: Advance) -> None:
    """Copy a file and compare what the disk then has with the manifest; it has its name when that is right."""
    with whole_file(file.target) as temporary:
        copied = _copy_bytes(file, temporary, stopped, on_bytes)
        if fault := _fault(file, temporary):
            if sha256_of(temporary) != copied:
                raise WorkError(f"{file.target}: reads otherwise than it was written; see that this disk is sound")
            raise WorkError(f"{file.source}: cannot be copied: {fault}; see `podium data verify {file.source.parent}`")
        if os.path.lexists(file.target):
            raise WorkError(f"{file.target}: another process made it at the same time; remove it, and start again")


def _fault(file: _File, path: Path) -> str:
    """Why the file at `path` is not the one that the manifest lists, all of it read; empty where it is."""
    try:
        if file.number is None:
            right = sha256_of(path) == file.manifest.lengths_sha256
            return "" if right else f"its SHA-256 is not the one that {MANIFEST} lists"
        shard = Shard(path)
        if (difference := file.manifest.difference_of(file.number, shard.attributes)) is not None:
            return f"its {difference.what} is {difference.found}, and {MANIFEST} lists {difference.expected}"
        shard.verify()
    except PodiumError as error:
        return str(error).removeprefix(f"{path}: ").partition("; ")[0]  # its advice is for a store's own shards
    return ""


def _copy_bytes(file: _File, temporary: Path, stopped: Event, on_bytes: Advance) -> str:
    """Copy the bytes and put them on the disk, out of the page cache; their SHA-256."""
    digest = hashlib.sha256()
    try:
        source = open_regular(file.source)
    except OSError as error:
        raise _unreadable(file, error) from None
    with source, _writing(file, temporary) as descriptor:
        while True:
            if stopped.is_set():
                raise Interrupted("interrupted")
            try:
                block = source.read(BLOCK)
            except OSError as error:
                raise _unreadable(file, error) from None
            if not block:
                return digest.hexdigest()
            digest.update(block)
            rest = memoryview(block)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            on_bytes(len(block))


@contextmanager
def _writing(file: _File, temporary: Path) -> Iterator[int]:
    """A descriptor of a new file; when the block ends all of it is on the disk, and a reader gets it from there."""
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            yield descriptor
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise unwritable(file.target, error) from None


def _unreadable(file: _File, error: OSError) -> WorkError:
    return WorkError(f"{file.source}: cannot be read ({error.strerror}); see `podium data verify {file.source.parent}`")
