"""One shard of a sample store: an HDF5 file with samples as records and their origin; no padding, no pickle.

A record is one sample as one run of bytes, so that one read takes it (records.py). Two more datasets have the tokens
and masked tokens of each sample, which give the offset of each record. The content hash is that of the samples' flat
arrays and not of the file, so the same samples have the same hash in every version of this format.
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
from benchmarks.bert.samples import SAMPLE_DTYPES, Sample, Samples, find_invalid_value, offsets_of
from podium.core.errors import UsageError, WorkError
from podium.core.files import write_atomically

FORMAT = "podium-samples"
FORMAT_VERSION = 3
OLDER_VERSION = 2  # a dataset for each array of `Samples`; converted by upgrade.py
SUFFIX = ".h5"
ADVICE = "remove it and copy it again with `podium data stage`, or prepare it again with `podium data prepare`"

# The datasets of a shard, all u2.
RECORDS, LENGTHS, MASKED_COUNTS = "records", "lengths", "masked_counts"
STORED_DTYPE = np.dtype("<u2")
BLOCK_BYTES = 1 << 22  # of lengths read and checked at a time

TEXT = "text"  # `Origin.made_by` of samples generated from text by Podium
# `Origin.selection`: all samples, the reference's pick of evaluation samples, a random subset.
WHOLE, EVALUATION, RANDOM = "whole", "evaluation", "random"

# Shards with other values of these attributes are never overwritten by a preparation.
PROTECTED_ATTRIBUTES = ("max_sequence_length", "max_predictions", "vocabulary_sha256")
# Equal for all shards of a store.
SHARED_ATTRIBUTES = ("vocabulary_sha256", "max_sequence_length", "max_predictions", "selection", "selection_sha256")


@dataclass(frozen=True)
class Origin:
    """Provenance of a shard's samples, stored in the shard's attributes."""

    source: str  # name of the file they were made from
    source_sha256: str  # of that file, in hexadecimal
    vocabulary_sha256: str
    max_sequence_length: int
    max_predictions: int
    made_by: str = TEXT  # `text`, or the name of the format that they were imported from
    selection: str = WHOLE
    selected_from: int = 0  # number of samples before the selection; 0 for all samples
    # Of the inputs of the selection: shards of one selection have the same value.
    selection_sha256: str = ""
    # Settings of the generation; None for imported samples, where they are unknown.
    generation: GenerationSettings | None = None

    @classmethod
    def of_text(cls, source: str, source_sha256: str, vocabulary_sha256: str, settings: GenerationSettings) -> "Origin":
        """Origin of all samples of one text."""
        longest, most = settings.max_sequence_length, settings.max_predictions
        return cls(source, source_sha256, vocabulary_sha256, longest, most, generation=settings)

    @classmethod
    def of_attributes(cls, stored: Mapping[str, Any]) -> "Origin":
        """Read from a shard's attributes. Raises UsageError for invalid generation settings."""
        values = {name: stored[name] for name in ORIGIN_ATTRIBUTES}
        if stored["made_by"] != TEXT:
            return cls(**values)
        return cls(**values, generation=GenerationSettings(**{name: stored[name] for name in GENERATION_ATTRIBUTES}))

    def attributes(self) -> dict[str, Any]:
        """The attributes that a shard stores."""
        values = {name: getattr(self, name) for name in ORIGIN_ATTRIBUTES}
        return values | (asdict(self.generation) if self.generation else {})


ORIGIN_ATTRIBUTES: Mapping[str, type] = {
    **dict.fromkeys(("source", "source_sha256", "vocabulary_sha256", "made_by", "selection", "selection_sha256"), str),
    **dict.fromkeys(("max_sequence_length", "max_predictions", "selected_from"), int),
}
# Only in shards with `made_by` `text`.
GENERATION_ATTRIBUTES: Mapping[str, type] = {name: type(value) for name, value in asdict(GenerationSettings()).items()}
# The attributes of every shard and their types.
ATTRIBUTES: Mapping[str, type] = {
    **dict.fromkeys(("format", "content_sha256"), str),
    **dict.fromkeys(("format_version", "samples", "tokens", "masked_tokens"), int),
    **ORIGIN_ATTRIBUTES,
}


def stored_arrays(samples: Samples) -> dict[str, NDArray[Any]]:
    """The arrays by name, contiguous and with the types of SAMPLE_DTYPES, for hashing and writing."""
    return {name: np.ascontiguousarray(getattr(samples, name), dtype) for name, dtype in SAMPLE_DTYPES.items()}


