"""The length index of a store: tokens and masked tokens of every sample, two bytes a sample.

An entry is (tokens − 1) · 2^b + (masked tokens − 1), where b bits hold the largest number of masked tokens: nine and
seven bits with MLPerf's 512 tokens and 76 masked ones. Entries ascend with the tokens, so that a range of lengths is a
range of entries. The index is a file beside the shards, which the processes of a node map and thereby share.
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
BLOCK_ENTRIES = 1 << 20  # processed at a time, which bounds temporary arrays


class Counts(Protocol):
    """One integer for each of N samples: an array [N], or an object that is indexed like one."""

    def __len__(self) -> int: ...

    def __getitem__(self, key: Any) -> Any:
        """The numbers of a slice of the samples, or of those with these indices [n]."""


@dataclass(frozen=True)
class Column:
    """Tokens or masked tokens [N] of the samples of an index, decoded from its entries on access."""

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
    """Columns of several stores, concatenated without a copy."""

    parts: Sequence[Counts]
    bounds: Sequence[int]  # [parts + 1] index of each part's first sample among all, and the total

    def __len__(self) -> int:
        return self.bounds[-1]

    def __getitem__(self, key: Any) -> NDArray[Any]:
        if isinstance(key, slice):
            key = np.arange(*key.indices(len(self)))
        indices = np.asarray(key)
        if not indices.size:
            return np.empty(indices.shape, np.uint16)
        first, last = (bisect_right(self.bounds, int(x)) - 1 for x in (indices.min(), indices.max()))
        if first == last:  # the usual case: the samples of a step belong to one phase
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
    """The length index of one store. `entries` may be a mapped file, whose memory processes share."""

    entries: NDArray[Any]  # [N] u2, or u4 where lengths and masked tokens do not fit in 16 bits
    max_sequence_length: int
    max_predictions: int

    @classmethod
    def of(
        cls, lengths: NDArray[Any], masked_counts: NDArray[Any], max_sequence_length: int, max_predictions: int
    ) -> "StoredLengths":
        """Build an index from the tokens [N] (1 to `max_sequence_length`) and masked tokens [N] of the samples."""
        dtype, bits = entry_dtype(max_sequence_length, max_predictions), (max_predictions - 1).bit_length()
        entries = (lengths.astype(dtype) - dtype.type(1)) << bits | (masked_counts.astype(dtype) - dtype.type(1))
        return cls(entries.astype(dtype), max_sequence_length, max_predictions)

    @classmethod
    def from_file(
        cls, path: Path, samples: int, sha256: str, max_sequence_length: int, max_predictions: int
    ) -> "StoredLengths":
        """Map the index in a file. Raises WorkError unless it has `samples` entries and this SHA-256.

        The mapped bytes themselves are hashed: 0.2 s for the 157 million samples of Wikipedia, once they are in memory.
        """
        dtype = entry_dtype(max_sequence_length, max_predictions)
        try:
            size = path.stat().st_size
            if size != samples * dtype.itemsize:
                raise length_index_error(
                    path, f"it has {size:,} bytes, and {samples:,} samples need {samples * dtype.itemsize:,}"
                )
            entries = np.memmap(path, dtype=dtype, mode="r").view(np.ndarray)
        except (OSError, ValueError) as error:
            raise length_index_error(path, f"it cannot be read ({getattr(error, 'strerror', None) or error})") from None
        index = cls(entries, max_sequence_length, max_predictions)
        if index.sha256 != sha256:
            raise length_index_error(
                path, f"its SHA-256 is {index.sha256[:20]}…, and manifest.json lists {sha256[:20]}…"
            )
        return index

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def masked_bits(self) -> int:
        """Number of low bits of an entry that hold the masked tokens."""
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
        """SHA-256 of the entries' bytes, in hexadecimal."""
        digest = hashlib.sha256()
        for start in range(0, len(self.entries), BLOCK_ENTRIES):  # in blocks, so that Python handles signals between
            digest.update(self.entries[start : start + BLOCK_ENTRIES].data)
        return digest.hexdigest()

    def sum_range(self, first: int, end: int) -> tuple[int, int]:
        """Sums of tokens and of masked tokens over the samples first … end − 1."""
        tokens = masked = 0
        for start in range(first, end, BLOCK_ENTRIES):
            part = slice(start, min(start + BLOCK_ENTRIES, end))
            tokens += int(self.lengths[part].sum(dtype=np.int64))
            masked += int(self.masked_counts[part].sum(dtype=np.int64))
        return tokens, masked


def entry_dtype(max_sequence_length: int, max_predictions: int) -> np.dtype[Any]:
    """Type of the entries of an index with these limits: u2 where both numbers fit into 16 bits, else u4."""
    bits = (max_sequence_length - 1).bit_length() + (max_predictions - 1).bit_length()
    return np.dtype("<u2" if bits <= 16 else "<u4")


def length_index_error(path: Path, found: str) -> WorkError:
    """The error that the length index at `path` does not match its store; `found` is the reason."""
    return WorkError(
        f"{path}: the length index does not match its store: {found}; write it again with `podium data "
        f"upgrade {path.parent}`, or, where only some of the shards are here, remove it and copy it again with `podium "
        "data stage`"
    )
