"""The sample store: HDF5 shards of flat arrays with offsets, to be memory-mapped; no padding, no pickle.

A shard has one contiguous dataset for each array of `Samples`, and attributes that record what it was made from. Its
offsets are metadata: opening a store reads them and no other part of the samples. A folder of shards has a manifest
(manifest.py), which lists them: shards that are missing, added or replaced are an error when the store is opened.
"""

import hashlib
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from benchmarks.bert.manifest import (
    MANIFEST,
    Manifest,
    has_manifest,
    require_finished,
    require_listed,
    write_manifest,
)
from benchmarks.bert.preparation.settings import GenerationSettings
from benchmarks.bert.preparation.tokenization import Vocabulary
from benchmarks.bert.samples import SAMPLE_DTYPES, Sample, Samples, value_fault
from podium.core.errors import PodiumError, UsageError, WorkError
from podium.core.files import allow_open_files, remove_unfinished, write_whole
from podium.core.locks import folder_lock
from podium.core.processes import processors
from podium.core.text import cut

FORMAT = "podium-samples"
FORMAT_VERSION = 2
SUFFIX = ".h5"
ADVICE = "prepare it again with `podium data prepare`"

OFFSETS_A_BLOCK = 1 << 20  # that are read at a time

TEXT = "text"  # `Origin.made_by` of samples that were generated here
# `Origin.selection`: every sample there is, the reference's pick of evaluation samples, a random subset.
WHOLE, EVALUATION, RANDOM = "whole", "evaluation", "random"

# Attributes that all shards of a store have in common.
NEVER_REPLACED = ("max_sequence_length", "max_predictions", "vocabulary_sha256")
ALIKE = ("vocabulary_sha256", "max_sequence_length", "max_predictions", "selection", "selection_sha256")


@dataclass(frozen=True)
class Origin:
    """What the samples of a shard were made from, and how; all of it is kept in the shard."""

    source: str  # name of the file that they were made from
    source_sha256: str  # of that file's bytes, in hexadecimal
    vocabulary_sha256: str
    max_sequence_length: int
    max_predictions: int
    made_by: str = TEXT  # `text`, or the name of the format that they were imported from
    selection: str = WHOLE
    selected_from: int = 0  # samples of the whole that they were selected from; 0 where nothing was left out
    # Of everything that decided what was selected: two shards belong to one selection if they agree.
    selection_sha256: str = ""
    # How they were generated; None for imported samples, whose maker does not say.
    generation: GenerationSettings | None = None

    @classmethod
    def of_text(cls, source: str, source_sha256: str, vocabulary_sha256: str, settings: GenerationSettings) -> "Origin":
        """Of all samples of one text."""
        longest, most = settings.max_sequence_length, settings.max_predictions
        return cls(source, source_sha256, vocabulary_sha256, longest, most, generation=settings)

    @classmethod
    def of_attributes(cls, kept: Mapping[str, Any]) -> "Origin":
        """As a shard keeps it. UsageError for generation settings that cannot be."""
        own = {name: kept[name] for name in ORIGIN_ATTRIBUTES}
        if kept["made_by"] != TEXT:
            return cls(**own)
        return cls(**own, generation=GenerationSettings(**{name: kept[name] for name in GENERATION_ATTRIBUTES}))

    def attributes(self) -> dict[str, Any]:
        """As a shard keeps it."""
        own = {name: getattr(self, name) for name in ORIGIN_ATTRIBUTES}
        return own | (asdict(self.generation) if self.generation else {})


ORIGIN_ATTRIBUTES: Mapping[str, type] = {
    **dict.fromkeys(("source", "source_sha256", "vocabulary_sha256", "made_by", "selection", "selection_sha256"), str),
    **dict.fromkeys(("max_sequence_length", "max_predictions", "selected_from"), int),
}
# Only in shards that were made by `text`.
GENERATION_ATTRIBUTES: Mapping[str, type] = {name: type(value) for name, value in asdict(GenerationSettings()).items()}
# The attributes of every shard and their types.
ATTRIBUTES: Mapping[str, type] = {
    **dict.fromkeys(("format", "content_sha256"), str),
    **dict.fromkeys(("format_version", "samples", "tokens", "masked_tokens"), int),
    **ORIGIN_ATTRIBUTES,
}


