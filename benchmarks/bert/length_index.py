"""The length index of a store: tokens and masked tokens of every sample, in two bytes each.

An entry is (tokens − 1) · 2^b + (masked tokens − 1), where b bits hold the most masked tokens that a sample may have:
nine and seven bits with MLPerf's 512 tokens and 76 masked ones. Entries ascend with the tokens, so that a range of
lengths is a range of entries. They are a file beside the shards, which all processes of a node map.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from podium.core.errors import WorkError

FILE = "lengths.bin"  # in the store's folder
ENTRIES_A_BLOCK = 1 << 20  # that are looked at together where many are


class Counts(Protocol):
    """A whole number of each of N samples: an array [N], or what reads like one."""

    def __len__(self) -> int: ...

    def __getitem__(self, key: Any) -> Any:
        """Of a slice of the samples, or of those with some indices."""


@dataclass(frozen=True)
class Column:
    """Tokens, or masked tokens, of the samples of an index: decoded when they are asked for."""

    entries: NDArray[Any]
    shift: int
    mask: int

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, key: Any) -> NDArray[np.uint16]:
        found: NDArray[np.uint16] = ((self.entries[key] >> self.shift & self.mask) + 1).astype(np.uint16)
        return found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self[:] if dtype is None else self[:].astype(dtype)


@dataclass(frozen=True)
class JoinedColumn:
    """Numbers of the samples of several stores, one store after the other."""

    parts: Sequence[Counts]
    bounds: Sequence[int]  # of each part's samples among all [parts + 1]

    def __len__(self) -> int:
        return self.bounds[-1]

    def __getitem__(self, key: Any) -> NDArray[Any]:
        if isinstance(key, slice):
            key = np.arange(*key.indices(len(self)))
        indices = np.asarray(key)
        if not indices.size:
            return np.empty(indices.shape, np.uint16)
        first, last = (bisect_right(self.bounds, int(x)) - 1 for x in (indices.min(), indices.max()))
        if first == last:  # as in every step, which is of one phase
            found: NDArray[Any] = self.parts[first][indices - self.bounds[first]]
            return found
        found = np.empty(indices.shape, np.uint16)
        for part in range(first, last + 1):
            here = (indices >= self.bounds[part]) & (indices < self.bounds[part + 1])
            found[here] = self.parts[part][indices[here] - self.bounds[part]]
        return found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.concatenate([np.asarray(part, dtype) for part in self.parts])


@dataclass(frozen=True)
class StoredLengths:
    """The length index of one store. Its arrays may be a mapped file, of which processes share the memory."""

    entries: NDArray[Any]  # [N] u2, or u4 where lengths and masked tokens do not fit in 16 bits
    max_sequence_length: int
    max_predictions: int

    @classmethod
    def of(
        cls, lengths: NDArray[Any], masked_counts: NDArray[Any], max_sequence_length: int, max_predictions: int
    ) -> "StoredLengths":
        """From 1 to `max_sequence_length` tokens [N] and 1 to `max_predictions` masked tokens [N]."""
        dtype, bits = entry_dtype(max_sequence_length, max_predictions), (max_predictions - 1).bit_length()
        entries = (lengths.astype(dtype) - dtype.type(1)) << bits | (masked_counts.astype(dtype) - dtype.type(1))
        return cls(entries.astype(dtype), max_sequence_length, max_predictions)

    @classmethod
    def mapped(
        cls, path: Path, samples: int, sha256: str, max_sequence_length: int, max_predictions: int
    ) -> "StoredLengths":
        """The index in a file, mapped. Raises WorkError unless it has so many entries, possible ones, and this hash.

        It is the mapped bytes that are hashed: 0.2 s for the 157 million samples of Wikipedia, once they are in memory.
        """
        dtype = entry_dtype(max_sequence_length, max_predictions)
        try:
            size = path.stat().st_size
            if size != samples * dtype.itemsize:
                raise unfit(path, f"it has {size:,} bytes, and {samples:,} samples have {samples * dtype.itemsize:,}")
            entries = np.memmap(path, dtype=dtype, mode="r").view(np.ndarray)
        except (OSError, ValueError) as error:
            raise unfit(path, f"it cannot be read ({getattr(error, 'strerror', None) or error})") from None
        index = cls(entries, max_sequence_length, max_predictions)
        if index.sha256 != sha256:
            raise unfit(path, f"its SHA-256 is {index.sha256[:20]}…, and manifest.json lists {sha256[:20]}…")
        return index

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def masked_bits(self) -> int:
        """Bits of an entry that hold the masked tokens."""
        return (self.max_predictions - 1).bit_length()

    @property
    def lengths(self) -> Column:
        """Tokens of each sample [N]."""
        return Column(self.entries, self.masked_bits, int(np.iinfo(self.entries.dtype).max))

    @property
    def masked_counts(self) -> Column:
        """Masked tokens of each sample [N]."""
        return Column(self.entries, 0, 2**self.masked_bits - 1)

    @cached_property
    def sha256(self) -> str:
        """Of the entries' bytes, in hexadecimal."""
        digest = hashlib.sha256()
        for start in range(0, len(self.entries), ENTRIES_A_BLOCK):  # so that a signal is seen meanwhile
            digest.update(self.entries[start : start + ENTRIES_A_BLOCK].data)
        return digest.hexdigest()

    def sums(self, first: int, end: int) -> tuple[int, int]:
        """Tokens and masked tokens of the samples first … end − 1."""
        tokens = masked = 0
        for start in range(first, end, ENTRIES_A_BLOCK):
            part = slice(start, min(start + ENTRIES_A_BLOCK, end))
            tokens += int(self.lengths[part].sum(dtype=np.int64))
            masked += int(self.masked_counts[part].sum(dtype=np.int64))
        return tokens, masked


def entry_dtype(max_sequence_length: int, max_predictions: int) -> np.dtype[Any]:
    """Of the entries of samples of at most so many tokens and masked tokens."""
    bits = (max_sequence_length - 1).bit_length() + (max_predictions - 1).bit_length()
    return np.dtype("<u2" if bits <= 16 else "<u4")


def unfit(path: Path, found: str) -> WorkError:
    return WorkError(
        f"{path}: the length index does not fit its store: {found}; write it again with `podium data "
        f"upgrade {path.parent}`, or, where only some of the shards are here, remove it and copy it again with `podium "
        "data stage`"
    )
