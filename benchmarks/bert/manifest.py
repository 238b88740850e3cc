"""The manifest of a sample store: which shards it has and what they contain. Its digest identifies the store's data.

It is the file manifest.json in the store's folder, written when all shards are there: until then the file
manifest.unfinished is beside them, and a store that has it is refused. Its content hashes are those in the shards'
attributes, which `SampleStore.verify` compares with the bytes: a manifest is made from metadata alone.
"""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from podium.core.errors import WorkError
from podium.core.files import unwritable, write_whole
from podium.core.json_files import digest_of, read_json
from podium.core.text import cut, printable, quoted

MANIFEST = "manifest.json"
# Beside the shards from the first that is written until the manifest lists them all: such a store may lack some.
MARKER = "manifest.unfinished"
FORMAT, VERSION = "podium-manifest", 1
LARGEST_BYTES = 2**23  # some 30,000 shards
LONGEST_NAME = 255
LARGEST_COUNT = 2**63 - 1
LONGEST_SHOWN = 20  # characters of a value in an error message

MISSING, EXTRA = "missing", "extra"


class ManifestError(WorkError):
    """The manifest of a store cannot be read, or the shards are not those that it lists."""


@dataclass(frozen=True)
class ShardEntry:
    """One shard as the manifest describes it."""

    name: str  # of the file
    samples: int
    tokens: int
    masked_tokens: int
    content_sha256: str


ENTRY_TYPES: Mapping[str, type] = {
    field.name: str if field.name in ("name", "content_sha256") else int for field in fields(ShardEntry)
}


@dataclass(frozen=True)
class Difference:
    """One thing in which two stores differ."""

    shard: str  # file name; of what concerns the whole store, the first shard's
    what: str  # MISSING, EXTRA or the name of an attribute
    found: object = None
    expected: object = None

    def sentence(self, folder: Path, other: str) -> str:
        """What is different in `folder`; `other` names what it is compared with."""
        path = folder / printable(self.shard)
        if self.what == MISSING:
            return f"{path} is missing, {other} has it"
        if self.what == EXTRA:
            return f"{path} is one shard too many, {other} does not have it"
        found, expected = (cut(printable(str(value)), LONGEST_SHOWN) for value in (self.found, self.expected))
        return f"{path}: its {self.what} is {found}, {other} has {expected}"


@dataclass(frozen=True)
class Manifest:
    """The shards of a store in the order of their names, and what they have in common."""

    vocabulary_sha256: str
    max_sequence_length: int
    shards: tuple[ShardEntry, ...]

    @classmethod
    def of_attributes(cls, shards: Mapping[Path, Mapping[str, Any]]) -> "Manifest":
        """Of shards by their attributes; what they have in common is taken from the first."""
        first = next(iter(shards.values()))
        entries = (
            ShardEntry(path.name, **{name: attributes[name] for name in ENTRY_TYPES if name != "name"})
            for path, attributes in shards.items()
        )
        return cls(first["vocabulary_sha256"], first["max_sequence_length"], tuple(entries))

    @classmethod
    def of_document(cls, document: Any) -> "Manifest":
        """From JSON of any origin. Raises ValueError with the reason where it is no manifest."""
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise ValueError(f"its format is not {FORMAT!r}")
        if type(document.get("version")) is not int or document["version"] != VERSION:
            raise ValueError(f"its version is {quoted(document.get('version'))}, not {VERSION}")
        _require(document, "vocabulary_sha256", str)
        _require(document, "max_sequence_length", int)
        _require(document, "samples", int)  # which == alone would take for 671.0, too
        if type(document.get("shards")) is not list:
            raise ValueError("its shards are no list")
        manifest = cls(
            document["vocabulary_sha256"],
            document["max_sequence_length"],
            tuple(_entry(shard, number) for number, shard in enumerate(document["shards"])),
        )
        names = [shard.name for shard in manifest.shards]
        if not names or any(after <= before for before, after in pairwise(names)):
            raise ValueError("its shards are none, or not in the order of their names")
        if manifest.document() != document:
            raise ValueError("it has other keys than a manifest, or another sum of samples than its shards")
        return manifest

    @property
    def samples(self) -> int:
        """Samples of all shards."""
        return sum(shard.samples for shard in self.shards)

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "vocabulary_sha256": self.vocabulary_sha256,
            "max_sequence_length": self.max_sequence_length,
            "samples": self.samples,
            "shards": [asdict(shard) for shard in self.shards],
        }

    @cached_property
    def digest(self) -> str:
        """SHA-256 in hexadecimal; two stores that have the same hold the same samples in the same order."""
        return digest_of(self.document())

    def differences(self, expected: "Manifest") -> Iterator[Difference]:
        """Where this differs from what is expected, at most one difference of each shard."""
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
        raise ValueError(f"its shards[{number}] does not have the keys {', '.join(ENTRY_TYPES)}, and no other")
    for name, kind in ENTRY_TYPES.items():
        _require(shard, name, kind, f"shards[{number}].")
    name = shard["name"]
    if len(name) > LONGEST_NAME or name in ("", ".", "..") or any(character in name for character in "/\\\0"):
        raise ValueError(f"its shards[{number}].name is {quoted(name)}, which is no file name")
    return ShardEntry(**shard)


