"""The sample store: a folder of shards, of which opening reads the manifest and the length index alone.

The manifest (manifest.py) lists the shards: some that are missing, added or replaced are an error. The length index
(length_index.py) is a file that all processes of a node map. Shards are opened when their samples are read, and
compared with the manifest then. A node that needs a part of the samples alone may lack the other shards.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bert.length_index import FILE, Counts, JoinedColumn, StoredLengths, unfit
from benchmarks.bert.manifest import (
    EXTRA,
    MANIFEST,
    MISSING,
    WHOLE_STORE,
    Difference,
    Manifest,
    NodePart,
    has_manifest,
    not_listed,
    read_manifest,
    require_equal,
    require_finished,
    write_manifest,
)
from benchmarks.bert.preparation.tokenization import Vocabulary
from benchmarks.bert.samples import Sample
from benchmarks.bert.shard import (
    ADVICE,
    LENGTHS,
    MASKED_COUNTS,
    NEVER_REPLACED,
    RANDOM,
    SUFFIX,
    WHOLE,
    Origin,
    Shard,
    differences,
    misnamed,
    opened_shard,
    repeats,
)
from podium.core.errors import PodiumError, UsageError, WorkError
from podium.core.files import allow_open_files, remove_unfinished, write_changed
from podium.core.locks import folder_lock
from podium.core.processes import processors
from podium.core.text import cut

MOST_VERIFIED_AT_ONCE = 16  # shards, each of which is copied out of its records meanwhile


class SampleStore:
    """The samples of several shards, one after another in the order of the shards' names.

    `source` is a folder, of which every *.h5 is taken, or the paths of shards; of a folder with a length index, shards
    outside of `part` may be missing. Raises UsageError if there is no shard, WorkError if the length index does not fit
    or two shards do not belong together, and ManifestError if a folder has a manifest that does not list just these
    shards or is not finished.
    """

    vocabulary_size: int | None = None  # words, once `require` has compared the vocabulary

    def __init__(self, source: Path | Sequence[Path], part: NodePart = WHOLE_STORE) -> None:
        self.folder = source if isinstance(source, Path) else None  # the one that a manifest belongs to
        self.part = part
        found, listed = shard_paths(source), None
        if self.folder is not None:
            require_finished(self.folder)
            listed = read_manifest(self.folder)
        if self.folder is None or listed is None or listed.lengths_sha256 is None:
            self._open_all(found, listed)
        else:
            self._open_listed(self.folder, listed, {path.name for path in found})
        allow_open_files(len(self.present))

    def _open_all(self, paths: list[Path], listed: Manifest | None) -> None:
        """Without a length index: make one of all shards, in memory."""
        shards = [Shard(path) for path in paths]
        attributes = {shard.path: shard.attributes for shard in shards}
        self.manifest = Manifest.of_attributes(attributes)
        if self.folder is not None:
            if listed is not None:
                require_equal(self.folder, self.manifest, listed)
            require_named(attributes)
        require_alike(attributes)
        self.index = index_of(shards)
        self.paths, self.present = paths, [*range(len(paths))]
        self._opened = dict(enumerate(shards))

    def _open_listed(self, folder: Path, manifest: Manifest, found: set[str]) -> None:
        assert manifest.lengths_sha256 is not None and manifest.max_predictions is not None
        self.manifest, self._opened = manifest, dict[int, Shard]()
        self.paths = [folder / entry.name for entry in manifest.shards]
        self.present = manifest.shards_of(self.part)
        odd = [Difference(self.paths[number].name, MISSING) for number in self.present]
        odd = [difference for difference in odd if difference.shard not in found]
        odd += [Difference(name, EXTRA) for name in sorted(found - {entry.name for entry in manifest.shards})]
        if odd:
            raise not_listed(folder, odd[0], len(odd) - 1)
        lengths = manifest.max_sequence_length, manifest.max_predictions
        self.index = StoredLengths.mapped(folder / FILE, manifest.samples, manifest.lengths_sha256, *lengths)

    @property
    def stores(self) -> Sequence["SampleStore"]:
        """The stores whose samples these are, one after another."""
        return [self]

    @property
    def max_sequence_length(self) -> int:
        return self.manifest.max_sequence_length

    @property
    def max_predictions(self) -> int:
        assert self.manifest.max_predictions is not None, "of shards, or of a manifest that lists a length index"
        return self.manifest.max_predictions

    @property
    def vocabulary_sha256(self) -> str:
        return self.manifest.vocabulary_sha256

    @property
    def lengths(self) -> Counts:
        """Tokens of each sample [N]."""
        return self.index.lengths

    @property
    def masked_counts(self) -> Counts:
        """Masked tokens of each sample [N]."""
        return self.index.masked_counts

    @property
    def shard_starts(self) -> list[int]:
        """The index of the first sample of each shard, and the one after the last of all."""
        return self.manifest.shard_starts

    def __len__(self) -> int:
        return self.manifest.samples

    def __reduce__(self) -> tuple[type["SampleStore"], tuple[Any, ...], dict[str, Any]]:
        """Another process opens the same shards for itself."""
        return SampleStore, (self.folder or self.paths, self.part), {"vocabulary_size": self.vocabulary_size}

    def shard(self, number: int) -> Shard:
        """The shard with this number, counted from 0, opened at the first call.

        Raises as `Shard` does, WorkError for a shard outside of this node's part, and ManifestError for one that is not
        what the manifest lists.
        """
        if (opened := self._opened.get(number)) is not None:
            return opened
        if number not in self.present:
            first, end = self.part.range_of(len(self))
            raise WorkError(
                f"{self.paths[number]}: the shard is outside of the samples {first:,} to {end - 1:,}, which are those "
                f"of node {self.part.node} of {self.part.nodes}"
            )
        return self._opened.setdefault(number, self._open(number))

    def _open(self, number: int) -> Shard:
        """A shard, compared with what the manifest lists."""
        shard = Shard(self.paths[number])
        if (difference := self.manifest.difference_of(number, shard.attributes)) is not None:
            raise not_listed(shard.path.parent, difference, 0)
        if self.folder is not None:
            require_named({shard.path: shard.attributes})
        return shard

    @property
    def shards(self) -> list[Shard]:
        """The shards that this node reads, all opened."""
        return [self.shard(number) for number in self.present]

    def place_of(self, index: int) -> tuple[int, int]:
        """The number of the shard that has sample `index`, and the sample's number there."""
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of a store of {len(self)}")
        number = bisect_right(self.shard_starts, index) - 1
        return number, index - self.shard_starts[number]

    def read(self, index: int) -> Sample:
        """Sample `index` of 0..N−1; IndexError otherwise."""
        number, place = self.place_of(index)
        return self.shard(number).read(place)

    def require(self, vocabulary: Vocabulary, name: Path) -> None:
        """Raise UsageError unless the samples were made with this vocabulary; `name` is its file."""
        if self.vocabulary_sha256 != vocabulary.sha256:
            raise UsageError(
                f"{self.paths[0]}: was made with another vocabulary than {name}; name that one, or {ADVICE}"
            )
        self.vocabulary_size = len(vocabulary.words)

    def require_whole(self) -> None:
        """Raise UsageError, by the rule's name, if samples were left out at random: closed trains on all of them."""
        if self.manifest.selection == RANDOM:
            shard = self.shard(self.present[0])
            raise UsageError(
                f"{shard.path}: closed division, Data set: found a random subset of the "
                f"whole {shard.attributes['selected_from']:,} samples, allowed is all; prepare without --samples"
            )

    def require_samples(self, count: int, key: str) -> None:
        """Raise UsageError unless there are `count` samples, which the setting `key` asks for."""
        if len(self) < count:
            raise UsageError(
                f"{self.paths[0].parent}: holds {len(self)} samples, {key} is {count}; prepare a longer text or set "
                f"{key} to at most {len(self)}"
            )

    def verify(self) -> None:
        """Read everything and compare with the content hashes and the length index; look for values that cannot be.

        Raises WorkError for the first shard in which something is wrong. Each shard is read once, several at a time. Of
        a part of a store it is the part that is read.
        """

        def verify_shard(number: int) -> None:
            shard = self._open(number)  # anew: what is read of it is not kept
            samples = shard.samples
            shard.verify(samples)
            shard.require_values(self.vocabulary_size, samples)
            here = slice(self.shard_starts[number], self.shard_starts[number + 1])
            for name in ("lengths", "masked_counts"):
                if not np.array_equal(getattr(self.index, name)[here], getattr(shard, name)):
                    raise unfit(shard.path.parent / FILE, f"its {name} are not those of the samples in {shard.path}")

        with ThreadPoolExecutor(min(len(self.present), processors(), MOST_VERIFIED_AT_ONCE)) as pool:
            try:
                for _ in pool.map(verify_shard, self.present):
                    pass
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def keep_manifest(self) -> None:
        """Write manifest and length index of a store that was verified, if it lacks them; see `keep_manifest`."""
        if self.folder is not None:
            keep_manifest(self.folder, self.paths)


