"""Every Triton kernel on the device at the sizes of BERT-large, compared with the eager kernels in float64."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import pytest
import torch
from torch import Tensor

from implementations.pytorch.data.batch import IGNORED
from implementations.pytorch.kernels.choose import load_kernels
from implementations.pytorch.kernels.eager import EAGER
from implementations.pytorch.kernels.interface import Kernels, dropout_threshold_and_scale
from tests.implementations.pytorch.gpu.conftest import Target

pytestmark = pytest.mark.gpu
pytest.importorskip("triton", reason="Triton is not installed")

# Of the norm of an error to the norm of what is expected. float32 sums over all tokens.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
TYPES = pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
Record = Callable[[str, object], None]


@dataclass(frozen=True)
class Case:
    """Inputs of a kernel of the interface: activations in the compute dtype, parameters in float32, and a call."""

    activations: list[Tensor]
    parameters: list[Tensor]
    call: Callable[[Kernels, list[Tensor], torch.dtype, float], Tensor]


def embedding_norm(target: Target) -> Case:
    rows = (target.vocabulary, target.size.positions, target.size.segments)
    ids: Any = tuple(target.integers(high, target.tokens, seed) for seed, high in enumerate(rows))
    tables = [target.normal(count, target.size.hidden, seed=seed) for seed, count in enumerate(rows)]
    norm = [target.normal(target.size.hidden, seed=seed) for seed in (3, 4)]

    def call(kernels: Kernels, inputs: list[Tensor], dtype: torch.dtype, p: float) -> Tensor:
        return kernels.embedding_norm(ids, (inputs[0], inputs[1], inputs[2]), inputs[3], inputs[4], p, dtype)

    return Case([], [*tables, *norm], call)


def residual_norm(target: Target) -> Case:
    activations = [target.normal(target.tokens, target.size.hidden, seed=seed) for seed in (1, 2)]
    parameters = [target.normal(target.size.hidden, seed=seed) for seed in (3, 4, 5)]

    def call(kernels: Kernels, inputs: list[Tensor], dtype: torch.dtype, p: float) -> Tensor:
        return kernels.residual_norm(inputs[0], inputs[1], inputs[2], inputs[3], inputs[4], p)

    return Case(activations, parameters, call)


def bias_gelu(target: Target) -> Case:
    width = target.size.feed_forward
    return Case(
        [target.normal(target.tokens, width, scale=3)],
        [target.normal(width, seed=1)],
        lambda kernels, inputs, dtype, p: kernels.bias_gelu(inputs[0], inputs[1]),
    )


def cross_entropy(target: Target) -> Case:
    labels = target.integers(target.vocabulary, target.masked)
    labels[1::5] = IGNORED
    return Case(
        [target.normal(target.masked, target.vocabulary, scale=4)],
        [],
        lambda kernels, inputs, dtype, p: kernels.cross_entropy(inputs[0], labels),
    )


def attention_weights(target: Target) -> Case:
    rows, width = (8, 512) if target.is_gpu else (2, 8)
    counts = (1 + target.integers(width, rows)).int()
    return Case(
        [target.normal(target.size.heads, rows, width, width)],
        [],
        lambda kernels, inputs, dtype, p: kernels.attention_weights(inputs[0], counts, p),
    )


CASES = {make.__name__: make for make in (embedding_norm, residual_norm, bias_gelu, cross_entropy, attention_weights)}
NAMES = pytest.mark.parametrize("name", [field.name for field in fields(Kernels)])
WITH_DROPOUT = ("embedding_norm", "residual_norm")  # those whose mask is drawn by a Triton kernel


def run(
    case: Case, kernels: Kernels, target: Target, dtype: torch.dtype, compute: torch.dtype, p: float = 0.0
) -> list[Tensor]:
    """The result and the gradients of all inputs, which are rounded to `dtype`, computed in `compute`."""
    other = torch.float64 if compute == torch.float64 else torch.float32
    inputs = [x.to(dtype).to(compute).requires_grad_() for x in case.activations]
    inputs += [x.float().to(other).requires_grad_() for x in case.parameters]
    result = case.call(kernels, inputs, compute, p)
    upstream = target.normal(*result.shape, seed=99).to(dtype).to(result.dtype)
    return [result.detach(), *torch.autograd.grad(result, inputs, upstream)]


def largest_error(found: list[Tensor], expected: list[Tensor]) -> float:
    """The largest ‖found − expected‖ / ‖expected‖."""
    errors = []
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        assert one.isfinite().all()
        scale = other.norm()
        errors.append(float((one.double() - other).norm() / torch.where(scale > 0, scale, 1.0)))
    return max(errors)


@TYPES
@NAMES
def test_a_kernel_matches_float64(name: str, dtype: torch.dtype, target: Target, record_property: Record) -> None:
    case = CASES[name](target)
    found = run(case, load_kernels("triton"), target, dtype, dtype)
    error = largest_error(found, run(case, EAGER, target, dtype, torch.float64))
    record_property("error", error)
    assert error < TOLERANCE[dtype]


@TYPES
@pytest.mark.parametrize("name", WITH_DROPOUT)
def test_a_dropout_mask_is_the_same_in_both_directions(
    name: str, dtype: torch.dtype, target: Target, record_property: Record
) -> None:
    """The mask is read off one direction, and all results are compared with float64 under that mask."""
    case, p, triton = CASES[name](target), 0.25, load_kernels("triton")
    torch.manual_seed(0)
    found = run(case, triton, target, dtype, dtype, p)
    # Dropped are the zeros of the embeddings' output, and of the gradient of the sub-layer's output.
    dropped = found[0] if name == "embedding_norm" else found[2]
    keeps = (dropped != 0).double() * dropout_threshold_and_scale(p)[1]

    def masked(kernels: Kernels, inputs: list[Tensor], compute: torch.dtype, _: float) -> Tensor:
        if name == "embedding_norm":
            return keeps * case.call(EAGER, inputs, compute, 0.0)
        x, update, update_bias, weight, bias = inputs
        update = (update + update_bias) * keeps
        return EAGER.residual_norm(x, update, torch.zeros_like(update_bias), weight, bias, 0.0)

    expected = run(Case(case.activations, case.parameters, masked), EAGER, target, dtype, torch.float64)
    error = largest_error(found, expected)
    record_property("error", error)
    assert error < TOLERANCE[dtype]
    share = float((keeps == 0).double().mean())
    assert abs(share - p) < 5 * (p * (1 - p) / keeps.numel()) ** 0.5 + 1e-3
    assert len((keeps != 0)[:64].unique(dim=0)) == min(64, len(keeps))
    torch.manual_seed(1)
    assert not torch.equal(run(case, triton, target, dtype, dtype, p)[0], found[0])


def test_every_kernel_of_the_interface_has_a_case() -> None:
    assert sorted(CASES) == sorted(field.name for field in fields(Kernels))
