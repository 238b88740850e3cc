"""The manifest of a sample store: the list of its shards with their contents. Its digest identifies the store's data.

The manifest also has the hash of the length index (length_index.py). Manifest and index are all that is read of a store
before its samples.

The file manifest.json is written into the store's folder when all shards are complete. Until then the folder has the
marker manifest.unfinished, and opening the store is an error. Content hashes are copied from the shards' attributes, so
a manifest is made from metadata alone; `SampleStore.verify` compares them with the bytes.
"""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from podium.core.errors import WorkError
from podium.core.files import write_error, write_if_changed
from podium.core.json_files import json_digest, read_json
from podium.core.text import printable, short_repr, truncate

MANIFEST = "manifest.json"
# Marks a store that is being written, from its first shard until its manifest: shards may be missing.
MARKER = "manifest.unfinished"
FORMAT, VERSION = "podium-manifest", 2
OLDER_VERSION = 1  # stores without a length index
MAX_BYTES = 2**23  # enough for about 30,000 shards
MAX_NAME_LENGTH = 255
MAX_COUNT = 2**63 - 1
MAX_VALUE_LENGTH = 20  # characters of a value in an error message

MISSING, EXTRA = "missing", "extra"


class ManifestError(WorkError):
    """The manifest of a store is invalid or unfinished, or the shards differ from those that it lists."""


class NodePart(NamedTuple):
    """The part of a store that one of several nodes reads: a consecutive range of its samples."""

    node: int
    nodes: int

    def range_of(self, samples: int) -> tuple[int, int]:
        """Start and end of this part of `samples` samples: the union of the ranges of the node's ranks."""
        return self.node * samples // self.nodes, (self.node + 1) * samples // self.nodes


WHOLE_STORE = NodePart(0, 1)
# A part without samples: opening a store with it reads manifest and length index, and no shard.
LENGTH_INDEX_ONLY = NodePart(0, 2**62)


@dataclass(frozen=True)
class ShardEntry:
    """One shard in the manifest."""

    name: str  # file name
    samples: int
    tokens: int
    masked_tokens: int
    content_sha256: str


# Keys added by version 2, with their types.
VERSION_2_FIELDS: Mapping[str, type] = {"max_predictions": int, "selection": str, "lengths_sha256": str}
ENTRY_TYPES: Mapping[str, type] = {
    each.name: str if each.name in ("name", "content_sha256") else int for each in fields(ShardEntry)
}


@dataclass(frozen=True)
class Difference:
    """One difference between two stores."""

    shard: str  # file name; the first shard's for an attribute of the whole store
    what: str  # MISSING, EXTRA or the name of an attribute that differs
    found: object = None
    expected: object = None

    def sentence(self, folder: Path, other: str) -> str:
        """Message about the store in `folder`; `other` names the one that it is compared with."""
        path = folder / printable(self.shard)
        if self.what == MISSING:
            return f"{path} is missing, {other} has it"
        if self.what == EXTRA:
            return f"{path} is one shard too many, {other} does not have it"
        found, expected = (truncate(printable(str(value)), MAX_VALUE_LENGTH) for value in (self.found, self.expected))
        return f"{path}: its {self.what} is {found}, {other} has {expected}"


