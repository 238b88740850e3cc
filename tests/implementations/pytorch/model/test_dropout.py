"""Dropout: its rate, its scale, and that backward drops what forward dropped."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from implementations.pytorch.model.dropout import dropout, keep_mask

RATES = [0.01, 0.1, 0.25, 0.5, 0.9]


def rate_of(probability: float) -> float:
    """Drop probabilities are multiples of 1/65536."""
    return round(probability * 65536) / 65536


@pytest.mark.parametrize("probability", RATES)
def test_elements_are_dropped_at_the_rate(probability: float) -> None:
    """Within five standard deviations; also of each place of the four that share a draw."""
    torch.manual_seed(0)
    count = 1_000_000
    dropped = 1.0 - keep_mask(count, probability).double()
    deviation = (probability * (1 - probability)) ** 0.5
    assert abs(float(dropped.mean()) - probability) < 5 * deviation / count**0.5
    for place in range(4):
        assert abs(float(dropped[place::4].mean()) - probability) < 5 * deviation / (count / 4) ** 0.5


def test_elements_are_dropped_independently() -> None:
    torch.manual_seed(0)
    centred = 0.9 - keep_mask(1_000_000, 0.1).double()
    for distance in (1, 2, 3, 4, 8, 32, 1024):
        assert abs(float((centred[distance:] * centred[:-distance]).mean()) / 0.09) < 0.005


@pytest.mark.parametrize("probability", RATES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_what_is_kept_is_scaled_so_that_the_expectation_is_exact(probability: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(40, 50).to(dtype)
    y = dropout(x, probability, training=True)
    kept = y != 0
    assert y.dtype == dtype
    assert 0 < int(kept.sum()) < x.numel()
    scale = 1 / (1 - rate_of(probability))
    torch.testing.assert_close(y[kept], (x.double() * scale).to(dtype)[kept], rtol=torch.finfo(dtype).eps * 2, atol=0)


@given(
    shape=st.lists(st.integers(1, 7), min_size=1, max_size=4),
    seed=st.integers(0, 100),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
@settings(deadline=None)
def test_backward_drops_what_forward_dropped(shape: list[int], seed: int, dtype: torch.dtype) -> None:
    torch.manual_seed(seed)
    x = torch.ones(shape, dtype=dtype, requires_grad=True)
    y = dropout(x, 0.5, training=True)
    towards = torch.rand(shape).to(dtype) + 0.5
    (gradient,) = torch.autograd.grad(y, x, towards)
    assert torch.equal(gradient == 0, y == 0)
    torch.testing.assert_close(gradient, y.detach() * towards)


def test_it_is_right_for_tensors_that_are_not_contiguous() -> None:
    x = torch.arange(1.0, 25).view(4, 6).T.requires_grad_()
    torch.manual_seed(0)
    y = dropout(x, 0.5, training=True)
    (gradient,) = torch.autograd.grad(y, x, torch.ones(1, 1).expand(6, 4))
    assert torch.equal(gradient != 0, y != 0)
    torch.testing.assert_close(y, x * gradient)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 63, 1001])
def test_the_same_seed_is_the_same_mask(count: int) -> None:
    torch.manual_seed(5)
    first, second = keep_mask(count, 0.5), keep_mask(count, 0.5)
    torch.manual_seed(5)
    assert torch.equal(keep_mask(count, 0.5), first)
    assert first.shape == (count,)
    if count > 60:
        assert not torch.equal(first, second)


@pytest.mark.parametrize(("probability", "training"), [(0.1, False), (0.0, True), (0.0, False)])
def test_where_nothing_is_dropped_no_random_number_is_drawn(probability: float, training: bool) -> None:
    x, before = torch.randn(10), torch.get_rng_state()
    assert dropout(x, probability, training) is x
    assert torch.equal(torch.get_rng_state(), before)