def stored_arrays(samples: Samples) -> dict[str, NDArray[Any]]:
    """The arrays by name, as their bytes are stored."""
    return {name: np.ascontiguousarray(getattr(samples, name), dtype) for name, dtype in SAMPLE_DTYPES.items()}


def content_sha256(arrays: Mapping[str, NDArray[Any]]) -> str:
    """SHA-256 over name, dtype, length and bytes of every array, in the order of SAMPLE_DTYPES."""
    digest = hashlib.sha256()
    for name, dtype in SAMPLE_DTYPES.items():
        digest.update(f"{name} {dtype.str} {len(arrays[name])}\n".encode())
        digest.update(arrays[name].data)
    return digest.hexdigest()


def write_shard(path: Path, samples: Samples, origin: Origin) -> None:
    """Write one shard, whole or not at all; the same samples and origin give the same bytes.

    It replaces a shard of that name. Raises WorkError if the disk or the permissions do not allow it.
    """
    arrays = stored_arrays(samples)
    assert len(samples) > 0, "a shard has at least one sample"
    attributes = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "samples": len(samples),
        "tokens": len(arrays["token_ids"]),
        "masked_tokens": len(arrays["masked_token_ids"]),
        "content_sha256": content_sha256(arrays),
        **origin.attributes(),
    }
    with new_hdf5(path) as file:
        for name, value in attributes.items():
            set_attribute(file, name, {**ATTRIBUTES, **GENERATION_ATTRIBUTES}[name](value))
        for name, array in arrays.items():
            file.create_dataset(name, data=array, track_times=False)


@contextmanager
def new_hdf5(path: Path) -> Iterator[h5py.File]:
    """A new HDF5 file, on the disk whole when the block ends; what is there is replaced.

    Until then it is in memory, since HDF5 can crash where it meets a full disk. Its layout is that of HDF5 1.8, whose
    metadata have checksums; no times are in it, so the same content gives the same bytes.
    """
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_libver_bounds(h5py.h5f.LIBVER_V18, h5py.h5f.LIBVER_V18)
    access.set_fapl_core(block_size=2**20, backing_store=False)
    creation = h5py.h5p.create(h5py.h5p.FILE_CREATE)
    creation.set_obj_track_times(False)
    with h5py.File(h5py.h5f.create(b"shard", h5py.h5f.ACC_TRUNC, creation, access)) as file:
        yield file
        file.flush()
        image: bytes = file.id.get_file_image()
    write_whole(path, image)


def set_attribute(file: h5py.File, name: str, value: float | str) -> None:
    """Text becomes a string of fixed length, so that all of an attribute lies under its checksum."""
    if isinstance(value, str):
        text = value.encode("utf-8", "backslashreplace")
        file.attrs.create(name, text, dtype=h5py.string_dtype("utf-8", max(1, len(text))))
    else:
        file.attrs[name] = value


def attributes_of(file: h5py.File, prefix: str = "") -> dict[str, Any]:
    """A shard's attributes by their names without the prefix, as int, float or str; None for one of another type."""
    found: dict[str, Any] = {}
    for name in (*ATTRIBUTES, *GENERATION_ATTRIBUTES):
        if prefix + name not in file.attrs:
            continue
        stored = file.attrs.get_id(prefix + name)
        value = file.attrs[prefix + name].item() if stored.shape == () and stored.dtype.kind in "ifS" else None
        if isinstance(value, bytes):
            try:
                value = value.decode("utf-8")
            except UnicodeDecodeError:
                value = None
        found[name] = value
    return found


def attribute_fault(found: Mapping[str, Any]) -> str:
    """Why a shard of this format cannot have these attributes; empty where it can."""
    expected = {"format": FORMAT, "format_version": FORMAT_VERSION}
    kinds = {**ATTRIBUTES, **(GENERATION_ATTRIBUTES if found.get("made_by") == TEXT else {})}
    for name in (*expected, *kinds):
        if name not in found:
            return f"it has no attribute {name}"
        if type(found[name]) is not kinds[name]:
            return f"its attribute {name} is no {kinds[name].__name__}"
        if found[name] != expected.get(name, found[name]):
            return f"its {name} is {found[name]!r}, not {expected[name]!r}"
    if found["selection"] not in (WHOLE, EVALUATION, RANDOM):
        return f"its selection is {found['selection']!r}, not {WHOLE}, {EVALUATION} or {RANDOM}"
    return ""