def content_sha256(arrays: Mapping[str, NDArray[Any]]) -> str:
    """SHA-256 over name, dtype, length and bytes of every array, in the order of SAMPLE_DTYPES."""
    digest = hashlib.sha256()
    for name, dtype in SAMPLE_DTYPES.items():
        digest.update(f"{name} {dtype.str} {len(arrays[name])}\n".encode())
        digest.update(arrays[name].data)
    return digest.hexdigest()


def write_shard(path: Path, samples: Samples, origin: Origin) -> None:
    """Write one shard atomically, replacing a file of that name. The same samples and origin give the same bytes.

    Raises WorkError where the file cannot be written.
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
    with create_hdf5(path) as file:
        for name, value in attributes.items():
            set_attribute(file, name, {**ATTRIBUTES, **GENERATION_ATTRIBUTES}[name](value))
        for name, array in (
            (LENGTHS, np.diff(samples.sample_offsets)),
            (MASKED_COUNTS, np.diff(samples.masked_offsets)),
            (RECORDS, pack(samples)),
        ):
            file.create_dataset(name, data=array.astype(STORED_DTYPE, copy=False), track_times=False)


@contextmanager
def create_hdf5(path: Path) -> Iterator[h5py.File]:
    """Context manager for a new HDF5 file, written atomically to `path` at the end of the block."""
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_libver_bounds(h5py.h5f.LIBVER_V18, h5py.h5f.LIBVER_V18)  # format 1.8 has checksums of metadata
    access.set_fapl_core(block_size=2**20, backing_store=False)  # in memory: HDF5 can crash on a full disk
    creation = h5py.h5p.create(h5py.h5p.FILE_CREATE)
    creation.set_obj_track_times(False)  # the same content gives the same bytes
    with h5py.File(h5py.h5f.create(b"shard", h5py.h5f.ACC_TRUNC, creation, access)) as file:
        yield file
        file.flush()
        image: bytes = file.id.get_file_image()
    write_atomically(path, image)


def set_attribute(file: h5py.File, name: str, value: float | str) -> None:
    """Set an attribute of a file."""
    if isinstance(value, str):
        text = value.encode("utf-8", "backslashreplace")
        # A string of variable length would be stored outside of the attribute, without its checksum.
        file.attrs.create(name, text, dtype=h5py.string_dtype("utf-8", max(1, len(text))))
    else:
        file.attrs[name] = value


def read_attributes(file: h5py.File, prefix: str = "") -> dict[str, Any]:
    """Read a shard's attributes by name without the prefix, as int, float or str; None for an invalid type."""
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


def find_invalid_attribute(found: Mapping[str, Any], version: int = FORMAT_VERSION) -> str:
    """Describe the first attribute that a shard of this format version cannot have; empty where all are valid."""
    expected = {"format": FORMAT, "format_version": version}
    kinds = {**ATTRIBUTES, **(GENERATION_ATTRIBUTES if found.get("made_by") == TEXT else {})}
    for name in (*expected, *kinds):
        if name not in found:
            return f"it has no attribute {name}"
        if type(found[name]) is not kinds[name]:
            return f"its attribute {name} is not of type {kinds[name].__name__}"
        if found[name] != expected.get(name, found[name]):
            return f"its {name} is {found[name]!r}, not {expected[name]!r}"
    if found["selection"] not in (WHOLE, EVALUATION, RANDOM):
        return f"its selection is {found['selection']!r}, not {WHOLE}, {EVALUATION} or {RANDOM}"
    return ""


def describe_differences(shards: Mapping[Path, Mapping[str, Any]]) -> list[str]:
    """One message for each attribute in which a shard differs from the first, of shards with their attributes."""
    first, expected = next(iter(shards.items()))
    return [
        f"{path}: its {name} is {attributes[name]!r}, that of {first} is {expected[name]!r}"
        for path, attributes in shards.items()
        for name in SHARED_ATTRIBUTES
        if attributes[name] != expected[name]
    ]


def describe_duplicates(shards: Iterable[tuple[Path, Mapping[str, Any]]]) -> list[str]:
    """One message for each shard with the content of an earlier one, of shards with their attributes."""
    first: dict[str, Path] = {}
    found = []
    for path, attributes in shards:
        other = first.setdefault(attributes["content_sha256"], path)
        if other is not path:
            found.append(f"{path}: has the same samples as {other}, and no sample may occur twice")
    return found


