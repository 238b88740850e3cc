"""Staging: a verified copy of a sample store on a node's local disk, complete or only the shards that the node needs.

A shard is copied to a temporary name, read back from the disk, compared with the manifest of the store, and then
renamed. The manifest is written last: until then the copy is marked as unfinished, and opening it is an error. The next
call resumes an interrupted copy and keeps its complete shards. Files that are not the store's are never replaced.
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
from podium.core.files import atomic_file, make_folder, open_regular, remove_partial_files, sha256_of, write_error
from podium.core.locks import folder_lock

COMMAND = "podium data stage"
BLOCK_BYTES = 8 * 2**20  # copied at a time
SPARE_BYTES = 2**20  # required on the disk in addition to the copied files, for the manifest and the folder

ByteProgress = Callable[[int], None]  # called with the number of further bytes


@dataclass(frozen=True)
class StagingResult:
    """Result of `stage_store`."""

    target: Path
    copied: tuple[str, ...]  # file names
    kept: tuple[str, ...]  # files that were there already, complete
    left_out: int  # number of shards that this node does not need


@dataclass(frozen=True)
class _File:
    """One file to copy: a shard or the length index."""

    source: Path
    target: Path
    size: int
    manifest: Manifest
    number: int | None  # index of the shard in the manifest; None: the length index


def store_manifest(source: Path) -> Manifest:
    """The manifest of a finished store. Shards are opened only where there is no manifest with a length index."""
    shard_paths(source)
    require_finished(source)
    manifest = read_manifest(source)
    return SampleStore(source).manifest if manifest is None or manifest.lengths_sha256 is None else manifest


def needed_shards(source: Path, manifest: Manifest, part: NodePart) -> Sequence[ShardEntry]:
    """The shards with samples of a node's part, in the store's order.

    Raises UsageError for a store without a length index, and for a part without samples.
    """
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
    return [manifest.shards[number] for number in manifest.shard_numbers(part)]


def stage_store(
    source: Path,
    target: Path,
    part: NodePart = WHOLE_STORE,
    workers: int = 4,
    on_start: Callable[[int], None] = lambda _: None,
    on_bytes: ByteProgress = lambda _: None,
) -> StagingResult:
    """Copy a store into the folder `target`: all of it, or the shards with samples of a node's part.

    `on_start` is called with the bytes of all needed files, `on_bytes` from several threads as files are copied or
    found complete.

    Raises UsageError for a target with another store or inside the source, and WorkError for an incomplete or corrupt
    source, a file of the target that differs from the source, and a full disk. Files copied until then are kept for
    the next call.
    """
    manifest = store_manifest(source)
    _require_disjoint(source, target)
    entries = needed_shards(source, manifest, part)
    files = _files(source, target, manifest, entries)
    with folder_lock(make_folder(target), COMMAND):
        _require_same_store(target, manifest)
        for name in (MANIFEST, length_index.FILE, *(shard.name for shard in manifest.shards)):
            remove_partial_files(target / name)
        there = [file for file in files if os.path.lexists(file.target)]
        missing = [file for file in files if file not in there]
        _require_space(target, missing)
        on_start(sum(file.size for file in files))
        if missing or not has_manifest(target):
            mark_unfinished(target)
        _run_in_threads(workers, lambda file, _: _require_intact(file, on_bytes), there)
        _run_in_threads(workers, lambda file, stopped: _copy(file, stopped, on_bytes), missing)
        if os.path.lexists(target / MARKER):
            write_manifest(target, manifest)
    copied, kept = (tuple(file.source.name for file in part) for part in (missing, there))
    return StagingResult(target, copied, kept, len(manifest.shards) - len(entries))


def _files(source: Path, target: Path, manifest: Manifest, entries: Sequence[ShardEntry]) -> list[_File]:
    """The files of the copy with their sizes. Raises WorkError for one that cannot be read in the source."""
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
                f"{source / name}: {MANIFEST} lists this file, but it cannot be read ({error.strerror}); see "
                f"`podium data verify {source}`"
            ) from None
        files.append(_File(source / name, target / name, size, manifest, number))
    return files


def _require_disjoint(source: Path, target: Path) -> None:
    """Raise UsageError for a target that is the source, is inside it, or contains it."""
    here, there = source.resolve(), target.resolve()
    if here == there or here in there.parents or there in here.parents:
        raise UsageError(f"{target}: is the store {source}, or one contains the other; name a folder outside of it")


def _require_same_store(target: Path, manifest: Manifest) -> None:
    """Raise UsageError for a folder with another store, or with shards of another store."""
    advice = "name a new folder, or remove that store"
    if (found := read_manifest(target)) is not None and found != manifest:
        what = next(found.differences(manifest)).sentence(target, "the store to be copied")
        raise UsageError(f"{target}: holds another store ({what}); {advice}")
    known = {shard.name for shard in manifest.shards}
    for path in sorted(target.glob(f"*{SUFFIX}")):
        if path.name not in known:
            raise UsageError(f"{target}: holds another store, with {path.name}; {advice}")


def _require_space(target: Path, missing: Sequence[_File]) -> None:
    """Raise WorkError where the disk has too little space for these files."""
    needed = sum(file.size for file in missing) + SPARE_BYTES
    free = shutil.disk_usage(target).free
    if missing and needed > free:
        raise WorkError(
            f"{target}: the disk is full: the copy needs {needed / 1e6:,.1f} MB more, and it has {free / 1e6:,.1f} MB "
            "free; make room, or name a folder on another disk"
        )


def _run_in_threads(workers: int, work: Callable[[_File, Event], None], files: Sequence[_File]) -> None:
    """Call `work` for each file in `workers` threads, and raise the first error.

    After an error or an interruption no further call starts, and the event makes running calls return early.
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


