"""The manifest of a sample store: which shards it has and what they contain. Its digest identifies the store's data.

It has the hash of the store's length index too (length_index.py), which with it is all that is read of a store before
its samples are.

It is the file manifest.json in the store's folder, written when all shards are there: until then the file
manifest.unfinished is beside them, and a store that has it is refused. Its content hashes are those in the shards'
attributes, which `SampleStore.verify` compares with the bytes: a manifest is made from metadata alone.
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
from podium.core.files import unwritable, write_changed
from podium.core.json_files import digest_of, read_json
from podium.core.text import cut, printable, quoted

MANIFEST = "manifest.json"
# Beside the shards from the first that is written until the manifest lists them all: such a store may lack some.
MARKER = "manifest.unfinished"
FORMAT, VERSION = "podium-manifest", 2
OLDER_VERSION = 1  # of stores without a length index
LARGEST_BYTES = 2**23  # some 30,000 shards
LONGEST_NAME = 255
LARGEST_COUNT = 2**63 - 1
LONGEST_SHOWN = 20  # characters of a value in an error message

MISSING, EXTRA = "missing", "extra"


class ManifestError(WorkError):
    """The manifest of a store cannot be read, or the shards are not those that it lists."""


class NodePart(NamedTuple):
    """The part of a store that one of several nodes reads: a consecutive range of its samples."""

    node: int
    nodes: int

    def range_of(self, samples: int) -> tuple[int, int]:
        """The first of so many samples, and the one after the last. It is the range of the node's ranks together."""
        return self.node * samples // self.nodes, (self.node + 1) * samples // self.nodes


WHOLE_STORE = NodePart(0, 1)
LENGTHS_ALONE = NodePart(0, 2**62)  # no sample: of a store with a length index nothing else is opened


@dataclass(frozen=True)
class ShardEntry:
    """One shard as the manifest describes it."""

    name: str  # of the file
    samples: int
    tokens: int
    masked_tokens: int
    content_sha256: str