def index_of(shards: Sequence[Shard]) -> StoredLengths:
    """The length index of shards that are made alike, in memory."""
    attributes = shards[0].attributes
    longest, most = attributes["max_sequence_length"], attributes["max_predictions"]
    counts = ((shard.read_counts(LENGTHS), shard.read_counts(MASKED_COUNTS)) for shard in shards)
    parts = [StoredLengths.of(lengths, masked, longest, most).entries for lengths, masked in counts]
    return StoredLengths(np.concatenate(parts), longest, most)


def require_alike(shards: Mapping[Path, Mapping[str, Any]]) -> None:
    """Raise WorkError unless shards, given with their attributes, can be one store."""
    if odd := [*differences(shards), *repeats(shards.items())]:
        raise WorkError(f"{odd[0]}; {ADVICE}")


def require_named(shards: Mapping[Path, Mapping[str, Any]]) -> None:
    """Raise WorkError unless shards, given with their attributes, have the names of what they were made from."""
    if odd := misnamed(shards):
        raise WorkError(f"{odd[0]}; give it that name again, or {ADVICE}")


def require_replaceable(paths: Iterable[Path], origin: Origin) -> None:
    """Raise UsageError if one of these shards is of another vocabulary or length than those that are to be made in its
    folder, or of a whole text where a part is to be made: it would be lost.
    """
    wanted = origin.attributes()
    for path in sorted(paths):
        try:
            with opened_shard(path, None) as (_, found):
                pass
        except PodiumError:
            continue  # what cannot be used is no loss
        keys = [key for key in NEVER_REPLACED if found[key] != wanted[key]]
        if found["selection"] == WHOLE != wanted["selection"]:
            keys.append("selection")
        if keys:
            values = ", ".join(f"{key} {cut(str(found[key]), 20)} (here {cut(str(wanted[key]), 20)})" for key in keys)
            raise UsageError(
                f"{path.parent}: holds samples made otherwise, such as {path.name} with {values}, which would be "
                "replaced; give another --out, or remove the folder"
            )