def _require_intact(file: _File, on_bytes: ByteProgress) -> None:
    """Raise WorkError unless the existing file in the target is complete and equal to the source's."""
    why = "it is a link" if file.target.is_symlink() else _find_fault(file, file.target)
    if why:
        raise WorkError(
            f"{file.target}: already exists and is not the one in {file.source.parent}: {why}; it is not replaced: "
            "remove it, or name another folder"
        )
    on_bytes(file.size)


def _copy(file: _File, stopped: Event, on_bytes: ByteProgress) -> None:
    """Copy a file to a temporary name, compare its bytes on the disk with the manifest, and rename it."""
    with atomic_file(file.target) as temporary:
        copied = _copy_bytes(file, temporary, stopped, on_bytes)
        if fault := _find_fault(file, temporary):
            if sha256_of(temporary) != copied:  # the source may be intact
                raise WorkError(
                    f"{file.target}: the disk returns other bytes than were written; check the disk and its file system"
                )
            raise WorkError(f"{file.source}: cannot be copied: {fault}; see `podium data verify {file.source.parent}`")
        if os.path.lexists(file.target):
            raise WorkError(f"{file.target}: another process created it during the copy; remove it and start again")


def _find_fault(file: _File, path: Path) -> str:
    """Read the file at `path` and compare it with the manifest: the reason why it differs, or an empty string."""
    try:
        if file.number is None:
            right = sha256_of(path) == file.manifest.lengths_sha256
            return "" if right else f"its SHA-256 is not the one that {MANIFEST} lists"
        shard = Shard(path)
        if (difference := file.manifest.find_difference(file.number, shard.attributes)) is not None:
            return f"its {difference.what} is {difference.found}, and {MANIFEST} lists {difference.expected}"
        shard.verify()
    except PodiumError as error:
        return str(error).removeprefix(f"{path}: ").partition("; ")[0]  # the advice is for shards of the store itself
    return ""


def _copy_bytes(file: _File, temporary: Path, stopped: Event, on_bytes: ByteProgress) -> str:
    """Copy a file's bytes and sync them to the disk. Returns their SHA-256."""
    digest = hashlib.sha256()
    try:
        source = open_regular(file.source)
    except OSError as error:
        raise _read_error(file, error) from None
    with source, _open_durably(file, temporary) as descriptor:
        while True:
            if stopped.is_set():
                raise Interrupted("interrupted")
            try:
                block = source.read(BLOCK_BYTES)
            except OSError as error:
                raise _read_error(file, error) from None
            if not block:
                return digest.hexdigest()
            digest.update(block)
            rest = memoryview(block)
            while rest:  # a write may be partial
                rest = rest[os.write(descriptor, rest) :]
            on_bytes(len(block))


@contextmanager
def _open_durably(file: _File, temporary: Path) -> Iterator[int]:
    """Context manager for the descriptor of a new file, which is synced to the disk at the end of the block."""
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            yield descriptor
            os.fsync(descriptor)
            # Drop the pages: verification must read the bytes from the disk and not from the page cache.
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise write_error(file.target, error) from None


def _read_error(file: _File, error: OSError) -> WorkError:
    return WorkError(f"{file.source}: cannot be read ({error.strerror}); see `podium data verify {file.source.parent}`")
