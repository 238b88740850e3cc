"""No optimizer reads a value from the device: on tensors without values, reading one raises an error.

The meta device represents a GPU, so that LAMB takes the same code path. PyTorch's fused AdamW does not support that
device; it is tested with fake CPU tensors.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from implementations.pytorch.model.bert import BertForPreTraining
from implementations.pytorch.optim.build import build_optimizer, set_rate
from implementations.pytorch.optim.schedule import rate_table
from implementations.pytorch.step import LossScaler
from podium.config.schema import LossScaling, OptimizerSettings

SETTINGS = OptimizerSettings(
    algorithm="lamb",
    learning_rate=0.003,
    beta1=0.8,
    beta2=0.95,
    epsilon=1e-5,
    weight_decay=0.07,
    warmup_steps=2,
    decay_steps=9,
)


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("algorithm", ["lamb", "adamw"])
def test_no_value_is_read_on_the_host(
    algorithm: str, scaled: bool, make_model: Callable[..., BertForPreTraining]
) -> None:
    optimizer = build_optimizer(make_model(), SETTINGS.model_copy(update={"algorithm": algorithm}))
    device = torch.device("meta" if algorithm == "lamb" else "cpu")
    valueless: AbstractContextManager[object] = nullcontext() if algorithm == "lamb" else FakeTensorMode()
    with valueless:
        for group in optimizer.param_groups:
            group["params"] = [torch.nn.Parameter(torch.empty(p.shape, device=device)) for p in group["params"]]
            group["lr"] = torch.empty((), device=device)
        scaler = LossScaler(LossScaling(), device, enabled=scaled)
        rates = rate_table(SETTINGS, 9, device)
        number = torch.zeros((), dtype=torch.int64, device=device)
        for _ in range(2):  # the first of which makes the state
            for parameter in (p for group in optimizer.param_groups for p in group["params"]):
                parameter.grad = torch.empty_like(parameter)
            set_rate(optimizer, rates[number.clamp(max=8).view(1)].view(()))
            scaler.scale(torch.empty((), device=device))
            scaler.unscale_(optimizer)
            taken = scaler.take_step(optimizer)
            number += taken.to(torch.int64)
        with pytest.raises((RuntimeError, NotImplementedError)):
            float(taken if scaled else rates[0])
    assert (taken.shape, taken.device.type) == ((), device.type)