# What a manifest has since version 2.
OF_VERSION_2: Mapping[str, type] = {"max_predictions": int, "selection": str, "lengths_sha256": str}
ENTRY_TYPES: Mapping[str, type] = {
    each.name: str if each.name in ("name", "content_sha256") else int for each in fields(ShardEntry)
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
    # Of the shards too, and of their length index; not in manifests of version 1. Two stores of the same samples are
    # equal with them or without.
    max_predictions: int | None = field(default=None, compare=False)
    selection: str | None = field(default=None, compare=False)
    lengths_sha256: str | None = field(default=None, compare=False)

    @classmethod
    def of_attributes(cls, shards: Mapping[Path, Mapping[str, Any]], lengths_sha256: str | None = None) -> "Manifest":
        """Of shards by their attributes; what they have in common is taken from the first."""
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
        """From JSON of any origin. Raises ValueError with the reason where it is no manifest."""
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise ValueError(f"its format is not {FORMAT!r}")
        version = document.get("version")
        if type(version) is not int or version not in (OLDER_VERSION, VERSION):
            raise ValueError(f"its version is {quoted(version)}, not {VERSION} or {OLDER_VERSION}")
        _require(document, "vocabulary_sha256", str)
        _require(document, "max_sequence_length", int)
        _require(document, "samples", int)  # which == alone would take for 671.0, too
        if type(document.get("shards")) is not list:
            raise ValueError("its shards are no list")
        if version == VERSION:
            for name, kind in OF_VERSION_2.items():
                _require(document, name, kind)
        manifest = cls(
            document["vocabulary_sha256"],
            document["max_sequence_length"],
            tuple(_entry(shard, number) for number, shard in enumerate(document["shards"])),
            **({name: document[name] for name in OF_VERSION_2} if version == VERSION else {}),
        )
        names = [shard.name for shard in manifest.shards]
        if not names or any(after <= before for before, after in pairwise(names)):
            raise ValueError("its shards are none, or not in the order of their names")
        for number, shard in enumerate(manifest.shards):
            for name, most in (("tokens", manifest.max_sequence_length), ("masked_tokens", manifest.max_predictions)):
                least, found = shard.samples, getattr(shard, name)
                if found < least or (most is not None and found > least * most):
                    raise ValueError(f"its shards[{number}] has {found:,} {name} in {least:,} samples")
        if manifest.document() != document:
            raise ValueError("it has other keys than a manifest, or another sum of samples than its shards")
        return manifest

    @property
    def samples(self) -> int:
        """Samples of all shards."""
        return sum(shard.samples for shard in self.shards)

    @cached_property
    def shard_starts(self) -> list[int]:
        """The index of the first sample of each shard, and the one after the last of all."""
        return [0, *accumulate(shard.samples for shard in self.shards)]

    def shards_of(self, part: NodePart) -> list[int]:
        """The numbers of the shards that have a sample of a node's part."""
        first, end = part.range_of(self.samples)
        return [
            number for number, (start, stop) in enumerate(pairwise(self.shard_starts)) if start < end and first < stop
        ]

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        common = {"vocabulary_sha256": self.vocabulary_sha256, "max_sequence_length": self.max_sequence_length}
        rest = {"samples": self.samples, "shards": [asdict(shard) for shard in self.shards]}
        if self.lengths_sha256 is None:
            return {"format": FORMAT, "version": OLDER_VERSION, **common, **rest}
        return {
            "format": FORMAT,
            "version": VERSION,
            **common,
            **{name: getattr(self, name) for name in OF_VERSION_2},
            **rest,
        }

    @cached_property
    def digest(self) -> str:
        """SHA-256 in hexadecimal; two stores that have the same hold the same samples in the same order.

        It is that of a manifest of version 1, whatever the version: the samples are the same.
        """
        return digest_of(replace(self, lengths_sha256=None).document())

    def difference_of(self, number: int, attributes: Mapping[str, Any]) -> Difference | None:
        """The first difference of a shard, by its attributes, from what is listed of shard `number`, or None."""
        entry = self.shards[number]
        common = ("vocabulary_sha256", "max_sequence_length", "max_predictions", "selection")
        listed = {name: getattr(self, name) for name in common} | asdict(entry)
        for name, expected in listed.items():
            if name != "name" and expected is not None and attributes[name] != expected:
                return Difference(entry.name, name, attributes[name], expected)
        return None

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
            "give the same `podium data prepare`, `import` or `stage` again (prepare and stage keep what is whole)"
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
        advice = (
            "update Podium if a newer version wrote it, or remove it if the shards are as intended: it is then written "
            "anew when the store has been verified"
        )
        raise ManifestError(f"{path}: the manifest cannot be used: {why}; {advice}") from None


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write it into the store's folder, whole or not at all; WorkError where that is not possible."""
    text = json.dumps(manifest.document(), indent=1) + "\n"
    if len(text) > LARGEST_BYTES:
        raise WorkError(
            f"{folder / MANIFEST}: would have {len(text):,} bytes for {len(manifest.shards):,} shards, allowed are "
            f"{LARGEST_BYTES:,}; make fewer and larger shards"
        )
    write_changed(folder / MANIFEST, text)
    if os.path.lexists(folder / MARKER):  # on a file system that is read-only, even what is not there cannot be removed
        try:
            (folder / MARKER).unlink()
        except OSError as error:
            raise unwritable(folder / MARKER, error) from None


def require_listed(folder: Path, found: Manifest) -> None:
    """Raise ManifestError unless a store is finished and has the shards that its manifest lists, if there is one."""
    require_finished(folder)
    expected = read_manifest(folder)
    if expected is not None:
        require_equal(folder, found, expected)


def require_equal(folder: Path, found: Manifest, expected: Manifest) -> None:
    """Raise ManifestError unless the shards found in a folder are those that its manifest lists."""
    if found == expected:
        return
    first, *rest = found.differences(expected)
    raise not_listed(folder, first, len(rest))


def not_listed(folder: Path, first: Difference, others: int) -> ManifestError:
    """That a folder has other shards than its manifest lists, by the first of the differences."""
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
