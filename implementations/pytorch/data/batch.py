"""The ragged (unpadded) batch: concatenated sequences, with all indices that the device needs, computed on the host.

- Layout: tokens are copied by compiled loops that release the interpreter lock, so that a thread collates batches while
  another one trains. Source of unpadding: Zeng et al., arXiv 2208.08124.
- Attention groups: attention is computed group by group, on the sequences of a group as a [sequences, longest]
  rectangle. With few groups products are wasted on short sequences, with many groups launches cost more. The best
  groups are always runs of the length-sorted batch, so dynamic programming finds the cheapest division exactly.
- Flattening: a batch as one array, so that one object is transferred to another process or to a device.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.bert.samples import Sample, Samples
from podium.core.jit import compiled
from podium.planning.balancing.interface import offsets_of
from podium.planning.batch_plan import round_up

# Cost of one more group in query–key pairs, measured on two CPU cores (docs/lab-notebook.md).
LAUNCH_COST = 40_000.0


@dataclass(frozen=True)
class Group:
    """The sequences `first` to `last` (exclusive) of the length-sorted batch, as a rectangle [rows, width]."""

    first: int
    last: int
    width: int

    @property
    def rows(self) -> int:
        return self.last - self.first


# Widths are multiples of this: libraries prepare each new shape of a product, so fewer shapes cost less.
WIDTH_STEP = 32


def group_by_width(sorted_lengths: np.ndarray, widths: Sequence[int]) -> tuple[Group, ...]:
    """Group lengths [S], sorted in descending order, by given widths.

    Each sequence belongs to the narrowest width that holds it; widths without sequences yield no group. Source: arXiv
    2208.08124, with widths of 128, 256, 384 and 512. Raises ValueError for a sequence longer than the largest width.
    """
    descending = sorted(widths, reverse=True)
    if len(sorted_lengths) and sorted_lengths[0] > descending[0]:
        raise ValueError(f"a sequence of {sorted_lengths[0]} tokens fits none of the widths {sorted(widths)}")
    firsts = [int(np.count_nonzero(sorted_lengths > width)) for width in descending]
    lasts = [*firsts[1:], len(sorted_lengths)]
    cuts = zip(firsts, lasts, descending, strict=True)
    return tuple(Group(first, last, width) for first, last, width in cuts if last > first)


def group_by_length(sorted_lengths: np.ndarray, launch_cost: float = LAUNCH_COST) -> tuple[Group, ...]:
    """Divide lengths [S], sorted in descending order, into the groups of minimum total cost.

    A group of n sequences costs n · width² + `launch_cost`, where width is the longest sequence's length, rounded up to
    WIDTH_STEP. Exact, by dynamic programming in O(S²). An empty batch has no groups.
    """
    count = len(sorted_lengths)
    widths = -(-sorted_lengths.astype(np.int64) // WIDTH_STEP) * WIDTH_STEP
    squares = widths.astype(np.float64) ** 2
    best = np.zeros(count + 1)  # best[i]: minimum cost of the first i sequences
    cut = np.zeros(count + 1, dtype=np.int64)  # cut[i]: first sequence of the last group of that division
    for last in range(1, count + 1):
        first = np.arange(last)
        costs = best[:last] + (last - first) * squares[:last] + launch_cost
        cut[last] = int(np.argmin(costs))
        best[last] = costs[cut[last]]
    groups: list[Group] = []
    last = count
    while last > 0:
        first_slot = int(cut[last])
        groups.append(Group(first_slot, last, int(widths[first_slot])))
        last = first_slot
    return tuple(reversed(groups))


@compiled
def lay_out(
    token_ids: NDArray[np.uint16],
    sample_offsets: NDArray[np.int64],
    first_segment_lengths: NDArray[np.uint16],
    masked_positions: NDArray[np.uint16],
    masked_token_ids: NDArray[np.uint16],
    masked_offsets: NDArray[np.int64],
    next_sentence_labels: NDArray[np.uint8],
    order: NDArray[np.int64],
    starts: NDArray[np.int64],
    tokens_3T: NDArray[np.int64],
    masks_2M: NDArray[np.int64],
    next_sentence: NDArray[np.int64],
) -> None:
    """Copy the flat arrays of `Samples` in `order` [S] into sequences that begin at the token slots `starts` [S + 1].

    Outputs: `tokens_3T` receives token ids, segments and positions, and must be zero before; the first columns of
    `masks_2M` receive the token slots of masked tokens and their labels; `next_sentence` [S] receives the labels.
    """
    masked = 0
    for row in range(len(order)):
        sample = order[row]
        start, source = starts[row], sample_offsets[sample]
        for k in range(sample_offsets[sample + 1] - source):
            tokens_3T[0, start + k] = token_ids[source + k]
            tokens_3T[1, start + k] = 1 if k >= first_segment_lengths[sample] else 0
        for k in range(starts[row + 1] - start):  # in a padded batch also for the padding
            tokens_3T[2, start + k] = k
        for k in range(masked_offsets[sample], masked_offsets[sample + 1]):
            masks_2M[0, masked] = start + masked_positions[k]
            masks_2M[1, masked] = masked_token_ids[k]
            masked += 1
        next_sentence[row] = next_sentence_labels[sample]


@compiled
def fill_rectangle(
    row_starts: NDArray[np.int64], width: int, pad_index: NDArray[np.int64], unpad_index: NDArray[np.int64]
) -> None:
    """Fill `pad_index` and `unpad_index` of an `AttentionGroup` whose rows begin at `row_starts` [rows + 1]."""
    for row in range(len(row_starts) - 1):
        start, count = row_starts[row], row_starts[row + 1] - row_starts[row]
        before = start - row_starts[0]
        for k in range(width):
            pad_index[row * width + k] = start + k if k < count else start
        for k in range(count):
            unpad_index[before + k] = row * width + k


IGNORED = -100  # label of masked positions that only pad the shape; the default ignore_index of torch's cross-entropy


@dataclass(frozen=True)
class AttentionGroup:
    """One dense rectangle of the `grouped` attention backend: `rows` sequences of at most `width` tokens.

    The group's tokens are contiguous in the batch. Row r holds the batch's token slots `row_starts[r]` to
    `row_starts[r + 1]`, and its tokens attend to the first `key_counts[r]` of them.
    """

    rows: int
    width: int
    start: int  # first token slot of the group in the batch
    pad_index: (
        Tensor  # [rows · width] int64, token slot of the batch for each slot; padding repeats a row's first token
    )
    unpad_index: Tensor  # [tokens of the group] int64, the inverse: slot of the rectangle for each token
    row_starts: Tensor  # [rows + 1] int64, token slots of the batch
    relative_starts: Tensor  # [rows + 1] int32, the same relative to the group's first token
    key_counts: Tensor  # [rows] int32, tokens of each row without padding

    @property
    def tokens(self) -> int:
        """Number of token slots of the group in the batch."""
        return self.unpad_index.numel()

    def map_tensors(self, change: Callable[[Tensor], Tensor]) -> "AttentionGroup":
        """Return a copy of the group with `change` applied to every tensor."""
        changed: dict[str, Any] = {name: change(tensor) for name, tensor in _tensors(self)}
        return replace(self, **changed)


@dataclass(frozen=True)
class RaggedBatch:
    """A batch of S sequences, longest first, in T token slots, with M masked positions.

    In an unpadded batch sequences are contiguous; spare slots after the last one only round T up. Sequences that only
    round S up begin there and have no tokens. In a padded batch each sequence has a slot of fixed width with its tokens
    first and [PAD] after them; `lengths` counts only the tokens. Masked positions that only round M up point to slot 0.
    They, and sequences without tokens, have the label IGNORED.
    """

    token_ids: Tensor  # [T] int64
    segment_ids: Tensor  # [T] int64
    position_ids: Tensor  # [T] int64, from 0 in each sequence
    sequence_starts: Tensor  # [S + 1] int64, token slots
    sequence_starts_i32: Tensor  # [S + 2] int32, the same with T appended: the spare slots as one more sequence
    masked_positions: Tensor  # [M] int64, into the T slots
    masked_labels: Tensor  # [M] int64
    next_sentence: Tensor  # [S] int64, 1 where the second segment is a random one
    groups: tuple[AttentionGroup, ...]
    lengths: tuple[int, ...]  # [S] tokens in each sequence, without padding
    masked_counts: tuple[int, ...]  # [S] masked tokens in each sequence
    slot_width: int | None  # of every sequence in a padded batch

    @property
    def sequences(self) -> int:
        return len(self.lengths)

    @property
    def tokens(self) -> int:
        """Number of tokens, without padding."""
        return sum(self.lengths)

    @property
    def slots(self) -> int:
        """Number of token slots T, with padding."""
        return self.token_ids.numel()

    @property
    def spare_slots(self) -> int:
        """Number of token slots after the last sequence."""
        return self.slots - sum(group.tokens for group in self.groups)

    @property
    def masked(self) -> int:
        return sum(self.masked_counts)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(T, M, S), including the padding that rounds them up."""
        return self.slots, self.masked_positions.numel(), self.next_sentence.numel()

    def to(self, device: torch.device) -> "RaggedBatch":
        """Return the batch on a device; the copies overlap with computation if the host memory is pinned."""
        if device.type == "cpu":
            return self
        return self.map_tensors(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> "RaggedBatch":
        """Return the batch in page-locked memory, from which a GPU copies asynchronously."""
        return self.map_tensors(Tensor.pin_memory)

    def map_tensors(self, change: Callable[[Tensor], Tensor]) -> "RaggedBatch":
        """Return a copy of the batch with `change` applied to every tensor, including those of its groups."""
        changed: dict[str, Any] = {name: change(tensor) for name, tensor in _tensors(self)}
        return replace(self, groups=tuple(group.map_tensors(change) for group in self.groups), **changed)

    def tensors(self) -> list[Tensor]:
        """Return all tensors of the batch, except for those of its groups, in a fixed order."""
        return [tensor for _, tensor in _tensors(self)]


def _tensors(holder: AttentionGroup | RaggedBatch) -> list[tuple[str, Tensor]]:
    values = ((field.name, getattr(holder, field.name)) for field in fields(holder))
    return [(name, value) for name, value in values if isinstance(value, Tensor)]


def collate(
    samples: Samples | Sequence[Sample],
    slot_width: int | None = None,
    shape_step: int = 1,
    masked_slots: int | None = None,
    attention_widths: Sequence[int] | None = None,
    sequence_slots: int | None = None,
) -> RaggedBatch:
    """Concatenate samples, longest first (ties keep their order), into a ragged batch.

    `slot_width` gives every sequence a slot of that many tokens (a padded batch); None adds no padding. T is rounded up
    to a multiple of `shape_step`, and M too unless it is given as `masked_slots`. Attention groups have the widths
    `attention_widths`, or those of minimum cost. `sequence_slots` rounds S up with sequences without tokens that begin
    after all others, for which T must have at least one spare slot. Nothing is truncated. Raises ValueError for an
    empty batch, a sample longer than its slot or the largest width, and more masked tokens or sequences than slots.
    """
    if not len(samples):
        raise ValueError("a batch needs at least one sample")
    if not isinstance(samples, Samples):
        samples = _in_flat_arrays(samples)
    lengths, masked_counts = np.diff(samples.sample_offsets), np.diff(samples.masked_offsets)
    order = np.argsort(-lengths, kind="stable")  # groups are runs of the sorted batch
    lengths, masked_counts = lengths[order], masked_counts[order]
    if slot_width is not None and lengths[0] > slot_width:
        raise ValueError(f"a sample of {lengths[0]} tokens does not fit a slot of {slot_width}")
    widths = lengths if slot_width is None else np.full_like(lengths, slot_width)
    starts = offsets_of(widths)
    slots = round_up(int(starts[-1]), shape_step)
    masked = len(samples.masked_positions)
    if masked_slots is None:
        masked_slots = round_up(masked, shape_step)
    elif masked > masked_slots:
        raise ValueError(f"{masked} masked tokens do not fit {masked_slots} slots")

    tokens_3T, masks_2M = np.zeros((3, slots), dtype=np.int64), np.zeros((2, masked_slots), dtype=np.int64)
    next_sentence = np.empty(len(order), dtype=np.int64)
    masks_2M[1] = IGNORED  # the spare ones: `lay_out` writes the others
    lay_out(*samples.arrays, order, starts, tokens_3T, masks_2M, next_sentence)
    absent = 0 if sequence_slots is None else sequence_slots - len(order)
    if absent < 0 or (absent and starts[-1] == slots):
        raise ValueError(f"{len(order)} sequences in {starts[-1]} slots do not fit {sequence_slots} in {slots}")
    token_ids, segment_ids, position_ids = (torch.from_numpy(row) for row in tokens_3T)
    all_starts = np.append(starts, np.full(absent, starts[-1]))
    groups = group_by_length(widths) if attention_widths is None else group_by_width(widths, attention_widths)
    return RaggedBatch(
        token_ids=token_ids,
        segment_ids=segment_ids,
        position_ids=position_ids,
        sequence_starts=torch.from_numpy(all_starts),
        sequence_starts_i32=torch.from_numpy(np.append(all_starts, slots).astype(np.int32)),
        masked_positions=torch.from_numpy(masks_2M[0]),
        masked_labels=torch.from_numpy(masks_2M[1]),
        next_sentence=torch.from_numpy(np.append(next_sentence, np.full(absent, IGNORED))),
        groups=tuple(_attention_group(group, starts, lengths) for group in groups),
        lengths=tuple(lengths.tolist()),
        masked_counts=tuple(masked_counts.tolist()),
        slot_width=slot_width,
    )


def _in_flat_arrays(samples: Sequence[Sample]) -> Samples:
    return Samples(
        token_ids=np.concatenate([s.token_ids for s in samples]),
        sample_offsets=offsets_of([len(s.token_ids) for s in samples]),
        first_segment_lengths=np.array([s.first_segment_length for s in samples], dtype=np.uint16),
        masked_positions=np.concatenate([s.masked_positions for s in samples]),
        masked_token_ids=np.concatenate([s.masked_token_ids for s in samples]),
        masked_offsets=offsets_of([len(s.masked_positions) for s in samples]),
        next_sentence_labels=np.array([s.next_sentence_label for s in samples], dtype=np.uint8),
    )


def _attention_group(group: Group, starts: np.ndarray, lengths: np.ndarray) -> AttentionGroup:
    row_starts = starts[group.first : group.last + 1]
    pad_index = np.empty(group.rows * group.width, dtype=np.int64)
    unpad_index = np.empty(row_starts[-1] - row_starts[0], dtype=np.int64)
    fill_rectangle(row_starts, group.width, pad_index, unpad_index)
    return AttentionGroup(
        rows=group.rows,
        width=group.width,
        start=int(row_starts[0]),
        pad_index=torch.from_numpy(pad_index),
        unpad_index=torch.from_numpy(unpad_index),
        row_starts=torch.from_numpy(row_starts),
        relative_starts=torch.from_numpy((row_starts - row_starts[0]).astype(np.int32)),
        key_counts=torch.from_numpy(lengths[group.first : group.last].astype(np.int32)),
    )


ALIGNMENT = 8  # bytes; every tensor begins at a multiple of this, since an int64 view requires it


def flatten(batches: Sequence[RaggedBatch]) -> tuple[list[RaggedBatch], np.ndarray]:
    """Split host batches into copies without data (tensors on the meta device) and all tensor data, uint8 [bytes]."""
    contents = [np.empty(0, dtype=np.uint8)]

    def to_meta(tensor: Tensor) -> Tensor:
        contents.append(np.pad(tensor.numpy().view(np.uint8), (0, -tensor.nbytes % ALIGNMENT)))
        return tensor.to("meta")

    return [batch.map_tensors(to_meta) for batch in batches], np.concatenate(contents)


def unflatten(batches: Sequence[RaggedBatch], content: Tensor) -> tuple[RaggedBatch, ...]:
    """Restore the batches of `flatten`, with tensors that are views of `content` (uint8 [bytes]) on its device."""
    start = 0

    def view(tensor: Tensor) -> Tensor:
        nonlocal start
        values = content[start : start + tensor.nbytes].view(tensor.dtype)
        start += round_up(tensor.nbytes, ALIGNMENT)
        return values

    return tuple(batch.map_tensors(view) for batch in batches)
