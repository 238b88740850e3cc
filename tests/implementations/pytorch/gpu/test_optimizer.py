"""The optimizer that a GPU gets compared with the one of a CPU: weights and state over several steps."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

from implementations.pytorch.model.bert import BertForPreTraining
from implementations.pytorch.optim.build import build_optimizer, set_rate
from podium.config.load import load_system
from tests.implementations.pytorch.gpu.conftest import Target

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("algorithm", ["lamb", "adamw"])
def test_weights_move_as_on_a_cpu(
    algorithm: str, target: Target, record_property: Callable[[str, object], None]
) -> None:
    """Gradients of very different magnitudes in the tensors, one of them 0, and changing learning rates."""
    settings = load_system("h200_1x").optimizer.model_copy(update={"algorithm": algorithm})
    torch.manual_seed(0)
    vocabulary = min(target.vocabulary, 4_099)  # rows of an odd number; the CPU is slow
    reference: nn.Module = BertForPreTraining(target.size, vocabulary, dropout_probability=0.0)
    before = copy.deepcopy(reference)
    model = copy.deepcopy(reference).to(target.device)
    optimizers = {reference: build_optimizer(reference, settings), model: build_optimizer(model, settings)}
    for step in range(3):
        gradients = [
            torch.randn(p.shape, generator=torch.Generator().manual_seed(100 * step + number)) * 10.0 ** -(number % 7)
            for number, p in enumerate(reference.parameters())
        ]
        gradients[5].zero_()
        for own, optimizer in optimizers.items():
            for parameter, gradient in zip(own.parameters(), gradients, strict=True):
                parameter.grad = gradient.to(parameter.device, copy=True)
            set_rate(optimizer, torch.tensor(1e-3 * (step + 1), device=next(own.parameters()).device))
            optimizer.step()
    worst = (0.0, "")
    names = zip(reference.named_parameters(), model.parameters(), before.parameters(), strict=True)
    for (name, expected), found, start in names:
        moved = float((expected - start).norm().detach())
        error = float((found.detach().cpu() - expected.detach()).norm()) / moved
        worst = max(worst, (error, name))
    record_property("error", worst)
    assert worst[0] < 1e-4, worst