def _require(document: Mapping[str, Any], name: str, kind: type, prefix: str = "") -> None:
    value = document.get(name)
    if type(value) is not kind:
        raise ValueError(f"its {prefix}{name} is no {kind.__name__}")
    if isinstance(value, int) and not 0 < value <= LARGEST_COUNT:
        raise ValueError(f"its {prefix}{name} is {quoted(value)}, allowed is 1 to {LARGEST_COUNT}")


def has_manifest(folder: Path) -> bool:
    """Whether there is anything of the manifest's name, a broken link too."""
    return os.path.lexists(folder / MANIFEST)


def mark_unfinished(folder: Path) -> None:
    """Mark a store that a shard is about to be written into, until its manifest is written; WorkError as that."""
    try:
        (folder / MARKER).touch()
    except OSError as error:
        raise unwritable(folder / MARKER, error) from None


def require_finished(folder: Path) -> None:
    """Raise ManifestError for a store whose preparation was broken off, and may lack shards."""
    if os.path.lexists(folder / MARKER):
        raise ManifestError(
            f"{folder / MARKER}: the preparation of this store did not come to its end, so that shards may be missing; "
            "give the same `podium data prepare` or `podium data import` again (prepare keeps the shards that are "
            "whole)"
        )


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of the store in a folder; None where there is none, ManifestError where it cannot be used."""
    if not has_manifest(folder):
        return None
    path = folder / MANIFEST
    try:
        return Manifest.of_document(read_json(path, LARGEST_BYTES))
    except ValueError as error:
        why = printable(cut(str(error), 300))
        advice = "remove it if the shards are as intended: it is then written anew when the store has been verified"
        raise ManifestError(f"{path}: the manifest cannot be used: {why}; {advice}") from None


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write it into the store's folder, whole or not at all; WorkError where that is not possible."""
    text = json.dumps(manifest.document(), indent=1) + "\n"
    if len(text) > LARGEST_BYTES:
        raise WorkError(
            f"{folder / MANIFEST}: would have {len(text):,} bytes for {len(manifest.shards):,} shards, allowed are "
            f"{LARGEST_BYTES:,}; make fewer and larger shards"
        )
    write_whole(folder / MANIFEST, text)
    (folder / MARKER).unlink(missing_ok=True)


def require_listed(folder: Path, found: Manifest) -> None:
    """Raise ManifestError unless a store is finished and has the shards that its manifest lists, if there is one."""
    require_finished(folder)
    expected = read_manifest(folder)
    if expected is None or found == expected:
        return
    first, *rest = found.differences(expected)
    more = f" ({len(rest):,} more {'difference' if len(rest) == 1 else 'differences'})" if rest else ""
    raise ManifestError(
        f"{first.sentence(folder, MANIFEST)}{more}; see `podium data verify {folder}`, make the shards again with "
        f"`podium data prepare`, or remove {folder / MANIFEST} if the shards are as intended"
    )