@dataclass(frozen=True)
class Manifest:
    """The shards of a store, ordered by name, and their common attributes."""

    vocabulary_sha256: str
    max_sequence_length: int
    shards: tuple[ShardEntry, ...]
    # Absent from manifests of version 1, so not compared: stores of the same samples are equal in both versions.
    max_predictions: int | None = field(default=None, compare=False)
    selection: str | None = field(default=None, compare=False)
    lengths_sha256: str | None = field(default=None, compare=False)

    @classmethod
    def of_attributes(cls, shards: Mapping[Path, Mapping[str, Any]], lengths_sha256: str | None = None) -> "Manifest":
        """Make the manifest of shards from their attributes; common attributes are taken from the first shard."""
        first = next(iter(shards.values()))
        entries = (
            ShardEntry(path.name, **{name: attributes[name] for name in ENTRY_TYPES if name != "name"})
            for path, attributes in shards.items()
        )
        return cls(
            first["vocabulary_sha256"],
            first["max_sequence_length"],
            tuple(entries),
            first["max_predictions"],
            first["selection"],
            lengths_sha256,
        )

    @classmethod
    def of_document(cls, document: Any) -> "Manifest":
        """Validate untrusted JSON. Raises ValueError with the reason for what is not a manifest."""
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise ValueError(f"its format is not {FORMAT!r}")
        version = document.get("version")
        if type(version) is not int or version not in (OLDER_VERSION, VERSION):
            raise ValueError(f"its version is {short_repr(version)}, not {VERSION} or {OLDER_VERSION}")
        _require(document, "vocabulary_sha256", str)
        _require(document, "max_sequence_length", int)
        _require(document, "samples", int)  # the comparison below would accept 671.0 for 671
        if type(document.get("shards")) is not list:
            raise ValueError("its shards are not a list")
        if version == VERSION:
            for name, kind in VERSION_2_FIELDS.items():
                _require(document, name, kind)
        manifest = cls(
            document["vocabulary_sha256"],
            document["max_sequence_length"],
            tuple(_entry(shard, number) for number, shard in enumerate(document["shards"])),
            **({name: document[name] for name in VERSION_2_FIELDS} if version == VERSION else {}),
        )
        names = [shard.name for shard in manifest.shards]
        if not names or any(after <= before for before, after in pairwise(names)):
            raise ValueError("its shards are empty, or not in ascending order of their names")
        for number, shard in enumerate(manifest.shards):
            for name, most in (("tokens", manifest.max_sequence_length), ("masked_tokens", manifest.max_predictions)):
                least, found = shard.samples, getattr(shard, name)
                if found < least or (most is not None and found > least * most):
                    raise ValueError(f"its shards[{number}] has {found:,} {name} in {least:,} samples")
        if manifest.document() != document:
            raise ValueError("it has other keys than a manifest, or its samples are not the sum over its shards")
        return manifest

    @property
    def samples(self) -> int:
        """Number of samples of all shards."""
        return sum(shard.samples for shard in self.shards)

    @cached_property
    def shard_starts(self) -> list[int]:
        """Index of the first sample of each shard, and the number of samples [shards + 1]."""
        return [0, *accumulate(shard.samples for shard in self.shards)]

    def shard_numbers(self, part: NodePart) -> list[int]:
        """Numbers of the shards, from 0, with at least one sample of a node's part."""
        first, end = part.range_of(self.samples)
        return [
            number for number, (start, stop) in enumerate(pairwise(self.shard_starts)) if start < end and first < stop
        ]

    def document(self) -> dict[str, Any]:
        """The manifest as a JSON document."""
        common = {"vocabulary_sha256": self.vocabulary_sha256, "max_sequence_length": self.max_sequence_length}
        rest = {"samples": self.samples, "shards": [asdict(shard) for shard in self.shards]}
        if self.lengths_sha256 is None:
            return {"format": FORMAT, "version": OLDER_VERSION, **common, **rest}
        return {
            "format": FORMAT,
            "version": VERSION,
            **common,
            **{name: getattr(self, name) for name in VERSION_2_FIELDS},
            **rest,
        }

    @cached_property
    def digest(self) -> str:
        """SHA-256 in hexadecimal; equal for two stores with the same samples in the same order.

        Always that of the manifest in version 1, so that an upgrade of the format does not change it.
        """
        return json_digest(replace(self, lengths_sha256=None).document())

    def find_difference(self, number: int, attributes: Mapping[str, Any]) -> Difference | None:
        """First difference between a shard's attributes and the manifest's entry `number`, or None."""
        entry = self.shards[number]
        common = ("vocabulary_sha256", "max_sequence_length", "max_predictions", "selection")
        listed = {name: getattr(self, name) for name in common} | asdict(entry)
        for name, expected in listed.items():
            if name != "name" and expected is not None and attributes[name] != expected:
                return Difference(entry.name, name, attributes[name], expected)
        return None

    def differences(self, expected: "Manifest") -> Iterator[Difference]:
        """Differences from the manifest `expected`, at most one for each shard."""
        for what in ("vocabulary_sha256", "max_sequence_length"):
            if getattr(self, what) != getattr(expected, what):
                yield Difference(self.shards[0].name, what, getattr(self, what), getattr(expected, what))
        here, there = ({shard.name: shard for shard in manifest.shards} for manifest in (self, expected))
        for name in sorted(here | there):
            if name not in here:
                yield Difference(name, MISSING)
            elif name not in there:
                yield Difference(name, EXTRA)
            elif here[name] != there[name]:
                what = next(what for what in ENTRY_TYPES if getattr(here[name], what) != getattr(there[name], what))
                yield Difference(name, what, getattr(here[name], what), getattr(there[name], what))