def describe_misnamed(shards: Mapping[Path, Mapping[str, Any]]) -> list[str]:
    """One message for each shard that does not have the name of the file it was made from."""
    return [
        f"{path}: was made from {attributes['source']}, and a shard has the name of that file"
        for path, attributes in shards.items()
        if path.name.encode("utf-8", "backslashreplace").decode() not in _shard_names(attributes["source"])
    ]


# Suffix of an imported file that is not part of the shard's name.
STRIPPED_SUFFIX = re.compile(r"(?<=.)\.(hdf5|h5|tfrecord)\Z")


def _shard_names(source: str) -> tuple[str, str]:
    """Names of the shards that `prepare` and `import` make from a file of this name."""
    return source + SUFFIX, STRIPPED_SUFFIX.sub("", source) + SUFFIX


def shard_error(path: Path, found: str, advice: str = ADVICE) -> WorkError:
    """The error that a shard cannot be used; `found` is the reason."""
    return WorkError(f"{path}: the shard cannot be used: {found}; {advice}")


@contextmanager
def open_shard(path: Path, version: int | None = FORMAT_VERSION) -> Iterator[tuple[h5py.File, dict[str, Any]]]:
    """Context manager for a shard's HDF5 file and its checked attributes.

    Raises UsageError for a missing file, and WorkError for one that is not a shard of this version (None: any version).
    """
    if not path.is_file():
        raise UsageError(f"{path}: there is no such shard; make it with `podium data prepare`")
    try:
        with h5py.File(path, "r", locking=False) as file:
            attributes = read_attributes(file)
            if fault := find_invalid_attribute(attributes, version or FORMAT_VERSION):
                older = not find_invalid_attribute(attributes, OLDER_VERSION)
                if not older or version is not None:
                    convert = f"convert the store, or a copy of it, with `podium data upgrade {path.parent}`"
                    advice = convert if older else ADVICE
                    raise shard_error(path, fault, advice)
            yield file, attributes
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        raise shard_error(path, f"it cannot be read as HDF5 ({error})") from error


def dataset_range(path: Path, file: h5py.File, name: str, dtype: np.dtype[Any]) -> slice:
    """Byte range of a dataset [n] in a shard's file. Raises WorkError where it is missing or of another type."""
    # A soft or external link could lead to another file.
    link = file.get(name, getlink=True)
    if not isinstance(link, h5py.HardLink) or file.get(name, getclass=True) != h5py.Dataset:
        raise shard_error(path, f"it has no dataset {name}")
    dataset = file[name]
    if dataset.dtype != dtype or dataset.ndim != 1:
        raise shard_error(path, f"{name} is {dataset.dtype} {list(dataset.shape)}, not {dtype} [n]")
    offset, size = dataset.id.get_offset(), dataset.nbytes
    if offset is None or dataset.id.get_storage_size() != size:
        raise shard_error(path, f"{name} is not contiguous in the file")
    if offset + size > path.stat().st_size:
        raise shard_error(path, f"{name} extends beyond the end of the file")
    return slice(offset, offset + size)


def map_file(path: Path, *, in_order: bool) -> NDArray[np.uint8]:
    """Memory-map a shard's file, for sequential reads of all of it or for random reads, as bytes [size]."""
    try:
        mapped = np.memmap(path, dtype=np.uint8, mode="r")
    except (OSError, ValueError) as error:
        raise WorkError(f"{path}: the shard cannot be memory-mapped ({error})") from error
    # By default a page fault reads 128 KiB around it, which random reads do not need. Sequential reads do: with
    # MADV_RANDOM each page would be a separate request.
    if not in_order:
        mapped._mmap.madvise(mmap.MADV_RANDOM)  # type: ignore[attr-defined]
    return mapped.view(np.ndarray)


