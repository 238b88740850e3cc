"""The sample store: a folder of shards. Opening reads only the manifest and the length index.

The manifest (manifest.py) lists the shards: missing, added or replaced ones are an error. The length index
(length_index.py) is a file that all processes of a node map. Shards are opened when their samples are first read, and
compared with the manifest then. On a node that reads only a part of the samples, the other shards may be missing.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bert.length_index import FILE, Counts, JoinedColumn, StoredLengths, length_index_error
from benchmarks.bert.manifest import (
    EXTRA,
    MANIFEST,
    MISSING,
    WHOLE_STORE,
    Difference,
    Manifest,
    NodePart,
    has_manifest,
    mismatch_error,
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
    PROTECTED_ATTRIBUTES,
    RANDOM,
    SUFFIX,
    WHOLE,
    Origin,
    Shard,
    describe_differences,
    describe_duplicates,
    describe_misnamed,
    open_shard,
)
from podium.core.errors import PodiumError, UsageError, WorkError
from podium.core.files import raise_open_file_limit, remove_partial_files, write_if_changed
from podium.core.locks import folder_lock
from podium.core.processes import processors
from podium.core.text import truncate

MAX_PARALLEL_VERIFICATIONS = 16  # shards; bounds memory, since verification copies all samples of a shard


class SampleStore:
    """The samples of several shards, concatenated in the order of the shards' names.

    `source` is a folder with *.h5 files or a list of their paths. In a folder with a length index, shards outside of
    `part` may be missing. Raises UsageError without any shard, WorkError for a length index that does not match or for
    shards that do not belong together, and ManifestError for an unfinished folder or one that differs from its
    manifest.
    """

    vocabulary_size: int | None = None  # known after `require`

    def __init__(self, source: Path | Sequence[Path], part: NodePart = WHOLE_STORE) -> None:
        self.folder = source if isinstance(source, Path) else None  # None for a list of paths, which has no manifest
        self.part = part
        found, listed = shard_paths(source), None
        if self.folder is not None:
            require_finished(self.folder)
            listed = read_manifest(self.folder)
        if self.folder is None or listed is None or listed.lengths_sha256 is None:
            self._open_all(found, listed)
        else:
            self._open_listed(self.folder, listed, {path.name for path in found})
        raise_open_file_limit(len(self.present))

    def _open_all(self, paths: list[Path], listed: Manifest | None) -> None:
        """Open all shards and build the length index in memory: for lists of paths and stores without an index."""
        shards = [Shard(path) for path in paths]
        attributes = {shard.path: shard.attributes for shard in shards}
        self.manifest = Manifest.of_attributes(attributes)
        if self.folder is not None:
            if listed is not None:
                require_equal(self.folder, self.manifest, listed)
            require_matching_names(attributes)
        require_compatible(attributes)
        self.index = build_length_index(shards)
        self.paths, self.present = paths, [*range(len(paths))]
        self._opened = dict(enumerate(shards))

    def _open_listed(self, folder: Path, manifest: Manifest, found: set[str]) -> None:
        """Map the length index and compare the names of the shards with the manifest; opens no shard."""
        assert manifest.lengths_sha256 is not None and manifest.max_predictions is not None
        self.manifest, self._opened = manifest, dict[int, Shard]()
        self.paths = [folder / entry.name for entry in manifest.shards]
        self.present = manifest.shard_numbers(self.part)
        problems = [Difference(self.paths[number].name, MISSING) for number in self.present]
        problems = [difference for difference in problems if difference.shard not in found]
        problems += [Difference(name, EXTRA) for name in sorted(found - {entry.name for entry in manifest.shards})]
        if problems:
            raise mismatch_error(folder, problems[0], len(problems) - 1)
        lengths = manifest.max_sequence_length, manifest.max_predictions
        self.index = StoredLengths.from_file(folder / FILE, manifest.samples, manifest.lengths_sha256, *lengths)

    @property
    def stores(self) -> Sequence["SampleStore"]:
        """The stores that are concatenated: this one, or those of a JoinedStores."""
        return [self]

    @property
    def max_sequence_length(self) -> int:
        return self.manifest.max_sequence_length

    @property
    def max_predictions(self) -> int:
        assert self.manifest.max_predictions is not None, "set by shards and by manifests with a length index"
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
        """Index of the first sample of each shard, and the number of samples [shards + 1]."""
        return self.manifest.shard_starts

    def __len__(self) -> int:
        return self.manifest.samples

    def __reduce__(self) -> tuple[type["SampleStore"], tuple[Any, ...], dict[str, Any]]:
        """Pickle as the source: another process opens the files again."""
        return SampleStore, (self.folder or self.paths, self.part), {"vocabulary_size": self.vocabulary_size}

    def shard(self, number: int) -> Shard:
        """The shard with this number, from 0, opened at the first call.

        Raises as `Shard` does, WorkError for a shard outside of this node's part, and ManifestError for one that
        differs from the manifest.
        """
        if (opened := self._opened.get(number)) is not None:
            return opened
        if number not in self.present:
            first, end = self.part.range_of(len(self))
            raise WorkError(
                f"{self.paths[number]}: the shard is outside of the samples {first:,} to {end - 1:,}, which are those "
                f"of node {self.part.node} of {self.part.nodes}"
            )
        return self._opened.setdefault(number, self._open(number))  # atomic: reader threads share one Shard

    def _open(self, number: int) -> Shard:
        """Open a shard and compare it with the manifest."""
        shard = Shard(self.paths[number])
        if (difference := self.manifest.find_difference(number, shard.attributes)) is not None:
            raise mismatch_error(shard.path.parent, difference, 0)
        if self.folder is not None:
            require_matching_names({shard.path: shard.attributes})
        return shard

    @property
    def shards(self) -> list[Shard]:
        """The shards that this node reads, all opened."""
        return [self.shard(number) for number in self.present]

    def locate(self, index: int) -> tuple[int, int]:
        """Number of the shard with sample `index`, and the sample's index within the shard. Raises IndexError."""
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of a store of {len(self)}")
        number = bisect_right(self.shard_starts, index) - 1
        return number, index - self.shard_starts[number]

    def read(self, index: int) -> Sample:
        """Read sample `index`, from 0 to N − 1. Raises IndexError for others, and as `shard`."""
        number, within = self.locate(index)
        return self.shard(number).read(within)

    def require_vocabulary(self, vocabulary: Vocabulary, name: Path) -> None:
        """Raise UsageError unless the samples were made with this vocabulary, and keep its size; `name` is its file."""
        if self.vocabulary_sha256 != vocabulary.sha256:
            raise UsageError(
                f"{self.paths[0]}: was made with another vocabulary than {name}; name that one, or {ADVICE}"
            )
        self.vocabulary_size = len(vocabulary.tokens)

    def require_all_samples(self) -> None:
        """Raise UsageError for a random subset of samples, which MLPerf's closed division does not allow."""
        if self.manifest.selection == RANDOM:
            shard = self.shard(self.present[0])
            raise UsageError(
                f"{shard.path}: closed division, Data set: found a random subset of the "
                f"whole {shard.attributes['selected_from']:,} samples, allowed is all; prepare without --samples"
            )

    def require_samples(self, count: int, key: str) -> None:
        """Raise UsageError for fewer than `count` samples, the value of the setting or option `key`."""
        if len(self) < count:
            raise UsageError(
                f"{self.paths[0].parent}: holds {len(self)} samples, {key} is {count}; prepare a longer text or set "
                f"{key} to at most {len(self)}"
            )

    def verify(self) -> None:
        """Read all shards of this part once: compare content hashes and length index, check all values.

        Several shards are read at a time. Raises WorkError for the first damaged shard.
        """

        def verify_shard(number: int) -> None:
            shard = self._open(number)  # not `self.shard`, which would keep every mapping
            samples = shard.samples
            shard.verify(samples)
            shard.require_values(self.vocabulary_size, samples)
            here = slice(self.shard_starts[number], self.shard_starts[number + 1])
            for name in ("lengths", "masked_counts"):
                if not np.array_equal(getattr(self.index, name)[here], getattr(shard, name)):
                    raise length_index_error(
                        shard.path.parent / FILE, f"its {name} are not those of the samples in {shard.path}"
                    )

        with ThreadPoolExecutor(min(len(self.present), processors(), MAX_PARALLEL_VERIFICATIONS)) as pool:
            try:
                for _ in pool.map(verify_shard, self.present):
                    pass
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def write_missing_manifest(self) -> None:
        """Write manifest and length index of a verified store that has none; errors are ignored."""
        if self.folder is not None:
            write_missing_manifest(self.folder, self.paths)


