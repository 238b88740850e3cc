"""Collating: every index is right, with and without padding."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.bert.samples import Sample
from implementations.pytorch.data.batch import IGNORED, RaggedBatch, collate
from podium.planning.batch_plan import round_up

Maker = Callable[..., list[Sample]]
LENGTHS = st.lists(st.integers(2, 120), min_size=1, max_size=12)
LAYOUTS = st.sampled_from([(None, 1), (None, 64), (None, 7), (120, 1), (128, 64), (121, 64)])


def by_length(samples: list[Sample]) -> list[Sample]:
    """Longest first; Python's sort is stable."""
    return sorted(samples, key=lambda sample: len(sample.token_ids), reverse=True)


@given(LENGTHS, LAYOUTS, st.integers(0, 100))
@settings(deadline=None)
def test_indices_point_to_every_sample(
    make_samples: Maker, lengths: list[int], layout: tuple[int | None, int], seed: int
) -> None:
    slot_width, shape_step = layout
    samples = make_samples(lengths, seed)
    batch = collate(samples, slot_width, shape_step)
    masked = 0
    for row, sample in enumerate(by_length(samples)):
        length, start = len(sample.token_ids), int(batch.sequence_starts[row])
        end = int(batch.sequence_starts[row + 1])
        width = length if slot_width is None else slot_width
        assert end - start == width
        assert batch.token_ids[start:end].tolist() == sample.token_ids.tolist() + [0] * (width - length)
        assert batch.segment_ids[start : start + length].tolist() == [
            int(i >= sample.first_segment_length) for i in range(length)
        ]
        assert batch.position_ids[start:end].tolist() == list(range(width))
        assert batch.lengths[row] == length
        assert batch.masked_counts[row] == len(sample.masked_positions)
        assert int(batch.next_sentence[row]) == sample.next_sentence_label
        for position, label in zip(sample.masked_positions, sample.masked_token_ids, strict=True):
            assert int(batch.masked_positions[masked]) == start + int(position)
            assert int(batch.masked_labels[masked]) == int(label)
            masked += 1
    assert batch.masked_positions[masked:].tolist() == [0] * (batch.masked_positions.numel() - masked)
    assert batch.masked_labels[masked:].tolist() == [IGNORED] * (batch.masked_labels.numel() - masked)
    assert not batch.token_ids[int(batch.sequence_starts[-1]) :].any()
    assert (batch.sequences, batch.tokens, batch.masked) == (len(samples), sum(lengths), masked)


@given(LENGTHS, LAYOUTS)
@settings(deadline=None)
def test_shapes_are_rounded_up_to_the_next_multiple(
    make_samples: Maker, lengths: list[int], layout: tuple[int | None, int]
) -> None:
    slot_width, step = layout
    batch = collate(make_samples(lengths), slot_width, step)
    taken = sum(lengths) if slot_width is None else len(lengths) * slot_width
    for found, least in ((batch.slots, taken), (batch.masked_labels.numel(), batch.masked)):
        assert found % step == 0
        assert least <= found < least + step
    assert batch.slots == batch.token_ids.numel() == batch.segment_ids.numel() == batch.position_ids.numel()
    assert batch.masked_positions.shape == batch.masked_labels.shape
    assert batch.sequence_starts.shape == (len(lengths) + 1,)


@given(LENGTHS, LAYOUTS)
@settings(deadline=None)
def test_groups_contain_every_slot_of_every_sequence_once(
    make_samples: Maker, lengths: list[int], layout: tuple[int | None, int]
) -> None:
    slot_width, shape_step = layout
    batch = collate(make_samples(lengths), slot_width, shape_step)
    starts = batch.sequence_starts.tolist()
    row = 0
    slots: list[int] = []
    for group in batch.groups:
        rectangle = group.pad_index.view(group.rows, group.width)
        assert group.start == starts[row]
        slots += group.pad_index[group.unpad_index].tolist()
        assert group.row_starts.tolist() == starts[row : row + group.rows + 1]
        assert group.relative_starts.tolist() == [n - group.start for n in group.row_starts.tolist()]
        assert group.tokens == int(group.relative_starts[-1])
        for line, count in zip(rectangle, group.key_counts.tolist(), strict=True):
            width, length = starts[row + 1] - starts[row], batch.lengths[row]
            assert line[:width].tolist() == list(range(starts[row], starts[row + 1]))
            assert (line[width:] == starts[row]).all()
            assert count == length
            row += 1
    assert row == batch.sequences
    assert slots == list(range(starts[-1]))
    assert batch.spare_slots == batch.slots - starts[-1]
    assert batch.sequence_starts_i32.tolist() == [*starts, batch.slots]


