"""Records: the storage format of samples in a shard, one run of u2 numbers a sample, so that one read takes it.

A record is [token ids, masked positions, masked token ids, tokens of the first segment, label]; its length follows from
the sample's tokens and masked tokens. The records of a shard are contiguous, without padding.
"""

from typing import Any

import numba
import numpy as np
from numba import carray  # type: ignore[attr-defined]
from numba.extending import intrinsic
from numpy.typing import NDArray

from benchmarks.bert.samples import FlatArrays, Samples, offsets_of
from podium.core.jit import compiled

TRAILER = 2  # numbers at the end of a record: tokens of the first segment, label


def record_lengths(lengths: NDArray[Any], masked_counts: NDArray[Any]) -> NDArray[np.int64]:
    """Numbers (u2) in the record of each sample [n], from its tokens [n] and masked tokens [n]."""
    found: NDArray[np.int64] = lengths.astype(np.int64) + 2 * masked_counts.astype(np.int64) + TRAILER
    return found


def pack(samples: Samples) -> NDArray[np.uint16]:
    """The contiguous records of all samples."""
    counts = record_lengths(np.diff(samples.sample_offsets), np.diff(samples.masked_offsets))
    records = np.empty(int(counts.sum()), np.uint16)
    _pack(samples.arrays, records)
    return records


def unpack(records: NDArray[np.uint16], lengths: NDArray[Any], masked_counts: NDArray[Any]) -> Samples:
    """Copy samples with these tokens [n] and masked tokens [n] out of their contiguous records."""
    samples = _allocate(lengths, masked_counts)
    _unpack(records, samples.arrays)
    return samples


def unpack_at(addresses: NDArray[np.intp], lengths: NDArray[Any], masked_counts: NDArray[Any]) -> Samples:
    """`unpack` for records at these memory addresses [n], which the caller has checked to be mapped and complete."""
    samples = _allocate(lengths, masked_counts)
    _unpack_at(addresses, samples.arrays)
    return samples


def _allocate(lengths: NDArray[Any], masked_counts: NDArray[Any]) -> Samples:
    offsets, masked_offsets = offsets_of(lengths), offsets_of(masked_counts)
    return Samples(
        token_ids=np.empty(offsets[-1], np.uint16),
        sample_offsets=offsets,
        first_segment_lengths=np.empty(len(lengths), np.uint16),
        masked_positions=np.empty(masked_offsets[-1], np.uint16),
        masked_token_ids=np.empty(masked_offsets[-1], np.uint16),
        masked_offsets=masked_offsets,
        next_sentence_labels=np.empty(len(lengths), np.uint8),
    )


@compiled
def _pack(arrays: FlatArrays, records: NDArray[np.uint16]) -> None:
    token_ids, sample_offsets, first_lengths, masked_positions, masked_token_ids, masked_offsets, labels = arrays
    place = 0
    for i in range(len(labels)):
        for k in range(sample_offsets[i], sample_offsets[i + 1]):
            records[place] = token_ids[k]
            place += 1
        masked = masked_offsets[i + 1] - masked_offsets[i]
        for k in range(masked):
            records[place + k] = masked_positions[masked_offsets[i] + k]
            records[place + masked + k] = masked_token_ids[masked_offsets[i] + k]
        place += 2 * masked
        records[place] = first_lengths[i]
        records[place + 1] = labels[i]
        place += TRAILER


@compiled
def _unpack(records: NDArray[np.uint16], arrays: FlatArrays) -> None:
    start = 0
    for i in range(len(arrays[6])):  # 6: next_sentence_labels
        start += _unpack_one(records[start:], arrays, i)


@compiled
def _unpack_at(addresses: NDArray[np.intp], arrays: FlatArrays) -> None:
    for i in range(len(addresses)):  # 1: sample_offsets, 5: masked_offsets
        tokens, masked = arrays[1][i + 1] - arrays[1][i], arrays[5][i + 1] - arrays[5][i]
        _unpack_one(carray(_uint16_pointer(addresses[i]), tokens + 2 * masked + TRAILER), arrays, i)


@compiled
def _unpack_one(record: NDArray[np.uint16], arrays: FlatArrays, i: int) -> Any:
    """Copy the first record in `record` to sample i of the arrays. Returns the record's length in numbers."""
    token_ids, sample_offsets, first_lengths, masked_positions, masked_token_ids, masked_offsets, labels = arrays
    start, masked_start = sample_offsets[i], masked_offsets[i]
    tokens, masked = sample_offsets[i + 1] - start, masked_offsets[i + 1] - masked_start
    for k in range(tokens):
        token_ids[start + k] = record[k]
    for k in range(masked):
        masked_positions[masked_start + k] = record[tokens + k]
        masked_token_ids[masked_start + k] = record[tokens + masked + k]
    end = tokens + 2 * masked
    first_lengths[i] = record[end]
    labels[i] = min(
        record[end + 1], np.uint16(255)
    )  # saturate: a cut-off byte could turn a corrupt number into a valid label
    return end + TRAILER


def _make_pointer_cast(kind: Any) -> Any:
    """Return a compiled function that casts an integer address to a pointer to elements of type `kind`."""

    @intrinsic
    def pointer(typing: Any, address: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return numba.types.CPointer(kind)(numba.types.intp), code  # type: ignore[no-untyped-call]

    return pointer


_uint16_pointer = _make_pointer_cast(numba.types.uint16)