def renew_manifest(folder: Path) -> None:
    """Write length index and manifest of all shards in a folder, where they are not as they should be already.

    The caller has locked the folder. Raises WorkError where the shards cannot be in one store.
    """
    _write_manifest(folder, [Shard(path) for path in shard_paths(folder)])


def _write_manifest(folder: Path, shards: Sequence[Shard]) -> None:
    attributes = {shard.path: shard.attributes for shard in shards}
    require_named(attributes)
    require_alike(attributes)
    index = index_of(shards)
    for name in (FILE, MANIFEST):
        remove_unfinished(folder / name)
    write_changed(folder / FILE, index.entries.tobytes())
    write_manifest(folder, Manifest.of_attributes(attributes, index.sha256))


def require_index(folder: Path) -> None:
    """Raise WorkError unless the length index that a store's manifest lists, if it does, is that of the shards."""
    manifest = read_manifest(folder)
    if manifest is None or manifest.lengths_sha256 is None:
        return
    found = index_of([Shard(path) for path in shard_paths(folder)])
    if found.sha256 != manifest.lengths_sha256:
        raise unfit(folder / FILE, f"the hash in {MANIFEST} is not that of the shards' lengths")
    lengths = manifest.max_sequence_length, found.max_predictions
    StoredLengths.mapped(folder / FILE, manifest.samples, manifest.lengths_sha256, *lengths)


