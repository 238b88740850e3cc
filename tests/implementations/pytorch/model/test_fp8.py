"""fp8 linear layers: what is lost is the formats' rounding, and nothing else. The products are those of the CPU."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from benchmarks.bert.samples import Sample
from implementations.pytorch.data.batch import collate
from implementations.pytorch.model.bert import BertForPreTraining
from implementations.pytorch.model.fp8 import FORWARD, GRADIENT, Fp8Linear, _Scaled
from implementations.pytorch.model.linear import Linear

Error = Callable[[Tensor, Tensor], float]


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def layers(inputs: int, outputs: int) -> tuple[Fp8Linear, Linear]:
    torch.manual_seed(0)
    ours, plain = Fp8Linear(inputs, outputs), Linear(inputs, outputs)
    plain.load_state_dict(ours.state_dict())
    return ours, plain


@pytest.mark.parametrize("tokens", [1, 37, 64])
@pytest.mark.parametrize("size", [1.0, 1e-4, 1e4])
def test_result_and_gradients_are_near_those_of_fp32(tokens: int, size: float, relative_error: Error) -> None:
    """e4m3 keeps four bits and e5m2 three, so a product of many is a few percent off, whatever the magnitude."""
    ours, plain = layers(96, 48)
    x, upstream = size * normal(tokens, 96, seed=1), normal(tokens, 48, seed=2)
    ends = []
    for layer in (ours, plain):
        leaf = x.clone().requires_grad_()
        result = layer(leaf)
        ends.append([result, *torch.autograd.grad(result, [leaf, layer.weight, layer.bias], upstream)])
    errors = [relative_error(found, expected) for found, expected in zip(*ends, strict=True)]
    assert errors[0] < 0.05
    assert errors[1] < 0.1
    assert errors[2] < 0.1
    assert errors[3] < 1e-6
    assert min(errors[1:3]) > 1e-3, "nothing was rounded"


def test_the_range_is_filled() -> None:
    for dtype in (FORWARD, GRADIENT):
        for size in (1e-20, 1.0, 1e20):
            scaled = _Scaled(size * normal(8, 8, seed=0), dtype)
            assert float(scaled.values.float().abs().max()) == pytest.approx(torch.finfo(dtype).max)
        assert not _Scaled(torch.zeros(3, 3), dtype).values.float().any()


def test_a_gradient_that_is_not_finite_stays_so() -> None:
    """So that loss scaling or the metrics find it."""
    ours, _ = layers(16, 16)
    x = normal(4, 16, seed=0).requires_grad_()
    upstream = torch.ones(4, 16)
    upstream[0, 0] = float("inf")
    assert not torch.autograd.grad(ours(x), ours.weight, upstream)[0].isfinite().all()


def test_odd_sizes_are_multiplied_as_they_are() -> None:
    ours, plain = layers(20, 16)
    x = normal(5, 20, seed=0)
    assert torch.equal(ours(x), plain(x))


def test_a_model_of_it_has_the_same_weights_and_nearly_the_same_loss(
    make_model: Callable[..., BertForPreTraining], make_samples: Callable[..., list[Sample]]
) -> None:
    batch = collate(make_samples([60, 3, 17]))
    with torch.no_grad():
        ours, plain = make_model(linear=Fp8Linear), make_model()
        assert ours.state_dict().keys() == plain.state_dict().keys()
        found, expected = ours(batch).masked_lm, plain(batch).masked_lm
    error = float((found - expected).norm() / expected.norm())
    assert 1e-3 < error < 0.2
