"""Verification of the sample stores on one node: every byte once, afterwards by the state of the files.

A store is verified in full when a set of runs begins, when a run is resumed, and when it is packaged. Between the runs
of a set, and after each, an unchanged state of every file is enough: size, inode, mtime and ctime.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.bert.length_index import FILE
from benchmarks.bert.manifest import Manifest
from benchmarks.bert.shard import Shard
from benchmarks.bert.store import SampleStore, shard_paths
from podium.config.run_data import RunData
from podium.config.schema import RunConfig
from podium.core.errors import PodiumError, WorkError

MIN_READ_RATE = 25 * 2**20  # bytes/s of the slowest node that is waited for
MIN_SECONDS = 300.0


class DataChangedError(WorkError):
    """The data of a run was changed during the run, which is no result therefore."""


@dataclass(frozen=True)
class FileState:
    """Attributes of a file that change when it is written or replaced."""

    # mtime can be set by utime(2). ctime, the time of the inode's last change, cannot be set by any call.

    size: int
    inode: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, path: Path) -> "FileState":
        """Read the state of a file; WorkError if it is missing."""
        try:
            found = path.stat()
        except OSError as error:
            raise WorkError(f"{path}: the shard cannot be opened ({error.strerror}); check that it is there") from None
        return cls(found.st_size, found.st_ino, found.st_mtime_ns, found.st_ctime_ns)


@dataclass(frozen=True)
class VerifiedStore:
    """Manifest of a verified store, and the state of its files just before the verification."""

    manifest: Manifest
    files: Mapping[Path, FileState]


class NodeData:
    """Stores, or the parts of them that this node reads, that this process has verified."""

    def __init__(self, node: int = 0) -> None:
        self.node = node
        self._stores: dict[Path, VerifiedStore] = {}

    def verify(self, store: SampleStore) -> Manifest:
        """Verify every byte of a store; raises WorkError if a shard is missing or differs from the manifest."""
        assert store.folder is not None
        # Before reading: a change during the verification then shows as a difference later.
        files = _file_states(store.folder)
        store.verify()
        if not {store.paths[number] for number in store.present} <= {*files}:
            raise WorkError(f"{store.folder}: shards were added or removed during the verification; start again")
        self._stores[store.folder] = VerifiedStore(store.manifest, files)
        return store.manifest

    def of(self, config: RunConfig) -> RunData:
        """Manifests of the stores that a run of this configuration reads; a changed store is verified again."""
        manifests, parts = {}, config.store_parts(self.node)
        for key, folder in config.all_stores.items():
            known = self._stores.get(folder)
            unchanged = known is not None and known.files == _file_states(folder)
            manifests[key] = known.manifest if known and unchanged else self.verify(SampleStore(folder, parts[key]))
        return RunData(manifests)

    def require(self, config: RunConfig, expected: RunData, other: str) -> None:
        """Verify the stores on this node; WorkError unless they equal `expected`, which the message calls `other`."""
        if difference := self.of(config).difference(expected, config.all_stores, other):
            raise WorkError(f"{difference}; restore the samples, or start another set of runs")

    def require_unchanged(self) -> None:
        """Raise DataChangedError if a file of a store was changed since it was verified."""
        for folder, store in self._stores.items():
            try:
                files = _file_states(folder)
                changed = [path for path in {**store.files, **files} if _is_changed(path, store.files, files)]
            except PodiumError as error:
                raise DataChangedError(f"the data was changed during the run: {error}") from None
            if changed:
                more = f", and {len(changed) - 1} more" if len(changed) > 1 else ""
                raise DataChangedError(
                    f"the data was changed during the run: {changed[0]}{more} is not the file that was verified before "
                    "the run; make sure that no process writes there, check with `podium data verify`, and run again"
                )


def data_bytes(config: RunConfig) -> int:
    """Size in bytes of all shards that a run of this configuration may read."""
    return sum(FileState.of(path).size for folder in config.all_stores.values() for path in shard_paths(folder))


def verification_seconds(config: RunConfig) -> float:
    """Timeout in seconds for a node that verifies its data."""
    return MIN_SECONDS + data_bytes(config) / MIN_READ_RATE


def _file_states(folder: Path) -> dict[Path, FileState]:
    """State of each shard, and of the length index if there is one."""
    index = folder / FILE
    return {path: FileState.of(path) for path in (*shard_paths(folder), *([index] if index.exists() else []))}


def _is_changed(path: Path, before: Mapping[Path, FileState], now: Mapping[Path, FileState]) -> bool:
    """Whether a file was replaced or its content has changed; WorkError for a damaged shard.

    A change of ctime only, such as by chmod or by a hard link of a backup, changes no sample: the content is then
    verified again.
    """
    one, other = before.get(path), now.get(path)
    if one is None or other is None or (one.size, one.inode, one.mtime_ns) != (other.size, other.inode, other.mtime_ns):
        return True
    if one.ctime_ns == other.ctime_ns:
        return False
    if path.name != FILE:  # the index is compared with its hash by every rank that opens it
        Shard(path).verify()
    return False
