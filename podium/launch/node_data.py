"""The stores of a set of runs as one node has verified them: every byte once, then by the state of the files.

A store is verified in full when a set of runs begins, when a run is resumed, and when it is packaged. Between the runs
of a set, and after each, it is enough that the state of every file is as it was: size, inode and the times of the last
change of its content and of its entry.
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

SLOWEST = 25 * 2**20  # bytes a second, at which a node is no longer waited for
LEAST_SECONDS = 300.0


class DataChangedError(WorkError):
    """The data of a run was changed while the run used it, so that the run is no result."""


@dataclass(frozen=True)
class FileState:
    """What changes whenever a file is written or replaced. No call sets `ctime_ns`, the time of the entry's change."""

    size: int
    inode: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, path: Path) -> "FileState":
        """WorkError for a file that is not there."""
        try:
            found = path.stat()
        except OSError as error:
            raise WorkError(f"{path}: the shard cannot be opened ({error.strerror}); see that it is there") from None
        return cls(found.st_size, found.st_ino, found.st_mtime_ns, found.st_ctime_ns)


@dataclass(frozen=True)
class VerifiedStore:
    """A store that was verified, and its files' state just before."""

    manifest: Manifest
    files: Mapping[Path, FileState]


class NodeData:
    """The stores, or the parts of them that this node reads, that this process has verified on it."""

    def __init__(self, node: int = 0) -> None:
        self.node = node
        self._stores: dict[Path, VerifiedStore] = {}

    def verify(self, store: SampleStore) -> Manifest:
        """Read every byte of a store; raises what `SampleStore.verify` does."""
        assert store.folder is not None
        files = _states(store.folder)
        store.verify()
        if not {store.paths[number] for number in store.present} <= {*files}:
            raise WorkError(f"{store.folder}: shards came or went while they were verified; start again")
        self._stores[store.folder] = VerifiedStore(store.manifest, files)
        return store.manifest

    def of(self, config: RunConfig) -> RunData:
        """What a run of this configuration is trained and evaluated on; a store that was changed is verified anew."""
        manifests, parts = {}, config.store_parts(self.node)
        for key, folder in config.every_store.items():
            known = self._stores.get(folder)
            unchanged = known is not None and known.files == _states(folder)
            manifests[key] = known.manifest if known and unchanged else self.verify(SampleStore(folder, parts[key]))
        return RunData(manifests)

    def require(self, config: RunConfig, expected: RunData, other: str) -> None:
        """Verify the stores on this node; WorkError unless they are what is expected, in the words of `other`."""
        if difference := self.of(config).difference(expected, config.every_store, other):
            raise WorkError(f"{difference}; put the samples back, or start another set of runs")

    def require_unchanged(self) -> None:
        """Raise DataChangedError if a file of a store was changed since it was verified."""
        for folder, store in self._stores.items():
            try:
                files = _states(folder)
                changed = [path for path in {**store.files, **files} if _changed(path, store.files, files)]
            except PodiumError as error:
                raise DataChangedError(f"the data was changed during the run: {error}") from None
            if changed:
                more = f", and {len(changed) - 1} more" if len(changed) > 1 else ""
                raise DataChangedError(
                    f"the data was changed during the run: {changed[0]}{more} is not the file that was verified before "
                    "it; see that no process writes there, verify with `podium data verify`, and run again"
                )


def bytes_of(config: RunConfig) -> int:
    """Bytes of all shards that a run of this configuration may read."""
    return sum(FileState.of(path).size for folder in config.every_store.values() for path in shard_paths(folder))


def verification_seconds(config: RunConfig) -> float:
    """How long a node that verifies its data is waited for."""
    return LEAST_SECONDS + bytes_of(config) / SLOWEST


def _states(folder: Path) -> dict[Path, FileState]:
    """Of the shards, and of the length index where there is one."""
    index = folder / FILE
    return {path: FileState.of(path) for path in (*shard_paths(folder), *([index] if index.exists() else []))}


def _changed(path: Path, before: Mapping[Path, FileState], now: Mapping[Path, FileState]) -> bool:
    """Whether a file is another one, or of another content. A change of its entry alone, such as of its rights, or a
    link that a backup makes, changes no sample: then its content is read."""
    one, other = before.get(path), now.get(path)
    if one is None or other is None or (one.size, one.inode, one.mtime_ns) != (other.size, other.inode, other.mtime_ns):
        return True
    if one.ctime_ns == other.ctime_ns:
        return False
    if path.name != FILE:  # the index is compared with its hash by every rank that opens it
        Shard(path).verify()
    return False