def keep_manifest(folder: Path, paths: Sequence[Path]) -> None:
    """Write length index and manifest into the folder of verified shards, these, if it has none yet.

    Where the folder cannot be written, or is being prepared, the store stays without. That loses nothing but the
    comparison with a later state of the folder, and time: ranks compare what they have opened.
    """
    with suppress(PodiumError), folder_lock(folder, "podium data prepare"):
        require_finished(folder)
        if not has_manifest(folder) and shard_paths(folder) == [*paths]:
            _write_manifest(folder, [Shard(path) for path in paths])


class JoinedStores(SampleStore):
    """The samples of several stores, one store after another, each with a greatest length of its own.

    Raises WorkError for stores that were made with different vocabularies.
    """

    def __init__(self, stores: Sequence[SampleStore]) -> None:
        for store in stores[1:]:
            if store.vocabulary_sha256 != stores[0].vocabulary_sha256:
                raise WorkError(
                    f"{store.paths[0]}: was made with another vocabulary than {stores[0].paths[0]}, and both are to "
                    f"train one model; {ADVICE}"
                )
        self.folder, self.vocabulary_size = None, stores[0].vocabulary_size
        self._stores = [*stores]
        self._bounds: list[int] = [0, *np.cumsum([len(store) for store in stores]).tolist()]
        self.paths = [path for store in stores for path in store.paths]
        allow_open_files(sum(len(store.present) for store in stores))

    @property
    def stores(self) -> Sequence[SampleStore]:
        return self._stores

    @property
    def max_sequence_length(self) -> int:
        return max(store.max_sequence_length for store in self._stores)

    @property
    def vocabulary_sha256(self) -> str:
        return self._stores[0].vocabulary_sha256

    @cached_property
    def lengths(self) -> Counts:
        return JoinedColumn([store.lengths for store in self._stores], self._bounds)

    @cached_property
    def masked_counts(self) -> Counts:
        return JoinedColumn([store.masked_counts for store in self._stores], self._bounds)

    @cached_property
    def shard_starts(self) -> list[int]:
        return [0, *np.cumsum([entry.samples for store in self._stores for entry in store.manifest.shards]).tolist()]

    def __len__(self) -> int:
        return self._bounds[-1]

    def __reduce__(self) -> tuple[type[SampleStore], tuple[Any, ...], dict[str, Any]]:
        return JoinedStores, (self._stores,), {}

    def shard(self, number: int) -> Shard:
        for store in self._stores:
            if number < len(store.paths):
                return store.shard(number)
            number -= len(store.paths)
        raise IndexError(f"there is no shard {number} more")

    @property
    def shards(self) -> list[Shard]:
        return [shard for store in self._stores for shard in store.shards]

    def range_of(self, number: int) -> tuple[int, int]:
        """The first index of the samples of a store, counted from 0, and the one after the last."""
        return self._bounds[number], self._bounds[number + 1]


def join_stores(stores: Sequence[SampleStore]) -> SampleStore:
    """All samples of these stores, in this order: a single store as it is."""
    return stores[0] if len(stores) == 1 else JoinedStores(stores)


def shard_paths(source: Path | Sequence[Path]) -> list[Path]:
    """The shards of a store in the order of their names; UsageError if there is none."""
    if isinstance(source, Path) and not source.is_dir():
        raise UsageError(f"{source}: there is no such folder of shards; make it with `podium data prepare`")
    given = source if isinstance(source, Sequence) else source.glob(f"*{SUFFIX}")
    paths = sorted(given, key=lambda path: (path.name, path))
    if not paths:
        place = "no shard was given" if isinstance(source, Sequence) else f"{source}: no *{SUFFIX} shard is in it"
        raise UsageError(f"{place}; make shards with `podium data prepare`")
    return paths
