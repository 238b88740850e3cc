"""The ragged batch: sequences laid end to end, with every index that the device needs built on the host.

- Layout: the place of every token of a batch, by compiled loops that release the interpreter lock, so that a thread
  lays out batches while another one trains.
- Attention groups: attention is computed group by group, the sequences of a group laid out as a [sequences, longest]
  rectangle. Few groups waste products on short sequences, many groups waste launches. Since the best groups are
  always runs of the length-sorted batch, the cheapest cut is found exactly by dynamic programming.
- Flattening: a batch as one array, so that a transfer to another process or to a device moves one object.
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

LAUNCH_COST = 40_000.0  # of one more group, in query–key pairs: measured on two CPU cores (docs/lab-notebook.md)


@dataclass(frozen=True)
class Group:
    """The slots `first` to `last` (exclusive) of the length-sorted batch, laid out as `rows` × `width` tokens."""

    first: int
    last: int
    width: int

    @property
    def rows(self) -> int:
        return self.last - self.first


WIDTH_STEP = 32  # widths are multiples of this: libraries prepare a product for each shape, so few shapes cost less


def group_by_width(sorted_lengths: np.ndarray, widths: Sequence[int]) -> tuple[Group, ...]:
    """Cut lengths [S], sorted from long to short, at given widths, as arXiv 2208.08124 does at 128, 256, 384 and 512.

    Each sequence goes to the narrowest width that holds it; a width that no sequence needs makes no group. Raises
    ValueError for a sequence that is longer than the greatest width.
    """
    descending = sorted(widths, reverse=True)
    if len(sorted_lengths) and sorted_lengths[0] > descending[0]:
        raise ValueError(f"a sequence of {sorted_lengths[0]} tokens fits none of the widths {sorted(widths)}")
    firsts = [int(np.count_nonzero(sorted_lengths > width)) for width in descending]
    lasts = [*firsts[1:], len(sorted_lengths)]
    cuts = zip(firsts, lasts, descending, strict=True)
    return tuple(Group(first, last, width) for first, last, width in cuts if last > first)


def group_by_length(sorted_lengths: np.ndarray, launch_cost: float = LAUNCH_COST) -> tuple[Group, ...]:
    """Cut lengths [S], sorted from long to short, into the groups of least total cost.

    A group of n sequences costs n · width² + `launch_cost`, its width being that of its longest sequence, rounded up.
    Exact, O(S²) in vectorised steps. An empty batch has no groups.
    """
    count = len(sorted_lengths)
    widths = -(-sorted_lengths.astype(np.int64) // WIDTH_STEP) * WIDTH_STEP
    squares = widths.astype(np.float64) ** 2
    best = np.zeros(count + 1)  # best[i]: least cost of the first i sequences
    cut = np.zeros(count + 1, dtype=np.int64)
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
    """Copy the flat arrays of `Samples` in an `order` [S] into rows that begin at `starts` [S + 1].

    `tokens_3T` gets token ids, segments and positions and must be zero; `masks_2M` gets the places of masked tokens
    among the T and their labels, in its first columns.
    """
    masked = 0
    for row in range(len(order)):
        sample = order[row]
        start, source = starts[row], sample_offsets[sample]
        for k in range(sample_offsets[sample + 1] - source):
            tokens_3T[0, start + k] = token_ids[source + k]
            tokens_3T[1, start + k] = 1 if k >= first_segment_lengths[sample] else 0
        for k in range(starts[row + 1] - start):
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
    """The two indices of an `AttentionGroup` whose rows are the tokens from `row_starts` [rows + 1]."""
    for row in range(len(row_starts) - 1):
        start, count = row_starts[row], row_starts[row + 1] - row_starts[row]
        before = start - row_starts[0]
        for k in range(width):
            pad_index[row * width + k] = start + k if k < count else start
        for k in range(count):
            unpad_index[before + k] = row * width + k


IGNORED = -100  # the label of a masked position that is there for the shape's sake only; torch's cross-entropy skips it


@dataclass(frozen=True)
class AttentionGroup:
    """One dense rectangle of the `grouped` attention backend: `rows` sequences of at most `width` tokens.

    `pad_index` [rows · width] names the batch's token that fills each slot; slots beyond a sequence's end repeat its
    first token. Row r holds the token slots `row_starts[r]` to `row_starts[r + 1]` of the batch (int64 [rows + 1]) and
    attends to the first `key_counts[r]` of them (int32 [rows]); `relative_starts` are the row starts counted from the
    group's first token, in int32.
    `unpad_index` [tokens of the group] is its inverse: where in the rectangle each of the group's tokens lies.
    `start` is the group's first token in the batch; its tokens are contiguous.
    """

    rows: int
    width: int
    start: int
    pad_index: Tensor
    unpad_index: Tensor
    row_starts: Tensor
    relative_starts: Tensor
    key_counts: Tensor

    @property
    def tokens(self) -> int:
        """Token slots of the group in the batch."""
        return self.unpad_index.numel()

    def with_tensors(self, change: Callable[[Tensor], Tensor]) -> "AttentionGroup":
        """The same group with every tensor changed."""
        changed: dict[str, Any] = {name: change(tensor) for name, tensor in _tensors(self)}
        return replace(self, **changed)


@dataclass(frozen=True)
class RaggedBatch:
    """S sequences, longest first, in T token slots, M of which are masked.

    In an unpadded batch the sequences lie end to end; slots after the last one only round the shape up and belong to
    no sequence, and sequences that only round S up begin there and have no tokens. In a padded batch each sequence has
    a slot of fixed width, its tokens come first and [PAD] fills the rest; `lengths` counts the tokens alone. Masked
    positions that round M up point to slot 0; they and sequences of no tokens have the label IGNORED.
    """

    token_ids: Tensor  # [T] int64
    segment_ids: Tensor  # [T] int64
    position_ids: Tensor  # [T] int64, from 0 in each sequence
    sequence_starts: Tensor  # [S + 1] int64, token slots
    sequence_starts_i32: Tensor  # [S + 2] int32, the same with T at the end: slots of no sequence as one more
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
        """Tokens that are not padding."""
        return sum(self.lengths)

    @property
    def slots(self) -> int:
        """Token slots T, padding included."""
        return self.token_ids.numel()

    @property
    def spare_slots(self) -> int:
        """Token slots after the last sequence's."""
        return self.slots - sum(group.tokens for group in self.groups)

    @property
    def masked(self) -> int:
        return sum(self.masked_counts)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(T, M, S), what only rounds them up included."""
        return self.slots, self.masked_positions.numel(), self.next_sentence.numel()

    def to(self, device: torch.device) -> "RaggedBatch":
        """The same batch on a device; copies overlap with computation when the host memory is pinned."""
        if device.type == "cpu":
            return self
        return self.with_tensors(lambda tensor: tensor.to(device, non_blocking=True))

    def pinned(self) -> "RaggedBatch":
        """The same batch in memory that a GPU can read by itself."""
        return self.with_tensors(Tensor.pin_memory)

    def with_tensors(self, change: Callable[[Tensor], Tensor]) -> "RaggedBatch":
        """The same batch with every tensor changed, those of its groups included."""
        changed: dict[str, Any] = {name: change(tensor) for name, tensor in _tensors(self)}
        return replace(self, groups=tuple(group.with_tensors(change) for group in self.groups), **changed)

    def tensors(self) -> list[Tensor]:
        """Every tensor of the batch but for those of its groups, in a fixed order."""
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
    """Lay samples end to end, longest first (ties keep their order).

    `slot_width` gives every sequence a slot of that many tokens, as padded implementations do; None pads nothing.
    T is rounded up to a multiple of `shape_step`, and so is M unless it is given as `masked_slots`. Attention groups
    are cut at `attention_widths`, or where that is cheapest. S is rounded up to `sequence_slots`, if that is given, by
    sequences of no tokens that begin after all others; T must have a slot free for them. Raises ValueError for a sample
    that is longer than its slot or the greatest width, for more masked tokens or sequences than slots and for an empty
    batch: nothing is ever cut off.
    """
    if not len(samples):
        raise ValueError("a batch needs at least one sample")
    if not isinstance(samples, Samples):
        samples = _in_flat_arrays(samples)
    lengths, masked_counts = np.diff(samples.sample_offsets), np.diff(samples.masked_offsets)
    order = np.argsort(-lengths, kind="stable")
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
    masks_2M[1] = IGNORED
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


ALIGNMENT = 8  # every tensor begins at a multiple of so many bytes


def flatten(batches: Sequence[RaggedBatch]) -> tuple[list[RaggedBatch], np.ndarray]:
    """Batches of the host with tensors of the meta device, and the content of all their tensors, uint8 [bytes]."""
    contents = [np.empty(0, dtype=np.uint8)]

    def to_meta(tensor: Tensor) -> Tensor:
        contents.append(np.pad(tensor.numpy().view(np.uint8), (0, -tensor.nbytes % ALIGNMENT)))
        return tensor.to("meta")

    return [batch.with_tensors(to_meta) for batch in batches], np.concatenate(contents)


def unflatten(batches: Sequence[RaggedBatch], content: Tensor) -> tuple[RaggedBatch, ...]:
    """The batches again, whose tensors are views of `content` [bytes] uint8, wherever that lies."""
    start = 0

    def view(tensor: Tensor) -> Tensor:
        nonlocal start
        values = content[start : start + tensor.nbytes].view(tensor.dtype)
        start += round_up(tensor.nbytes, ALIGNMENT)
        return values

    return tuple(batch.with_tensors(view) for batch in batches)
