"""The fused optimizers on tensors without data; in Triton's interpreter: kernels/gpu/test_gpu.py."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim import Optimizer

from implementations.pytorch.distributed.process_group import Processes
from implementations.pytorch.model.bert import BertForPreTraining
from implementations.pytorch.optim.build import build_optimizer, describe_optimizer, set_rate
from implementations.pytorch.optim.fused import FusedAdamW, FusedLamb, FusedOptimizer, FusedShardedLamb
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
ADAMW = SETTINGS.model_copy(update={"algorithm": "adamw"})
Models = Callable[..., BertForPreTraining]
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")


def test_fused_optimizers_are_built_on_request_only(
    make_model: Models, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model()
    assert type(build_optimizer(model, SETTINGS, fused=True)) is FusedLamb
    assert type(build_optimizer(model, ADAMW, fused=True)) is FusedAdamW
    assert not isinstance(build_optimizer(model, SETTINGS), FusedOptimizer)
    assert not isinstance(build_optimizer(model, ADAMW), FusedOptimizer)
    assert describe_optimizer(build_optimizer(model, ADAMW, fused=True), ADAMW).algorithm == "adamw"
    monkeypatch.setattr(dist, "get_world_size", lambda: 8)
    sharded = build_optimizer(model, SETTINGS.model_copy(update={"sharded_from": 8}), fused=True)
    assert type(sharded) is FusedShardedLamb


def remove_data(optimizer: Optimizer) -> int:
    """Replace parameters, gradients and rates by tensors without data. Returns the number of elements."""
    rate = torch.empty(())
    for group in optimizer.param_groups:
        group["lr"] = rate
        group["params"] = [torch.nn.Parameter(torch.empty(p.shape)) for p in group["params"]]
        for parameter in group["params"]:
            parameter.grad = torch.empty_like(parameter)
    return sum(p.numel() for group in optimizer.param_groups for p in group["params"])


@needs_triton
@pytest.mark.parametrize(
    ("settings", "scaled", "expected"),
    [
        (SETTINGS, False, {"_measure": 4, "_lamb_moments": 24, "_lamb_parameters": 20}),
        (SETTINGS, True, {"_measure": 4, "_lamb_moments": 24, "_lamb_parameters": 20}),
        (ADAMW, True, {"_measure": 4, "_adamw": 32}),
    ],
)
def test_steps_read_no_value_and_move_each_tensor_as_often_as_stated(
    settings: OptimizerSettings,
    scaled: bool,
    expected: dict[str, int],
    make_model: Models,
) -> None:
    """Bytes for each parameter by launch; tensors without data raise an error where the host reads a value."""
    from implementations.pytorch.kernels.gpu.common import record_launches

    optimizer = build_optimizer(make_model(), settings, fused=True)
    moved: dict[str, float] = {}

    def record(name: str, count: int, flops: float) -> None:
        key = "_" + name.partition(".")[2]
        assert name.startswith("optimizer.") and key not in moved
        moved[key] = count

    with FakeTensorMode(), record_launches(record):
        elements = remove_data(optimizer)
        scaler = LossScaler(LossScaling(), torch.device("cpu"), enabled=scaled)
        for _ in range(2):
            moved.clear()
            set_rate(optimizer, torch.empty(()))
            scaler.scale(torch.empty(()))
            scaler.unscale_(optimizer)
            assert isinstance(optimizer, FusedOptimizer)
            norm = optimizer.clip_gradients(1.0)
            taken = scaler.take_step(optimizer)
        assert (norm.shape, norm.dtype) == (taken.shape, taken.dtype) == ((), torch.float32)
    assert moved == {name: elements * count for name, count in expected.items()}


@needs_triton
def test_the_table_is_not_built_during_a_capture(make_model: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay would copy the table of host memory that has been freed; eager steps come before."""
    from implementations.pytorch.kernels.gpu.common import record_launches

    optimizer: Any = build_optimizer(make_model(), SETTINGS, fused=True)
    with FakeTensorMode(), record_launches(lambda *launch: None):
        remove_data(optimizer)
        optimizer.step()
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        optimizer.step()
        optimizer.param_groups[0]["eps"] = 0.5
        with pytest.raises(AssertionError, match="steps are taken before a capture"):
            optimizer.step()