def differences(shards: Mapping[Path, Mapping[str, Any]]) -> list[str]:
    """Where a shard, given with its attributes, was made otherwise than the first one, a sentence each."""
    first, expected = next(iter(shards.items()))
    return [
        f"{path}: its {name} is {attributes[name]!r}, that of {first} is {expected[name]!r}"
        for path, attributes in shards.items()
        for name in ALIKE
        if attributes[name] != expected[name]
    ]


def repeats(shards: Iterable[tuple[Path, Mapping[str, Any]]]) -> list[str]:
    """Where a shard, given with its attributes, has the content of one before it, a sentence each."""
    first: dict[str, Path] = {}
    found = []
    for path, attributes in shards:
        other = first.setdefault(attributes["content_sha256"], path)
        if other is not path:
            found.append(f"{path}: has the same samples as {other}, and samples are not to come twice")
    return found


def misnamed(shards: Mapping[Path, Mapping[str, Any]]) -> list[str]:
    """Where a shard does not have the name of the file that it was made from, a sentence each."""
    return [
        f"{path}: was made from {attributes['source']}, and a shard has the name of that file"
        for path, attributes in shards.items()
        if path.name.encode("utf-8", "backslashreplace").decode() not in _shard_names(attributes["source"])
    ]


# What a shard's name drops of the name of the file that it is imported from.
STRIPPED_SUFFIX = re.compile(r"(?<=.)\.(hdf5|h5|tfrecord)\Z")


def _shard_names(source: str) -> tuple[str, str]:
    """The names of the shards that are prepared and imported from a file of this name."""
    return source + SUFFIX, STRIPPED_SUFFIX.sub("", source) + SUFFIX


def _unusable(path: Path, found: str) -> WorkError:
    return WorkError(f"{path}: the shard cannot be used: {found}; {ADVICE}")


@contextmanager
def _opened(path: Path) -> Iterator[tuple[h5py.File, dict[str, Any]]]:
    """A shard's file and its attributes, checked. Raises UsageError if there is none, WorkError if it is no shard."""
    if not path.is_file():
        raise UsageError(f"{path}: there is no such shard; make it with `podium data prepare`")
    try:
        with h5py.File(path, "r", locking=False) as file:
            attributes = attributes_of(file)
            if fault := attribute_fault(attributes):
                raise _unusable(path, fault)
            yield file, attributes
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        raise _unusable(path, f"it cannot be read as HDF5 ({error})") from error


