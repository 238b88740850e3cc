"""fp8 linear layers: results differ from fp32 only by the formats' rounding.

Products are computed on the CPU. The operator for GPUs is compared with them in its CPU implementation; whether it
accepts the layouts on a GPU is checked with fake tensors.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks.bert.samples import Sample
from implementations.pytorch.data.batch import collate
from implementations.pytorch.model.bert import BertForPreTraining
from implementations.pytorch.model.linear import (
    FORWARD_DTYPE,
    GRADIENT_DTYPE,
    Fp8Linear,
    Linear,
    _Fp8Matrix,
    _multiply_fp8,
    _multiply_in_float32,
    scaled_product,
)

Error = Callable[[Tensor, Tensor], float]


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def layers(inputs: int, outputs: int) -> tuple[Fp8Linear, Linear]:
    torch.manual_seed(0)
    fp8, plain = Fp8Linear(inputs, outputs), Linear(inputs, outputs)
    plain.load_state_dict(fp8.state_dict())
    return fp8, plain


@pytest.mark.parametrize("tokens", [1, 37, 64])
@pytest.mark.parametrize("size", [1.0, 1e-4, 1e4])
def test_result_and_gradients_are_close_to_fp32(tokens: int, size: float, relative_error: Error) -> None:
    """e4m3 has four significant bits and e5m2 three, so sums of products are a few percent off at any magnitude."""
    fp8, plain = layers(96, 48)
    x, upstream = size * normal(tokens, 96, seed=1), normal(tokens, 48, seed=2)
    ends = []
    for layer in (fp8, plain):
        leaf = x.clone().requires_grad_()
        result = layer(leaf)
        ends.append([result, *torch.autograd.grad(result, [leaf, layer.weight, layer.bias], upstream)])
    errors = [relative_error(found, expected) for found, expected in zip(*ends, strict=True)]
    assert errors[0] < 0.05
    assert errors[1] < 0.1
    assert errors[2] < 0.1
    assert errors[3] < 1e-6
    assert min(errors[1:3]) > 1e-3, "nothing was rounded"


def test_scaling_fills_the_range_of_the_format() -> None:
    for dtype in (FORWARD_DTYPE, GRADIENT_DTYPE):
        for size in (1e-20, 1.0, 1e20):
            scaled = _Fp8Matrix(size * normal(8, 8, seed=0), dtype)
            assert float(scaled.values.float().abs().max()) == pytest.approx(torch.finfo(dtype).max)
        assert not _Fp8Matrix(torch.zeros(3, 3), dtype).values.float().any()


def test_non_finite_gradient_stays_non_finite() -> None:
    """So that loss scaling or the metrics detect it."""
    fp8, _ = layers(16, 16)
    x = normal(4, 16, seed=0).requires_grad_()
    upstream = torch.ones(4, 16)
    upstream[0, 0] = float("inf")
    assert not torch.autograd.grad(fp8(x), fp8.weight, upstream)[0].isfinite().all()


def test_odd_sizes_are_not_quantised() -> None:
    fp8, plain = layers(20, 16)
    x = normal(5, 20, seed=0)
    assert torch.equal(fp8(x), plain(x))


def test_fp8_model_has_the_same_weights_and_nearly_the_same_logits(
    make_model: Callable[..., BertForPreTraining], make_samples: Callable[..., list[Sample]]
) -> None:
    batch = collate(make_samples([60, 3, 17]))
    with torch.no_grad():
        fp8, plain = make_model(linear=Fp8Linear), make_model()
        assert fp8.state_dict().keys() == plain.state_dict().keys()
        found, expected = fp8(batch).masked_lm, plain(batch).masked_lm
    error = float((found - expected).norm() / expected.norm())
    assert 1e-3 < error < 0.2


@pytest.mark.parametrize("dtype", [FORWARD_DTYPE, GRADIENT_DTYPE])
@pytest.mark.parametrize("type_", [torch.bfloat16, torch.float16])
def test_quantisation_does_not_depend_on_the_input_dtype(dtype: torch.dtype, type_: torch.dtype) -> None:
    """The scale and all values equal those of the same numbers in float32."""
    for seed in range(5):
        x = normal(64, 64, seed=seed).to(type_)
        found, expected = _Fp8Matrix(x, dtype), _Fp8Matrix(x.float(), dtype)
        assert torch.equal(found.scale, expected.scale)
        assert found.values.dtype == dtype
        assert torch.equal(found.values.float(), expected.values.float())


@pytest.mark.parametrize("tiny", [0.0, 1e-45, 1e-40, 1e-37])
@pytest.mark.parametrize("type_", [torch.float32, torch.bfloat16])
def test_scale_is_a_normal_number(tiny: float, type_: torch.dtype) -> None:
    for dtype in (FORWARD_DTYPE, GRADIENT_DTYPE):
        scaled = _Fp8Matrix(torch.full((4, 4), tiny, dtype=type_), dtype)
        assert float(scaled.scale) >= torch.finfo(torch.float32).tiny
        assert scaled.values.float().isfinite().all()
        back = scaled.values.float() * scaled.scale
        torch.testing.assert_close(back, torch.full((4, 4), tiny), rtol=0.07, atol=1e-38)


def test_powers_of_two_are_exact() -> None:
    """The scale absorbs them, bit for bit."""
    fp8, _ = layers(32, 16)
    x = normal(7, 32, seed=0)
    assert torch.equal(fp8.product(1024 * x), 1024 * fp8.product(x))


@pytest.mark.parametrize("type_", [torch.float32, torch.bfloat16])
def test_dtypes_are_those_of_a_plain_layer(type_: torch.dtype) -> None:
    """With and without autocast: activations in the compute type, gradients of parameters in float32."""
    fp8, plain = layers(32, 16)
    for layer in (fp8, plain):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=type_ == torch.bfloat16):
            x = normal(5, 32, seed=0).requires_grad_()
            y = layer(x)
        assert y.dtype == type_
        dx, dweight, dbias = torch.autograd.grad(y, [x, layer.weight, layer.bias], torch.ones_like(y))
        assert (dx.dtype, dweight.dtype, dbias.dtype) == (torch.float32,) * 3


def test_zeros_give_zeros() -> None:
    fp8, _ = layers(32, 16)
    x = torch.zeros(5, 32, requires_grad=True)
    y = fp8.product(x)
    dx, dweight = torch.autograd.grad(y, [x, fp8.weight], torch.zeros_like(y))
    assert not any(tensor.any() or not tensor.isfinite().all() for tensor in (y, dx, dweight))


PRODUCTS = pytest.mark.parametrize(
    ("a_type", "k", "out"),
    [
        (FORWARD_DTYPE, 32, torch.bfloat16),
        (GRADIENT_DTYPE, 48, torch.bfloat16),
        (GRADIENT_DTYPE, 37, torch.float32),
        (GRADIENT_DTYPE, 1, torch.float32),
    ],
)


@PRODUCTS
def test_operator_and_float32_product_agree(a_type: torch.dtype, k: int, out: torch.dtype) -> None:
    """The three products of a layer: forward, input gradient, and weight gradient, whose K is a number of tokens."""
    a, b = _Fp8Matrix(3 * normal(21, k, seed=0), a_type), _Fp8Matrix(5 * normal(16, k, seed=1), FORWARD_DTYPE)
    found, expected = _multiply_fp8(a, b, out), _multiply_in_float32(a, b, out)
    assert found.dtype == expected.dtype == out
    torch.testing.assert_close(found, expected, rtol=1e-5 if out == torch.float32 else 8e-3, atol=1e-4)
    assert torch.equal(scaled_product(a, b, out), expected)


@PRODUCTS
def test_operands_are_valid_on_a_gpu(a_type: torch.dtype, k: int, out: torch.dtype) -> None:
    """On fake CUDA tensors PyTorch checks only layouts, sizes and dtypes."""
    with FakeTensorMode():
        a, b = (
            _Fp8Matrix.of(torch.empty(rows, k, device="cuda", dtype=dtype), torch.empty((), device="cuda"))
            for rows, dtype in ((21, a_type), (16, FORWARD_DTYPE))
        )
        product = scaled_product(a, b, out)
        assert (product.shape, product.dtype, product.device.type) == ((21, 16), out, "cuda")


def test_operands_are_row_major() -> None:
    """Also for a transposed gradient, which the hardware would reject."""
    transposed = normal(8, 16, seed=0).t()
    scaled = _Fp8Matrix(transposed, GRADIENT_DTYPE)
    assert scaled.values.is_contiguous()
    torch.testing.assert_close(scaled.values.float() * scaled.scale, transposed, rtol=0.13, atol=1e-4)


def test_no_value_is_read_on_the_host() -> None:
    """Fake tensors have no values, so reading one raises an error."""
    with FakeTensorMode():
        layer = Fp8Linear(32, 16)
        x = torch.empty(5, 32, requires_grad=True)
        y = layer(x)
        dx, dweight = torch.autograd.grad(y, [x, layer.weight], torch.empty_like(y))
        with pytest.raises(RuntimeError):
            float(y.detach().sum())
    assert (y.shape, dx.shape, dweight.shape) == ((5, 16), (5, 32), (16, 32))


def test_layer_compiles_without_graph_break() -> None:
    """As part of a compiled function, forward and backward, for any number of tokens."""
    fp8, _ = layers(32, 16)
    compiled = torch.compile(lambda x: torch.tanh(fp8(x)), backend="aot_eager", fullgraph=True, dynamic=True)
    for tokens in (16, 21, 37):
        x = normal(tokens, 32, seed=tokens).requires_grad_()
        ends = []
        for result in (compiled(x), torch.tanh(fp8(x))):
            ends.append([result, *torch.autograd.grad(result.sum(), [x, fp8.weight, fp8.bias])])
        for found, expected in zip(*ends, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