def test_samples_of_one_length_keep_their_order(make_samples: Maker) -> None:
    samples = make_samples([9, 9, 30, 9])
    batch = collate(samples)
    order = [samples[2], samples[0], samples[1], samples[3]]
    assert batch.token_ids.tolist() == [int(token) for sample in order for token in sample.token_ids]


def test_masked_slots_set_the_number_of_masked_positions(make_samples: Maker) -> None:
    samples = make_samples([40, 50])
    batch = collate(samples, None, 64, masked_slots=30)
    assert batch.shape == (128, 30, 2)
    assert (batch.masked_labels[batch.masked :] == IGNORED).all()
    with pytest.raises(ValueError, match=f"{batch.masked} masked tokens do not fit 9 slots"):
        collate(samples, None, 64, masked_slots=9)


def test_sequence_slots_set_the_number_of_sequences(make_samples: Maker) -> None:
    samples = make_samples([40, 50])
    batch = collate(samples, None, 64, sequence_slots=5)
    assert batch.shape == (128, collate(samples, None, 64).shape[1], 5)
    assert batch.sequences == 2
    assert batch.sequence_starts.tolist() == [0, 50, 90, 90, 90, 90]
    assert batch.sequence_starts_i32.tolist() == [0, 50, 90, 90, 90, 90, 128]
    assert batch.next_sentence.tolist()[2:] == [IGNORED] * 3
    assert batch.spare_slots == 38
    with pytest.raises(ValueError, match="2 sequences in 90 slots do not fit 1 in 128"):
        collate(samples, None, 64, sequence_slots=1)
    with pytest.raises(ValueError, match="2 sequences in 90 slots do not fit 3 in 90"):
        collate(samples, None, 90, sequence_slots=3)  # no slot is left where the third could begin
    assert collate(samples, None, 90, sequence_slots=2).shape[2] == 2


def test_change_applies_to_every_tensor(make_samples: Maker) -> None:
    """Including those of the groups, since the whole batch is moved to a device."""
    batch = collate(make_samples([40, 50, 400]))
    changed = batch.map_tensors(lambda tensor: tensor.to("meta"))
    tensors = [value for holder in (changed, *changed.groups) for value in vars(holder).values()]
    found = [value for value in tensors if isinstance(value, torch.Tensor)]
    assert len(found) == 8 + 5 * len(batch.groups)
    assert {tensor.device.type for tensor in found} == {"meta"}
    assert [t.shape for t in changed.tensors()] == [t.shape for t in batch.tensors()]
    assert changed.lengths == batch.lengths


def test_collate_does_not_modify_samples(make_samples: Maker) -> None:
    samples = make_samples([40, 50])
    for sample in samples:
        sample.token_ids.flags.writeable = sample.masked_positions.flags.writeable = False
    before = [sample.masked_positions.copy() for sample in samples]
    collate(samples)
    assert all(np.array_equal(a.masked_positions, b) for a, b in zip(samples, before, strict=True))


def test_a_position_beyond_65535_does_not_wrap(make_samples: Maker) -> None:
    """Positions are stored in 16 bits; a batch may hold more tokens."""
    samples = make_samples([512] * 200)
    batch = collate(samples)
    assert int(batch.masked_positions[-1]) == 199 * 512 + int(samples[-1].masked_positions[-1])


def test_samples_that_do_not_fit_are_an_error(make_samples: Maker) -> None:
    with pytest.raises(ValueError, match="at least one sample"):
        collate([])
    with pytest.raises(ValueError, match="a sample of 65 tokens does not fit a slot of 64"):
        collate(make_samples([10, 65, 64]), slot_width=64)
    assert collate(make_samples([10, 64]), slot_width=64).slots == 128


@given(st.integers(0, 10**9), st.integers(1, 1000))
@settings(deadline=None)
def test_round_up(number: int, step: int) -> None:
    assert round_up(number, step) % step == 0
    assert 0 <= round_up(number, step) - number < step


def test_to_moves_all_tensors_unless_on_the_host(make_samples: Maker) -> None:
    batch = collate(make_samples([20, 3, 77]))
    assert batch.to(torch.device("cpu")) is batch
    moved = batch.to(torch.device("meta"))
    tensors = [value for value in vars(moved).values() if isinstance(value, torch.Tensor)]
    tensors += [v for group in moved.groups for v in vars(group).values() if isinstance(v, torch.Tensor)]
    assert len(tensors) >= 9
    assert all(tensor.device.type == "meta" for tensor in tensors)
    assert isinstance(moved, RaggedBatch)
    assert moved.lengths == batch.lengths
