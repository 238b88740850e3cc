"""LAMB by apex, with a fake module in place of NVIDIA's apex: the calls that it receives, and the results."""

import sys
from collections.abc import Callable
from copy import deepcopy
from types import ModuleType
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from implementations.pytorch.model.bert import BertForPreTraining
from implementations.pytorch.optim.apex_lamb import ApexLamb
from implementations.pytorch.optim.build import build_optimizer, describe_optimizer, set_rate
from implementations.pytorch.step import LossScaler
from podium.config.schema import LossScaling, OptimizerSettings
from podium.core.errors import UsageError

SETTINGS = OptimizerSettings(
    algorithm="lamb",
    backend="apex",
    learning_rate=0.003,
    beta1=0.8,
    beta2=0.95,
    epsilon=1e-5,
    weight_decay=0.07,
    warmup_steps=0,
    decay_steps=9,
)
PODIUM = SETTINGS.model_copy(update={"backend": "podium"})
Models = Callable[..., BertForPreTraining]


class FakeFusedLamb(torch.optim.Optimizer):
    """What apex documents, in plain PyTorch: trust ratios of whole tensors with weight decay, learning rate and step as
    tensors, no change after an overflow, gradients divided by the scale."""

    instances: ClassVar[list["FakeFusedLamb"]] = []

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        step: int = 0,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        amsgrad: bool = False,
        adam_w_mode: bool = True,
        grad_averaging: bool = True,
        max_grad_norm: float = 1.0,
        use_nvlamb: bool = False,
        reduced_precision_dtype: torch.dtype | None = None,
    ) -> None:
        assert isinstance(lr, float)
        self.arguments = dict(locals())
        defaults = {"lr": torch.tensor(lr), "step": torch.tensor([step], dtype=torch.int32), "betas": betas}
        super().__init__(params, {**defaults, "eps": eps, "weight_decay": weight_decay})
        self.clips = max_grad_norm
        self.scalers: list[Any] = []
        FakeFusedLamb.instances.append(self)

    @torch.no_grad()
    def step(self, closure: Any = None, grad_scaler: Any = None) -> None:  # type: ignore[override]
        self.scalers.append(grad_scaler)
        device = self.param_groups[0]["params"][0].device
        found = grad_scaler._check_inf_per_device(self)[device] if grad_scaler else torch.zeros(1)
        scale = grad_scaler._get_scale_async() if grad_scaler else torch.ones(1)
        gradients = [p.grad / scale for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.cat([gradient.flatten() for gradient in gradients]).norm()
        shrink = norm / self.clips if norm > self.clips else 1.0
        for group in self.param_groups:
            assert (group["lr"].dtype, group["lr"].dim()) == (torch.float32, 0)
            assert (group["step"].dtype, group["step"].shape) == (torch.int32, (1,))
            group["step"] += (found != 1).to(torch.int32)
            if found:
                continue
            (beta1, beta2), steps = group["betas"], group["step"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                gradient, state = p.grad / scale / shrink, self.state[p]
                m = state["exp_avg"].mul_(beta1).add_(gradient, alpha=1 - beta1)
                v = state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
                update = (m / (1 - beta1**steps)) / ((v / (1 - beta2**steps)).sqrt() + group["eps"])
                update += group["weight_decay"] * p
                ratio = p.norm() / update.norm() if group["weight_decay"] and p.norm() > 0 else 1.0
                p -= group["lr"] * ratio * update


@pytest.fixture
def apex(monkeypatch: pytest.MonkeyPatch) -> list[FakeFusedLamb]:
    """The instances of the fake optimizer, in order of construction."""
    package, optimizers = ModuleType("apex"), ModuleType("apex.optimizers")
    optimizers.FusedMixedPrecisionLamb = FakeFusedLamb  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "apex", package)
    monkeypatch.setitem(sys.modules, "apex.optimizers", optimizers)
    monkeypatch.setattr(FakeFusedLamb, "instances", [])
    return FakeFusedLamb.instances


def set_gradients(model: nn.Module, seed: int, scale: float = 1.0) -> None:
    random = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = scale * torch.randn(parameter.shape, generator=random)


def assert_same_weights(model: nn.Module, other: nn.Module) -> None:
    names = dict(other.named_parameters())
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter, names[name], rtol=2e-5, atol=2e-6, msg=name)


