"""The optimizer that a step with Triton kernels has compared with the plain one on a CPU, over several steps."""

import copy
from collections.abc import Callable
from functools import partial

import pytest
import torch

from implementations.pytorch.bench.variants import PodiumRunner
from implementations.pytorch.optim.build import build_optimizer, set_rate
from tests.implementations.pytorch.gpu.conftest import Target

pytestmark = pytest.mark.gpu
RELATIVE, ROUNDING = 1e-4, 2e-7  # bounds on the error, relative to how far a weight moved and to the weight


@pytest.mark.parametrize("algorithm", ["lamb", "adamw"])
def test_weights_move_as_on_a_cpu(
    algorithm: str,
    target: Target,
    make_runner: Callable[..., PodiumRunner],
    record_property: Callable[[str, object], None],
) -> None:
    """Gradients of very different magnitudes in the tensors, one of them 0, and changing learning rates."""
    attention, precision = ("auto", "bf16") if target.is_gpu else ("grouped", "fp32")
    make = partial(make_runner, kernels="triton", attention=attention, precision=precision, algorithm=algorithm)
    stepper = make().stepper
    model = stepper.model.module
    reference = copy.deepcopy(model).cpu()
    plain, before = build_optimizer(reference, stepper.config.optimizer), copy.deepcopy(reference)
    parameters = list(model.parameters())
    for step in range(3):
        for number, (own, other) in enumerate(zip(parameters, reference.parameters(), strict=True)):
            random = torch.Generator().manual_seed(100 * step + number)
            gradient = torch.randn(other.shape, generator=random) * (10.0 ** -(number % 7) if number != 5 else 0.0)
            other.grad = gradient
            if own.grad is None:  # no step was taken before
                own.grad = torch.zeros_like(own)
            own.grad.copy_(gradient)  # in place: DDP's buckets have the gradients
        for optimizer, device in ((plain, "cpu"), (stepper.optimizer, target.device)):
            set_rate(optimizer, torch.tensor(1e-3 * (step + 1), device=device))
            optimizer.step()
    worst = (0.0, "")
    named = zip(reference.named_parameters(), parameters, before.parameters(), strict=True)
    for (name, expected), found, start in named:
        # Without a gradient a weight moves by its decay alone, so little that its rounding shows.
        moved, norm = float((expected - start).detach().norm()), float(expected.detach().norm())
        error = float((found.detach().cpu() - expected.detach()).norm())
        worst = max(worst, (error / (RELATIVE * moved + ROUNDING * norm) if norm else error, name))
    record_property("error_over_bound", worst)
    assert 0 <= worst[0] < 1, worst
