"""One shard of a sample store: an HDF5 file of samples as records, and what they were made from; no padding, no pickle.

A record is one sample in one piece, so that one read takes it (records.py). Beside the records are the tokens and the
masked tokens of each sample, from which it follows where each record lies. The content hash is that of the samples'
flat arrays, whatever the layout: the same samples have the same hash in every version of this format.
"""

import hashlib
import mmap
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from benchmarks.bert.preparation.settings import GenerationSettings
from benchmarks.bert.records import TRAILER, pack, record_lengths, unpack
from benchmarks.bert.samples import SAMPLE_DTYPES, Sample, Samples, offsets_of, value_fault
from podium.core.errors import UsageError, WorkError
from podium.core.files import write_whole

FORMAT = "podium-samples"
FORMAT_VERSION = 3
OLDER_VERSION = 2  # which has a dataset for each array of `Samples`, and is converted by upgrade.py
SUFFIX = ".h5"
ADVICE = "remove it and copy it again with `podium data stage`, or prepare it again with `podium data prepare`"

# The datasets of a shard, all of two-byte numbers.
RECORDS, LENGTHS, MASKED_COUNTS = "records", "lengths", "masked_counts"
STORED_DTYPE = np.dtype("<u2")
BLOCK_BYTES = 1 << 22  # of lengths that are read at a time

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
        for name, array in (
            (LENGTHS, np.diff(samples.sample_offsets)),
            (MASKED_COUNTS, np.diff(samples.masked_offsets)),
            (RECORDS, pack(samples)),
        ):
            file.create_dataset(name, data=array.astype(STORED_DTYPE, copy=False), track_times=False)


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


def attribute_fault(found: Mapping[str, Any], version: int = FORMAT_VERSION) -> str:
    """Why a shard of this format and version cannot have these attributes; empty where it can."""
    expected = {"format": FORMAT, "format_version": version}
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


def unusable(path: Path, found: str, advice: str = ADVICE) -> WorkError:
    return WorkError(f"{path}: the shard cannot be used: {found}; {advice}")


@contextmanager
def opened_shard(path: Path, version: int | None = FORMAT_VERSION) -> Iterator[tuple[h5py.File, dict[str, Any]]]:
    """A shard's file and its attributes, checked.

    Raises UsageError if there is none, and WorkError if it is no shard of this version, or of any where none is given.
    """
    if not path.is_file():
        raise UsageError(f"{path}: there is no such shard; make it with `podium data prepare`")
    try:
        with h5py.File(path, "r", locking=False) as file:
            attributes = attributes_of(file)
            if fault := attribute_fault(attributes, version or FORMAT_VERSION):
                older = not attribute_fault(attributes, OLDER_VERSION)
                if not older or version is not None:
                    convert = f"convert the store, or a copy of it, with `podium data upgrade {path.parent}`"
                    advice = convert if older else ADVICE
                    raise unusable(path, fault, advice)
            yield file, attributes
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        raise unusable(path, f"it cannot be read as HDF5 ({error})") from error


def dataset_place(path: Path, file: h5py.File, name: str, dtype: np.dtype[Any]) -> slice:
    """The bytes of a shard's file in which a dataset [n] of this type lies. WorkError where it is another, or none."""
    link = file.get(name, getlink=True)
    if not isinstance(link, h5py.HardLink) or file.get(name, getclass=True) != h5py.Dataset:
        raise unusable(path, f"it has no dataset {name}")
    dataset = file[name]
    if dataset.dtype != dtype or dataset.ndim != 1:
        raise unusable(path, f"{name} is {dataset.dtype} {list(dataset.shape)}, not {dtype} [n]")
    offset, size = dataset.id.get_offset(), dataset.nbytes
    if offset is None or dataset.id.get_storage_size() != size:
        raise unusable(path, f"{name} is not contiguous in the file")
    if offset + size > path.stat().st_size:
        raise unusable(path, f"{name} goes beyond the end of the file")
    return slice(offset, offset + size)


def mapped_file(path: Path, *, in_order: bool) -> NDArray[np.uint8]:
    """The bytes of a shard's file, memory-mapped: all of it is read in order, or some of it at random places."""
    try:
        mapped = np.memmap(path, dtype=np.uint8, mode="r")
    except (OSError, ValueError) as error:
        raise WorkError(f"{path}: the shard cannot be memory-mapped ({error})") from error
    # A fault at a random place would read 128 KiB around it; in order, without that, each page would be a request.
    if not in_order:
        mapped._mmap.madvise(mmap.MADV_RANDOM)  # type: ignore[attr-defined]
    return mapped.view(np.ndarray)


