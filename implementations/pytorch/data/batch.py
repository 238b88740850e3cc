"""The ragged batch: sequences laid end to end, with every index that the device needs built on the host."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from benchmarks.bert.samples import Sample
from implementations.pytorch.data.grouping import Group, group_by_length

IGNORED = -100
"""The label of a masked position that is there for the shape's sake only; torch's cross-entropy skips it."""


SHAPE_STEP = 64
"""Training and evaluation batches are rounded up to multiples of this many token slots and masked positions."""


@dataclass(frozen=True)
class AttentionGroup:
    """One dense rectangle of the `grouped` attention backend: `rows` sequences of at most `width` tokens.

    `pad_index` [rows · width] names the batch's token that fills each slot; slots beyond a sequence's end repeat its
    first token and are hidden by `key_bias` [rows, 1, width] (0 or -inf), which is None where there are none.
    `unpad_index` [tokens of the group] is its inverse: where in the rectangle each of the group's tokens lies.
    `start` is the group's first token in the batch; its tokens are contiguous.
    """

    rows: int
    width: int
    start: int
    pad_index: Tensor
    unpad_index: Tensor
    key_bias: Tensor | None

    def to(self, device: torch.device) -> "AttentionGroup":
        return replace(
            self,
            pad_index=self.pad_index.to(device, non_blocking=True),
            unpad_index=self.unpad_index.to(device, non_blocking=True),
            key_bias=None if self.key_bias is None else self.key_bias.to(device, non_blocking=True),
        )


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
    def masked(self) -> int:
        return sum(self.masked_counts)

    def to(self, device: torch.device) -> "RaggedBatch":
        """The same batch on a device; copies overlap with computation when the host memory is pinned."""
        if device.type == "cpu":
            return self
        return replace(
            self,
            token_ids=self.token_ids.to(device, non_blocking=True),
            segment_ids=self.segment_ids.to(device, non_blocking=True),
            position_ids=self.position_ids.to(device, non_blocking=True),
            sequence_starts=self.sequence_starts.to(device, non_blocking=True),
            masked_positions=self.masked_positions.to(device, non_blocking=True),
            masked_labels=self.masked_labels.to(device, non_blocking=True),
            next_sentence=self.next_sentence.to(device, non_blocking=True),
            groups=tuple(group.to(device) for group in self.groups),
        )


def collate(samples: Sequence[Sample], slot_width: int | None = None, shape_step: int = 1) -> RaggedBatch:
    """Lay samples end to end, longest first (ties keep their order).

    `slot_width` gives every sequence a slot of that many tokens, as padded implementations do; None pads nothing.
    T and M are rounded up to multiples of `shape_step`. Raises ValueError for a sample that is longer than its slot
    and for an empty batch.
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
    masked_positions = np.zeros(round_up(masked, shape_step), dtype=np.int64)
    masked_positions[:masked] = np.concatenate([s.masked_positions for s in samples])
    masked_positions[:masked] += np.repeat(starts[:-1], masked_counts)
    masked_labels = np.full_like(masked_positions, IGNORED)
    masked_labels[:masked] = np.concatenate([s.masked_token_ids for s in samples])

    return RaggedBatch(
        token_ids=torch.from_numpy(token_ids),
        segment_ids=torch.from_numpy(segment_ids),
        position_ids=torch.from_numpy(position_ids),
        sequence_starts=torch.from_numpy(starts),
        masked_positions=torch.from_numpy(masked_positions),
        masked_labels=torch.from_numpy(masked_labels),
        next_sentence=torch.from_numpy(np.array([s.next_sentence_label for s in samples], dtype=np.int64)),
        groups=tuple(_attention_group(group, starts, lengths) for group in group_by_length(widths)),
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
    visible = columns < lengths[group.first : group.last, None]
    key_bias = None
    if not visible.all():
        bias = np.where(visible, np.float32(0), np.float32("-inf"))
        key_bias = torch.from_numpy(bias)[:, None, :]
    return AttentionGroup(
        rows=group.rows,
        width=group.width,
        start=int(first_tokens[0]),
        pad_index=torch.from_numpy(pad_index.reshape(-1)),
        unpad_index=torch.from_numpy(np.flatnonzero(inside.reshape(-1))),
        key_bias=key_bias,
    )
