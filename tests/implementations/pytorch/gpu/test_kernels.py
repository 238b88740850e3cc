"""Every Triton kernel on the device at the sizes of BERT-large, compared with the eager kernels in float64."""

from collections.abc import Callable
from dataclasses import fields

import pytest
import torch
from torch import Tensor

from implementations.pytorch.bench.kernel_cases import CASES, Case
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


NAMES = pytest.mark.parametrize("name", [field.name for field in fields(Kernels)])
WITH_DROPOUT = ("embedding_norm", "residual_norm")  # those whose mask is drawn by a Triton kernel


def run(
    case: Case, kernels: Kernels, target: Target, dtype: torch.dtype, compute: torch.dtype, p: float = 0.0
) -> list[Tensor]:
    """The result and the gradients of all inputs, which are rounded to `dtype`, computed in `compute`."""
    inputs = case.inputs(dtype, compute)
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