def test_weights_equal_podiums_lamb(apex: list[FakeFusedLamb], make_model: Models) -> None:
    """With queries, keys and values as three matrices, and another learning rate in every step."""
    model, other = make_model(), make_model()
    for trained in (model, other):
        with torch.no_grad():
            for name, weight in trained.named_parameters():
                if name.endswith("qkv.weight"):
                    for size, third in zip((0.1, 1.0, 10.0), weight.chunk(3), strict=True):
                        third.mul_(size)
    start = deepcopy(other)
    by_apex, by_podium = build_optimizer(model, SETTINGS), build_optimizer(other, PODIUM)
    assert isinstance(by_apex, ApexLamb)
    for step, rate in enumerate((0.01, 0.05, 0.002)):
        for trained, optimizer in ((model, by_apex), (other, by_podium)):
            set_gradients(trained, step)
            set_rate(optimizer, torch.tensor(rate))
            optimizer.step()
        assert_same_weights(model, other)
    assert not torch.equal(next(start.parameters()), next(other.parameters()))
    assert describe_optimizer(by_apex, SETTINGS) == describe_optimizer(by_podium, PODIUM)


def test_apex_gets_the_settings_and_does_not_clip(apex: list[FakeFusedLamb], make_model: Models) -> None:
    build_optimizer(make_model(), SETTINGS)
    (fused,) = apex
    assert fused.arguments["max_grad_norm"] == float("inf")
    assert (fused.arguments["betas"], fused.arguments["eps"]) == ((0.8, 0.95), 1e-5)
    assert (fused.arguments["bias_correction"], fused.arguments["adam_w_mode"]) == (True, True)
    assert fused.arguments["use_nvlamb"] is False  # vectors have no ratio


def test_overflow_changes_nothing_without_host_synchronisation(apex: list[FakeFusedLamb], make_model: Models) -> None:
    """The scaler unscales the gradients, so apex must not divide by the scale again."""
    model, other = make_model(), make_model()
    optimizer, plain = build_optimizer(model, SETTINGS), build_optimizer(other, PODIUM)
    scaler = LossScaler(LossScaling(initial=8.0), torch.device("cpu"), enabled=True)
    taken = []
    for step, size in enumerate((1.0, float("inf"), 1.0)):
        factor = float(scaler.scale(torch.ones(())))
        set_gradients(model, step, size * factor)
        before = [p.detach().clone() for p in model.parameters()]
        scaler.unscale_(optimizer)
        taken.append(float(scaler.take_step(optimizer)))
        if size == 1.0:
            set_gradients(other, step)
            plain.step()
        else:
            assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert taken == [1.0, 0.0, 1.0]
    assert_same_weights(model, other)
    assert [float(group["step"]) for group in optimizer.param_groups] == [2.0, 2.0, 2.0]
    assert all(float(found._get_scale_async()) == 1.0 for found in apex[0].scalers)


def test_state_is_interchangeable_with_lamb(apex: list[FakeFusedLamb], make_model: Models) -> None:
    model, other = make_model(), make_model()
    optimizers = [(model, build_optimizer(model, SETTINGS)), (other, build_optimizer(other, PODIUM))]
    for step in range(2):
        for trained, optimizer in optimizers:
            set_gradients(trained, step)
            optimizer.step()
    states = [deepcopy(optimizer.state_dict()) for _, optimizer in optimizers]
    assert states[0]["state"].keys() == states[1]["state"].keys()
    for (trained, optimizer), state in zip(optimizers, reversed(states), strict=True):
        optimizer.load_state_dict(state)
        set_gradients(trained, 5)
        optimizer.step()
    assert_same_weights(model, other)
    assert [float(group["step"]) for group in optimizers[0][1].param_groups] == [3.0, 3.0, 3.0]


