"""Bounds of clock offsets from made-up exchanges, whose true offsets are known."""

import pytest
import torch

from implementations.pytorch.examining.clocks import Offset, offsets

OFFSETS_R = torch.tensor([0.0, 2.5, -0.75], dtype=torch.float64)


def exchanges(rounds: int, slowest: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Rounds in which everybody sends within a while and receives after the last has sent, by clocks that differ."""
    generator = torch.Generator().manual_seed(3)
    begin_N1 = 100.0 * torch.arange(rounds, dtype=torch.float64)[:, None]
    sent_NR = begin_N1 + slowest * torch.rand(rounds, 3, generator=generator, dtype=torch.float64)
    delays_NR = slowest * torch.rand(rounds, 3, generator=generator, dtype=torch.float64)
    received_NR = sent_NR.max(dim=1, keepdim=True).values + delays_NR
    return sent_NR + OFFSETS_R, received_NR + OFFSETS_R


@pytest.mark.parametrize(("rounds", "slowest", "width"), [(1, 0.01, 0.05), (50, 0.01, 0.012), (50, 1.0, 1.2)])
def test_the_true_offset_lies_within_the_bounds(rounds: int, slowest: float, width: float) -> None:
    found = offsets(*exchanges(rounds, slowest))
    assert found[0] == Offset(0.0, 0.0)
    for offset, true in zip(found, OFFSETS_R.tolist(), strict=True):
        assert offset.least <= true <= offset.greatest
        assert offset.greatest - offset.least <= width


def test_what_is_certain_is_the_nearer_bound() -> None:
    assert [Offset(*bounds).certain for bounds in ((-1, 2), (0.5, 2), (-3, -1.5))] == [0.0, 0.5, 1.5]


def test_more_rounds_are_never_worse() -> None:
    sent_NR, received_NR = exchanges(30, 0.1)
    few, many = offsets(sent_NR[:5], received_NR[:5])[1], offsets(sent_NR, received_NR)[1]
    assert few.least <= many.least <= many.greatest <= few.greatest