def _entry(shard: Any, number: int) -> ShardEntry:
    if not isinstance(shard, dict) or shard.keys() != ENTRY_TYPES.keys():
        raise ValueError(f"its shards[{number}] must have exactly the keys {', '.join(ENTRY_TYPES)}")
    for name, kind in ENTRY_TYPES.items():
        _require(shard, name, kind, f"shards[{number}].")
    name = shard["name"]
    if len(name) > MAX_NAME_LENGTH or name in ("", ".", "..") or any(character in name for character in "/\\\0"):
        raise ValueError(f"its shards[{number}].name is {short_repr(name)}, which is not a file name")
    return ShardEntry(**shard)


def _require(document: Mapping[str, Any], name: str, kind: type, prefix: str = "") -> None:
    value = document.get(name)
    if type(value) is not kind:  # isinstance would accept True as an int
        raise ValueError(f"its {prefix}{name} is not of type {kind.__name__}")
    if isinstance(value, int) and not 0 < value <= MAX_COUNT:
        raise ValueError(f"its {prefix}{name} is {short_repr(value)}, allowed is 1 to {MAX_COUNT}")


def has_manifest(folder: Path) -> bool:
    """Whether the folder has a manifest; a broken link counts, since it is an error and not a missing manifest."""
    return os.path.lexists(folder / MANIFEST)


def mark_unfinished(folder: Path) -> None:
    """Mark a store as unfinished, before its first shard is written. Raises WorkError where that fails."""
    try:
        (folder / MARKER).touch()
    except OSError as error:
        raise write_error(folder / MARKER, error) from None


def require_finished(folder: Path) -> None:
    """Raise ManifestError for a store whose preparation was interrupted: shards may be missing."""
    if os.path.lexists(folder / MARKER):
        raise ManifestError(
            f"{folder / MARKER}: the preparation of this store was interrupted, so shards may be missing; "
            "run the same `podium data prepare`, `import` or `stage` again (prepare and stage keep complete shards)"
        )


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of the store in a folder, or None where it has none. Raises ManifestError for an invalid one."""
    if not has_manifest(folder):
        return None
    path = folder / MANIFEST
    try:
        return Manifest.of_document(read_json(path, MAX_BYTES))
    except ValueError as error:
        why = printable(truncate(str(error), 300))
        advice = (
            "update Podium if a newer version wrote it, or remove it if the shards are as intended: it is then written "
            "anew when the store has been verified"
        )
        raise ManifestError(f"{path}: the manifest cannot be used: {why}; {advice}") from None


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write manifest.json atomically and remove the marker. Raises WorkError where that fails."""
    text = json.dumps(manifest.document(), indent=1) + "\n"
    if len(text) > MAX_BYTES:
        raise WorkError(
            f"{folder / MANIFEST}: would have {len(text):,} bytes for {len(manifest.shards):,} shards, allowed are "
            f"{MAX_BYTES:,}; make fewer and larger shards"
        )
    write_if_changed(folder / MANIFEST, text)
    if os.path.lexists(folder / MARKER):  # unlink of a missing file raises EROFS on a read-only file system
        try:
            (folder / MARKER).unlink()
        except OSError as error:
            raise write_error(folder / MARKER, error) from None


def require_listed(folder: Path, found: Manifest) -> None:
    """Raise ManifestError for an unfinished store, or for shards that differ from its manifest, if it has one."""
    require_finished(folder)
    expected = read_manifest(folder)
    if expected is not None:
        require_equal(folder, found, expected)


def require_equal(folder: Path, found: Manifest, expected: Manifest) -> None:
    """Raise ManifestError unless the manifest of the shards in a folder equals the expected one."""
    if found == expected:
        return
    first, *rest = found.differences(expected)
    raise mismatch_error(folder, first, len(rest))


def mismatch_error(folder: Path, first: Difference, others: int) -> ManifestError:
    """The error that a folder's shards differ from its manifest: the first difference and the number of others."""
    more = f" ({others:,} more {'difference' if others == 1 else 'differences'})" if others else ""
    if first.what == MISSING:
        advice = (
            "copy the missing shards with `podium data stage` (a node's part of a store is enough for runs with "
            "shards: per_rank on as many nodes, on that node), make them again with `podium data prepare`, or, to "
            f"have a smaller store for good, remove {folder / MANIFEST}"
        )
    else:
        advice = (
            f"see `podium data verify {folder}`, make the shards again with `podium data prepare`, or remove "
            f"{folder / MANIFEST} if the shards are as intended"
        )
    return ManifestError(f"{first.sentence(folder, MANIFEST)}{more}; {advice}")