def test_parameters_without_gradients_are_unchanged(apex: list[FakeFusedLamb]) -> None:
    moved, kept = (nn.Parameter(torch.ones(6, 2)) for _ in range(2))
    optimizer = ApexLamb(
        [{"params": [moved, kept], "parts": 3, "weight_decay": 0.1}], torch.tensor(0.1), (0.9, 0.99), 1e-6
    )
    moved.grad = torch.ones(6, 2)
    optimizer.step()
    assert torch.equal(kept, torch.ones(6, 2))
    assert not torch.equal(moved, torch.ones(6, 2))
    assert not optimizer.state[kept]


@pytest.mark.parametrize(("decay", "adapt"), [(0.0, True), (0.1, False)])
def test_trust_ratios_unsupported_by_apex_are_an_error(apex: list[FakeFusedLamb], decay: float, adapt: bool) -> None:
    group = {"params": [nn.Parameter(torch.ones(2))], "weight_decay": decay, "adapt": adapt}
    with pytest.raises(ValueError, match="apex takes trust ratios of tensors with weight decay, and of no others"):
        ApexLamb([group], torch.tensor(0.1), (0.9, 0.99), 1e-6)


def broken(*_: Any, **__: Any) -> Any:
    raise RuntimeError("it requires cuda extensions")


@pytest.mark.parametrize(
    ("contents", "sentence"),
    [
        (None, "optimizer.backend: found apex, but NVIDIA's apex is not installed here .*; allowed is podium"),
        ({}, "optimizer.backend: found apex, but NVIDIA's apex is not installed here .*; the apex of PyPI is another"),
        (
            {"FusedMixedPrecisionLamb": broken},
            "found apex, but the installed apex cannot be used \\(it requires cuda extensions\\); allowed is podium",
        ),
    ],
)
def test_missing_or_incomplete_apex_is_a_usage_error(
    contents: dict[str, Any] | None, sentence: str, monkeypatch: pytest.MonkeyPatch, make_model: Models
) -> None:
    optimizers = None
    if contents is not None:
        optimizers = ModuleType("apex.optimizers")
        vars(optimizers).update(contents)
    monkeypatch.setitem(sys.modules, "apex", ModuleType("apex"))
    monkeypatch.setitem(sys.modules, "apex.optimizers", optimizers)
    with pytest.raises(UsageError, match=sentence):
        build_optimizer(make_model(), SETTINGS)


def test_parts_share_memory_with_the_weights(apex: list[FakeFusedLamb], make_model: Models) -> None:
    """For the parameter, its gradient and its moving averages: nothing is copied."""
    model = make_model()
    optimizer = build_optimizer(model, SETTINGS)
    set_gradients(model, 0)
    optimizer.step()
    owned = {name: p for name, p in model.named_parameters() if name.endswith("qkv.weight")}
    for weight in owned.values():
        state = optimizer.state[weight]
        wholes: list[Tensor | None] = [weight, weight.grad, state["m"], state["v"]]
        spans = [(t.data_ptr(), t.data_ptr() + t.numel() * 4) for t in wholes if t is not None]
        pieces = [p for group in apex[0].param_groups for p in group["params"]]
        inside = [p for p in pieces if spans[0][0] <= p.data_ptr() < spans[0][1]]
        assert len(inside) == 3
        for piece in inside:
            its = apex[0].state[piece]
            for tensor, (begin, end) in zip((piece, piece.grad, its["exp_avg"], its["exp_avg_sq"]), spans, strict=True):
                assert begin <= tensor.data_ptr() < end