class Shard:
    """One shard. Opening checks attributes and sizes of datasets; `verify` checks the content hash.

    Raises UsageError for a missing file, and WorkError for one that is not a complete shard of this format.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with open_shard(path) as (file, self.attributes):
            # Byte range of each dataset in the file.
            self.dataset_ranges = {
                name: dataset_range(path, file, name, STORED_DTYPE) for name in (RECORDS, LENGTHS, MASKED_COUNTS)
            }
        samples, tokens, masked = (self.attributes[name] for name in ("samples", "tokens", "masked_tokens"))
        expected = {RECORDS: tokens + 2 * masked + TRAILER * samples, LENGTHS: samples, MASKED_COUNTS: samples}
        for name, count in expected.items():
            found = (self.dataset_ranges[name].stop - self.dataset_ranges[name].start) // STORED_DTYPE.itemsize
            if found != count:
                raise self._error(f"{name} has {found} elements, not {count}")

    def __len__(self) -> int:
        return int(self.attributes["samples"])

    @cached_property
    def records(self) -> NDArray[np.uint16]:
        """The records of all samples, for random reads: a read-only view of the file, mapped at the first access."""
        return self._map_records(in_order=False)

    def _map_records(self, *, in_order: bool) -> NDArray[np.uint16]:
        return map_file(self.path, in_order=in_order)[self.dataset_ranges[RECORDS]].view(STORED_DTYPE)

    @cached_property
    def lengths(self) -> NDArray[np.uint16]:
        """Tokens of each sample [N], read at the first access. Raises WorkError as `read_counts`."""
        return self.read_counts(LENGTHS)

    @cached_property
    def masked_counts(self) -> NDArray[np.uint16]:
        """Masked tokens of each sample [N], read at the first access. Raises WorkError as `read_counts`."""
        return self.read_counts(MASKED_COUNTS)

    def read_counts(self, name: str) -> NDArray[np.uint16]:
        """Read the dataset LENGTHS or MASKED_COUNTS [N]. Raises WorkError for impossible numbers."""
        total, most = {
            LENGTHS: ("tokens", self.attributes["max_sequence_length"]),
            MASKED_COUNTS: ("masked_tokens", self.attributes["max_predictions"]),
        }[name]
        # Checked block by block, so that a sparse file that claims a huge size is refused before it takes memory.
        blocks = []
        for start in range(self.dataset_ranges[name].start, self.dataset_ranges[name].stop, BLOCK_BYTES):
            size = min(BLOCK_BYTES, self.dataset_ranges[name].stop - start)
            try:
                blocks.append(np.fromfile(self.path, STORED_DTYPE, size // STORED_DTYPE.itemsize, offset=start))
            except OSError as error:
                raise self._error(f"it cannot be read ({error.strerror})") from None
            found = blocks[-1]
            if found.nbytes != size:
                raise self._error(f"{name} extends beyond the end of the file")
            if found.min() < 1 or found.max() > most:
                raise self._error(f"{name} has {found.min()} to {found.max()}, allowed are 1 to {most}")
        counts = np.concatenate(blocks)
        if (whole := int(counts.sum(dtype=np.int64))) != self.attributes[total]:
            raise self._error(f"{name} has a sum of {whole}, not {self.attributes[total]}")
        return counts

    @cached_property
    def _record_starts(self) -> NDArray[np.int64]:
        return offsets_of(record_lengths(self.lengths, self.masked_counts))

    def read(self, index: int) -> Sample:
        """Read sample `index`, from 0 to N − 1; its arrays are views. Raises IndexError."""
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of a shard of {len(self)}")
        tokens, masked = int(self.lengths[index]), int(self.masked_counts[index])
        record = self.records[self._record_starts[index] : self._record_starts[index + 1]]
        return Sample(
            token_ids=record[:tokens],
            first_segment_length=int(record[-2]),
            masked_positions=record[tokens : tokens + masked],
            masked_token_ids=record[tokens + masked : -TRAILER],
            next_sentence_label=int(record[-1]),
        )

    @property
    def samples(self) -> Samples:
        """All samples of the shard, read sequentially and copied out of their records."""
        return unpack(self._map_records(in_order=True), self.lengths, self.masked_counts)

    @property
    def origin(self) -> Origin:
        """Provenance of the samples. Raises WorkError for invalid generation settings."""
        try:
            return Origin.of_attributes(self.attributes)
        except UsageError as error:
            raise self._error(str(error)) from None

    def verify(self, samples: Samples | None = None) -> None:
        """Compare the content hash with all samples, which are read unless the caller passes them. Raises WorkError."""
        require_content(self.path, self.attributes, samples or self.samples)

    def require_values(self, vocabulary_size: int | None, samples: Samples | None = None) -> None:
        """Raise WorkError for an impossible value in any sample; token ids are checked against `vocabulary_size`."""
        if fault := find_invalid_value(samples or self.samples, vocabulary_size):
            raise self._error("sample {}: {}".format(*fault))

    def _error(self, found: str) -> WorkError:
        return shard_error(self.path, found)


def require_content(path: Path, attributes: Mapping[str, Any], samples: Samples) -> None:
    """Raise WorkError unless the samples of a shard have the content hash in its attributes."""
    found, expected = content_sha256(stored_arrays(samples)), attributes["content_sha256"]
    if found != expected:
        raise shard_error(path, f"its content has the SHA-256 {found}, expected {expected}")