def build_length_index(shards: Sequence[Shard]) -> StoredLengths:
    """Build the length index of compatible shards in memory."""
    attributes = shards[0].attributes
    longest, most = attributes["max_sequence_length"], attributes["max_predictions"]
    counts = ((shard.read_counts(LENGTHS), shard.read_counts(MASKED_COUNTS)) for shard in shards)
    parts = [StoredLengths.of(lengths, masked, longest, most).entries for lengths, masked in counts]
    return StoredLengths(np.concatenate(parts), longest, most)


def require_compatible(shards: Mapping[Path, Mapping[str, Any]]) -> None:
    """Raise WorkError unless these shards with their attributes can form one store."""
    if problems := [*describe_differences(shards), *describe_duplicates(shards.items())]:
        raise WorkError(f"{problems[0]}; {ADVICE}")


def require_matching_names(shards: Mapping[Path, Mapping[str, Any]]) -> None:
    """Raise WorkError unless each shard is named after the file it was made from."""
    if problems := describe_misnamed(shards):
        raise WorkError(f"{problems[0]}; give it that name again, or {ADVICE}")


def require_replaceable(paths: Iterable[Path], origin: Origin) -> None:
    """Raise UsageError if writing shards of `origin` would replace samples that were made with other settings.

    These are another vocabulary or length, or a selection where all samples were kept.
    """
    wanted = origin.attributes()
    for path in sorted(paths):
        try:
            with open_shard(path, None) as (_, found):
                pass
        except PodiumError:
            continue  # an unusable shard may be replaced
        keys = [key for key in PROTECTED_ATTRIBUTES if found[key] != wanted[key]]
        if found["selection"] == WHOLE != wanted["selection"]:
            keys.append("selection")
        if keys:
            values = ", ".join(
                f"{key} {truncate(str(found[key]), 20)} (here {truncate(str(wanted[key]), 20)})" for key in keys
            )
            raise UsageError(
                f"{path.parent}: holds samples made with other settings, such as {path.name} with {values}, which "
                "would be replaced; give another --out, or remove the folder"
            )