class Shard:
    """One file of samples. Opening checks all but the content; `verify` checks that too.

    Raises UsageError if there is no such file and WorkError if it is not a whole shard of this format.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with opened_shard(path) as (file, self.attributes):
            # The bytes of the file in which each dataset lies.
            self.places = {
                name: dataset_place(path, file, name, STORED_DTYPE) for name in (RECORDS, LENGTHS, MASKED_COUNTS)
            }
        samples, tokens, masked = (self.attributes[name] for name in ("samples", "tokens", "masked_tokens"))
        expected = {RECORDS: tokens + 2 * masked + TRAILER * samples, LENGTHS: samples, MASKED_COUNTS: samples}
        for name, count in expected.items():
            found = (self.places[name].stop - self.places[name].start) // STORED_DTYPE.itemsize
            if found != count:
                raise self._broken(f"{name} has {found} elements, not {count}")

    def __len__(self) -> int:
        return int(self.attributes["samples"])

    @cached_property
    def records(self) -> NDArray[np.uint16]:
        """The records of all samples, end to end, to be read here and there: a read-only view of the file, mapped at
        the first call."""
        return self._records(in_order=False)

    def _records(self, *, in_order: bool) -> NDArray[np.uint16]:
        return mapped_file(self.path, in_order=in_order)[self.places[RECORDS]].view(STORED_DTYPE)

    @cached_property
    def lengths(self) -> NDArray[np.uint16]:
        """Tokens of each sample [N], read and checked at the first call; as `read_counts`."""
        return self.read_counts(LENGTHS)

    @cached_property
    def masked_counts(self) -> NDArray[np.uint16]:
        """Masked tokens of each sample [N], read and checked at the first call; as `read_counts`."""
        return self.read_counts(MASKED_COUNTS)

    def read_counts(self, name: str) -> NDArray[np.uint16]:
        """LENGTHS or MASKED_COUNTS [N], from the file. Raises WorkError for numbers that no samples have."""
        total, most = {
            LENGTHS: ("tokens", self.attributes["max_sequence_length"]),
            MASKED_COUNTS: ("masked_tokens", self.attributes["max_predictions"]),
        }[name]
        blocks = []  # checked as they are read, so that a file with a hole instead takes no memory
        for place in range(self.places[name].start, self.places[name].stop, BLOCK_BYTES):
            size = min(BLOCK_BYTES, self.places[name].stop - place)
            try:
                blocks.append(np.fromfile(self.path, STORED_DTYPE, size // STORED_DTYPE.itemsize, offset=place))
            except OSError as error:
                raise self._broken(f"it cannot be read ({error.strerror})") from None
            found = blocks[-1]
            if found.nbytes != size:
                raise self._broken(f"{name} goes beyond the end of the file")
            if found.min() < 1 or found.max() > most:
                raise self._broken(f"{name} has {found.min()} to {found.max()}, allowed are 1 to {most}")
        counts = np.concatenate(blocks)
        if (whole := int(counts.sum(dtype=np.int64))) != self.attributes[total]:
            raise self._broken(f"{name} has {whole} in all, not {self.attributes[total]}")
        return counts

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        return offsets_of(record_lengths(self.lengths, self.masked_counts))

    def read(self, index: int) -> Sample:
        """Sample `index` of 0..N−1."""
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of a shard of {len(self)}")
        tokens, masked = int(self.lengths[index]), int(self.masked_counts[index])
        record = self.records[self._starts[index] : self._starts[index + 1]]
        return Sample(
            token_ids=record[:tokens],
            first_segment_length=int(record[-2]),
            masked_positions=record[tokens : tokens + masked],
            masked_token_ids=record[tokens + masked : -TRAILER],
            next_sentence_label=int(record[-1]),
        )

    @property
    def samples(self) -> Samples:
        """All samples of the shard, copied out of their records."""
        return unpack(self._records(in_order=True), self.lengths, self.masked_counts)

    @property
    def origin(self) -> Origin:
        """What `write_shard` was given."""
        try:
            return Origin.of_attributes(self.attributes)
        except UsageError as error:
            raise self._broken(str(error)) from None

    def verify(self, samples: Samples | None = None) -> None:
        """Read everything and compare with the content hash; raises WorkError if they differ.

        `samples` are those of the shard, where the caller has read them.
        """
        require_content(self.path, self.attributes, samples or self.samples)

    def require_values(self, words: int | None, samples: Samples | None = None) -> None:
        """Read everything and raise WorkError for a value that no sample can have; `words`: of the vocabulary."""
        if fault := value_fault(samples or self.samples, words):
            raise self._broken("sample {}: {}".format(*fault))

    def _broken(self, found: str) -> WorkError:
        return unusable(self.path, found)


def require_content(path: Path, attributes: Mapping[str, Any], samples: Samples) -> None:
    """Raise WorkError unless the samples of a shard have the content hash that its attributes state."""
    found, expected = content_sha256(stored_arrays(samples)), attributes["content_sha256"]
    if found != expected:
        raise unusable(path, f"its content has the SHA-256 {found}, and it was written with {expected}")