class Shard:
    """One file of samples. Opening checks all but the content; `verify` checks that too.

    Raises UsageError if there is no such file and WorkError if it is not a whole shard of this format.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._mapped: dict[str, NDArray[Any]] | None = None
        with _opened(path) as (file, self.attributes):
            # The bytes of the file in which each array lies.
            self.places = {name: self._check_dataset(file, name) for name in SAMPLE_DTYPES}
            self._check_counts()
            longest, most = self.attributes["max_sequence_length"], self.attributes["max_predictions"]
            # Tokens and masked tokens of each sample, u2 [N].
            self.lengths = self._read_offsets(file["sample_offsets"], "tokens", longest)
            self.masked_counts = self._read_offsets(file["masked_offsets"], "masked_tokens", most)

    def __len__(self) -> int:
        return len(self.lengths)

    def read(self, index: int) -> Sample:
        """Sample `index` of 0..N−1."""
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of a shard of {len(self)}")
        arrays = self.arrays()
        start, end = arrays["sample_offsets"][index : index + 2]
        masked_start, masked_end = arrays["masked_offsets"][index : index + 2]
        return Sample(
            token_ids=arrays["token_ids"][start:end],
            first_segment_length=int(arrays["first_segment_lengths"][index]),
            masked_positions=arrays["masked_positions"][masked_start:masked_end],
            masked_token_ids=arrays["masked_token_ids"][masked_start:masked_end],
            next_sentence_label=int(arrays["next_sentence_labels"][index]),
        )

    @property
    def samples(self) -> Samples:
        """All samples of the shard; the arrays are read-only views of the memory-mapped file."""
        return Samples(**self.arrays())

    @property
    def origin(self) -> Origin:
        """What `write_shard` was told."""
        try:
            return Origin.of_attributes(self.attributes)
        except UsageError as error:
            raise self._broken(str(error)) from None

    def verify(self) -> None:
        """Read everything and compare with the content hash; raises WorkError if they differ."""
        found = content_sha256(self.arrays())
        if found != self.attributes["content_sha256"]:
            expected = self.attributes["content_sha256"]
            raise self._broken(f"its content has the SHA-256 {found}, and it was written with {expected}")

    def require_values(self, words: int | None) -> None:
        """Read everything and raise WorkError for a value that no sample can have; `words`: of the vocabulary."""
        if fault := value_fault(self.samples, words):
            raise self._broken("sample {}: {}".format(*fault))

    def arrays(self) -> Mapping[str, NDArray[Any]]:
        """The arrays of `Samples` by name, read-only views of the memory-mapped file; mapped at the first call."""
        if self._mapped is None:
            try:
                content = np.memmap(self.path, dtype=np.uint8, mode="r").view(np.ndarray)
            except (OSError, ValueError) as error:
                raise WorkError(f"{self.path}: the shard cannot be memory-mapped ({error})") from error
            self._mapped = {name: content[place].view(SAMPLE_DTYPES[name]) for name, place in self.places.items()}
        return self._mapped

    def _broken(self, found: str) -> WorkError:
        return _unusable(self.path, found)

    def _check_dataset(self, file: h5py.File, name: str) -> slice:
        """The bytes of the file in which a dataset lies."""
        link = file.get(name, getlink=True)
        if not isinstance(link, h5py.HardLink) or file.get(name, getclass=True) != h5py.Dataset:
            raise self._broken(f"it has no dataset {name}")
        dataset, dtype = file[name], SAMPLE_DTYPES[name]
        if dataset.dtype != dtype or dataset.ndim != 1:
            raise self._broken(f"{name} is {dataset.dtype} {list(dataset.shape)}, not {dtype} [n]")
        offset, size = dataset.id.get_offset(), dataset.nbytes
        if offset is None or dataset.id.get_storage_size() != size:
            raise self._broken(f"{name} is not contiguous in the file")
        if offset + size > self.path.stat().st_size:
            raise self._broken(f"{name} goes beyond the end of the file")
        return slice(offset, offset + size)

    def _check_counts(self) -> None:
        """Compare the length of every dataset with the attributes."""
        samples, tokens, masked = (self.attributes[name] for name in ("samples", "tokens", "masked_tokens"))
        expected = (tokens, samples + 1, samples, masked, masked, samples + 1, samples)
        for (name, place), count in zip(self.places.items(), expected, strict=True):
            found = (place.stop - place.start) // SAMPLE_DTYPES[name].itemsize
            if found != count:
                raise self._broken(f"{name} has {found} elements, not {count}")

    def _read_offsets(self, dataset: h5py.Dataset, counted: str, longest: int) -> NDArray[np.uint16]:
        """The differences of offsets that go from 0 to the number counted, in steps of 1 to `longest`.

        They are checked as they are read, so that a file with holes instead of offsets takes no memory.
        """
        name, count = dataset.name.removeprefix("/"), self.attributes[counted]
        first, last = (int(dataset[place]) if len(dataset) else 0 for place in (0, -1))
        if first != 0 or last != count:
            raise self._broken(f"{name} go from {first} to {last}, not from 0 to {count}")
        steps: list[NDArray[np.uint16]] = []
        for start in range(0, len(dataset) - 1, OFFSETS_A_BLOCK):
            block = np.diff(dataset[start : start + OFFSETS_A_BLOCK + 1])
            if block.min() < 1 or block.max() > min(longest, 65_535):
                steps.clear()
                break
            steps.append(block.astype(np.uint16))
        if not steps:
            raise self._broken(f"{name} do not ascend in steps of 1 to {longest}")
        return np.concatenate(steps)


class SampleStore:
    """The samples of several shards, one after another in the order of the shards' names.

    `source` is a folder, of which every *.h5 is taken, or the paths of shards. Raises UsageError if there is none,
    WorkError if a shard is unusable or two do not belong together, and ManifestError if a folder has a manifest that
    does not list just these shards or is not finished.
    """

    vocabulary_size: int | None = None  # words, once `require` has compared the vocabulary

    def __init__(self, source: Path | Sequence[Path]) -> None:
        self.folder = source if isinstance(source, Path) else None  # the one that a manifest belongs to
        paths = shard_paths(source)
        allow_open_files(len(paths))
        self._index([Shard(path) for path in paths])
        if self.folder is not None:
            require_listed(self.folder, self.manifest)
            require_named(self._attributes)
        require_alike(self._attributes)

    def _index(self, shards: list[Shard]) -> None:
        self.shards, self.paths = shards, [shard.path for shard in shards]
        self.vocabulary_sha256: str = shards[0].attributes["vocabulary_sha256"]
        self.max_sequence_length: int = max(shard.attributes["max_sequence_length"] for shard in shards)
        self._starts = [0, *np.cumsum([len(shard) for shard in self.shards]).tolist()]
        # Tokens and masked tokens of each sample, u2 [N]; metadata.
        self.lengths: NDArray[np.uint16] = np.concatenate([shard.lengths for shard in self.shards])
        self.masked_counts: NDArray[np.uint16] = np.concatenate([shard.masked_counts for shard in self.shards])

    @property
    def _attributes(self) -> dict[Path, dict[str, Any]]:
        return {shard.path: shard.attributes for shard in self.shards}

    @cached_property
    def manifest(self) -> Manifest:
        """What the manifest of these shards is, whether or not it is in their folder."""
        return Manifest.of_attributes(self._attributes)

    def __len__(self) -> int:
        return len(self.lengths)

    def __reduce__(self) -> tuple[type["SampleStore"], tuple[Any], dict[str, Any]]:
        """Another process opens the same shards for itself."""
        return SampleStore, (self.paths,), {"vocabulary_size": self.vocabulary_size}

    def read(self, index: int) -> Sample:
        """Sample `index` of 0..N−1; IndexError otherwise."""
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of a store of {len(self)}")
        shard = bisect_right(self._starts, index) - 1
        return self.shards[shard].read(index - self._starts[shard])

    def require(self, vocabulary: Vocabulary, name: Path) -> None:
        """Raise UsageError unless the samples were made with this vocabulary; `name` is its file."""
        if self.vocabulary_sha256 != vocabulary.sha256:
            raise UsageError(
                f"{self.paths[0]}: was made with another vocabulary than {name}; name that one, or {ADVICE}"
            )
        self.vocabulary_size = len(vocabulary.words)

    def require_whole(self) -> None:
        """Raise UsageError, by the rule's name, if samples were left out at random: closed trains on all of them."""
        for shard in self.shards:
            if shard.attributes["selection"] == RANDOM:
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
        """Read everything and compare with the content hashes, then look for values that cannot be.

        Raises WorkError for the first shard in which something is wrong. Each shard is read once, several at a time.
        """

        def verify_shard(shard: Shard) -> None:
            shard.verify()
            shard.require_values(self.vocabulary_size)

        with ThreadPoolExecutor(min(len(self.shards), processors())) as pool:
            try:
                for _ in pool.map(verify_shard, self.shards):
                    pass
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def keep_manifest(self) -> None:
        """Write the manifest into the folder of a store that was verified, if it has none yet; see `keep_manifest`."""
        if self.folder is not None:
            keep_manifest(self.folder, self._attributes)


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
            with _opened(path) as (_, found):
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
    """Write the manifest of all shards in a folder after some were made. The caller has locked the folder.

    Raises WorkError where another shard of the folder cannot be in one store with them.
    """
    attributes = {}
    for path in shard_paths(folder):
        with _opened(path) as (_, attributes[path]):
            pass
    require_named(attributes)
    require_alike(attributes)
    remove_unfinished(folder / MANIFEST)
    write_manifest(folder, Manifest.of_attributes(attributes))


def keep_manifest(folder: Path, shards: Mapping[Path, Mapping[str, Any]]) -> None:
    """Write the manifest of the verified shards of a folder, given with their attributes, if it has none yet.

    Where the folder cannot be written, or is being prepared, the store stays without one. That loses nothing but the
    comparison with a later state of the folder: ranks compare what they have opened.
    """
    with suppress(PodiumError), folder_lock(folder, "podium data prepare"):
        require_finished(folder)
        if not has_manifest(folder) and shard_paths(folder) == [*shards]:
            write_manifest(folder, Manifest.of_attributes(shards))


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
        self._index([shard for store in stores for shard in store.shards])
        allow_open_files(len(self.paths))

    def range_of(self, number: int) -> tuple[int, int]:
        """The first index of the samples of a store, counted from 0, and the one after the last."""
        return self._bounds[number], self._bounds[number + 1]

    def __reduce__(self) -> tuple[type[SampleStore], tuple[Any], dict[str, Any]]:
        return JoinedStores, (self._stores,), {}


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
