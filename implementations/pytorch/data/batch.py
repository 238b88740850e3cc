"""The ragged batch: sequences laid end to end, with every index that the device needs built on the host."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.bert.samples import Sample
from implementations.pytorch.data.grouping import Group, group_by_length, group_by_width

IGNORED = -100
"""The label of a masked position that is there for the shape's sake only; torch's cross-entropy skips it."""


SHAPE_STEP = 64
SHAPE_STEPS = {"cpu": SHAPE_STEP, "cuda": 512}
"""Token slots are rounded up to multiples of this by device, unless the configuration says: few shapes cost less."""


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
    no sequence. In a padded batch each sequence has a slot of fixed width, its tokens come first and [PAD] fills the
    rest; `lengths` counts the tokens alone. Masked positions that round M up point to slot 0 and have the label
    IGNORED.
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
        """(T, M, S)."""
        return self.slots, self.masked_positions.numel(), self.sequences

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
    samples: Sequence[Sample],
    slot_width: int | None = None,
    shape_step: int = 1,
    masked_slots: int | None = None,
    attention_widths: Sequence[int] | None = None,
) -> RaggedBatch:
    """Lay samples end to end, longest first (ties keep their order).

    `slot_width` gives every sequence a slot of that many tokens, as padded implementations do; None pads nothing.
    T is rounded up to a multiple of `shape_step`, and so is M unless it is given as `masked_slots`. Attention groups
    are cut at `attention_widths`, or where that is cheapest. Raises ValueError for a sample that is longer than its
    slot or the greatest width, for more masked tokens than slots and for an empty batch: nothing is ever cut off.
    """
    if not samples:
        raise ValueError("a batch needs at least one sample")
    lengths = np.array([len(s.token_ids) for s in samples], dtype=np.int64)
    order = np.argsort(-lengths, kind="stable")
    samples = [samples[i] for i in order]
    lengths = lengths[order]
    if slot_width is not None and lengths[0] > slot_width:
        raise ValueError(f"a sample of {lengths[0]} tokens does not fit a slot of {slot_width}")
    widths = lengths if slot_width is None else np.full_like(lengths, slot_width)
    starts = np.concatenate([[0], np.cumsum(widths)])
    slots = round_up(int(starts[-1]), shape_step)

    token_ids = np.zeros(slots, dtype=np.int64)
    segment_ids = np.zeros(slots, dtype=np.int64)
    position_ids = np.zeros(slots, dtype=np.int64)
    for start, width, length, sample in zip(starts, widths, lengths, samples, strict=False):
        token_ids[start : start + length] = sample.token_ids
        segment_ids[start + sample.first_segment_length : start + length] = 1
        position_ids[start : start + width] = np.arange(width)
    masked_counts = np.array([len(s.masked_positions) for s in samples], dtype=np.int64)
    masked = int(masked_counts.sum())
    if masked_slots is None:
        masked_slots = round_up(masked, shape_step)
    elif masked > masked_slots:
        raise ValueError(f"{masked} masked tokens do not fit {masked_slots} slots")
    masked_positions = np.zeros(masked_slots, dtype=np.int64)
    masked_positions[:masked] = np.concatenate([s.masked_positions for s in samples])
    masked_positions[:masked] += np.repeat(starts[:-1], masked_counts)
    masked_labels = np.full_like(masked_positions, IGNORED)
    masked_labels[:masked] = np.concatenate([s.masked_token_ids for s in samples])

    groups = group_by_length(widths) if attention_widths is None else group_by_width(widths, attention_widths)
    return RaggedBatch(
        token_ids=torch.from_numpy(token_ids),
        segment_ids=torch.from_numpy(segment_ids),
        position_ids=torch.from_numpy(position_ids),
        sequence_starts=torch.from_numpy(starts),
        sequence_starts_i32=torch.from_numpy(np.append(starts, slots).astype(np.int32)),
        masked_positions=torch.from_numpy(masked_positions),
        masked_labels=torch.from_numpy(masked_labels),
        next_sentence=torch.from_numpy(np.array([s.next_sentence_label for s in samples], dtype=np.int64)),
        groups=tuple(_attention_group(group, starts, lengths) for group in groups),
        lengths=tuple(int(n) for n in lengths),
        masked_counts=tuple(int(n) for n in masked_counts),
        slot_width=slot_width,
    )


def round_up(number: int, step: int) -> int:
    """The least multiple of `step` that is not below `number`."""
    return -(-number // step) * step


def _attention_group(group: Group, starts: np.ndarray, lengths: np.ndarray) -> AttentionGroup:
    first_tokens = starts[group.first : group.last]
    slot_counts = np.diff(starts[group.first : group.last + 1])
    columns = np.arange(group.width)
    inside = columns < slot_counts[:, None]
    pad_index = np.where(inside, first_tokens[:, None] + columns, first_tokens[:, None])
    return AttentionGroup(
        rows=group.rows,
        width=group.width,
        start=int(first_tokens[0]),
        pad_index=torch.from_numpy(pad_index.reshape(-1)),
        unpad_index=torch.from_numpy(np.flatnonzero(inside.reshape(-1))),
        row_starts=torch.from_numpy(starts[group.first : group.last + 1]),
        relative_starts=torch.from_numpy((starts[group.first : group.last + 1] - first_tokens[0]).astype(np.int32)),
        key_counts=torch.from_numpy(lengths[group.first : group.last].astype(np.int32)),
    )