def update_manifest(folder: Path) -> None:
    """Write length index and manifest of all shards in a folder; files that are up to date are not written again.

    The caller must hold the folder's lock. Raises WorkError where the shards do not belong together.
    """
    _write_manifest(folder, [Shard(path) for path in shard_paths(folder)])


def _write_manifest(folder: Path, shards: Sequence[Shard]) -> None:
    attributes = {shard.path: shard.attributes for shard in shards}
    require_matching_names(attributes)
    require_compatible(attributes)
    index = build_length_index(shards)
    for name in (FILE, MANIFEST):
        remove_partial_files(folder / name)
    # The manifest last, since it has the hash of the index and removes the marker of an unfinished store.
    write_if_changed(folder / FILE, index.entries.tobytes())
    write_manifest(folder, Manifest.of_attributes(attributes, index.sha256))


def require_length_index(folder: Path) -> None:
    """Raise WorkError where the length index of a store, if it has one, differs from its shards."""
    manifest = read_manifest(folder)
    if manifest is None or manifest.lengths_sha256 is None:
        return
    found = build_length_index([Shard(path) for path in shard_paths(folder)])
    if found.sha256 != manifest.lengths_sha256:
        raise length_index_error(folder / FILE, f"the hash in {MANIFEST} is not that of the shards' lengths")
    lengths = manifest.max_sequence_length, found.max_predictions
    StoredLengths.from_file(folder / FILE, manifest.samples, manifest.lengths_sha256, *lengths)


def write_missing_manifest(folder: Path, paths: Sequence[Path]) -> None:
    """Write length index and manifest into the folder of these verified shards, if it has none yet.

    Errors are ignored: the store stays without a manifest where the folder is read-only or locked. Then only the
    comparison with a later state of the folder is lost, and opening takes longer; ranks still compare what they open.
    """
    with suppress(PodiumError), folder_lock(folder, "podium data prepare"):
        require_finished(folder)
        if not has_manifest(folder) and shard_paths(folder) == [*paths]:
            _write_manifest(folder, [Shard(path) for path in paths])


class JoinedStores(SampleStore):
    """The concatenated samples of several stores, which may have different maximum lengths.

    Raises WorkError for stores that were made with different vocabularies.
    """

    def __init__(self, stores: Sequence[SampleStore]) -> None:
        for store in stores[1:]:
            if store.vocabulary_sha256 != stores[0].vocabulary_sha256:
                raise WorkError(
                    f"{store.paths[0]}: was made with another vocabulary than {stores[0].paths[0]}, and both "
                    f"train one model; {ADVICE}"
                )
        self.folder, self.vocabulary_size = None, stores[0].vocabulary_size
        self._stores = [*stores]
        self._bounds: list[int] = [0, *np.cumsum([len(store) for store in stores]).tolist()]
        self.paths = [path for store in stores for path in store.paths]
        raise_open_file_limit(sum(len(store.present) for store in stores))

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
        raise IndexError(f"shard number is {number} past the last shard")

    @property
    def shards(self) -> list[Shard]:
        return [shard for store in self._stores for shard in store.shards]

    def range_of(self, number: int) -> tuple[int, int]:
        """Start and end of the samples of store `number`, from 0."""
        return self._bounds[number], self._bounds[number + 1]


def join_stores(stores: Sequence[SampleStore]) -> SampleStore:
    """Concatenate stores in this order; a single store is returned as it is."""
    return stores[0] if len(stores) == 1 else JoinedStores(stores)


def shard_paths(source: Path | Sequence[Path]) -> list[Path]:
    """Paths of the shards of a store, ordered by name. Raises UsageError without any."""
    if isinstance(source, Path) and not source.is_dir():
        raise UsageError(f"{source}: there is no such folder of shards; make it with `podium data prepare`")
    given = source if isinstance(source, Sequence) else source.glob(f"*{SUFFIX}")
    paths = sorted(given, key=lambda path: (path.name, path))
    if not paths:
        place = "no shard was given" if isinstance(source, Sequence) else f"{source}: no *{SUFFIX} shard is in it"
        raise UsageError(f"{place}; make shards with `podium data prepare`")
    return paths
