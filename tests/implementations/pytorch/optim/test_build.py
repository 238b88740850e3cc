"""The optimizer is built as configured, and its hyper-parameters are reported for the log."""

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim import AdamW

from benchmarks.bert.sizes import Size
from implementations.pytorch.model.bert import BertForPreTraining
from implementations.pytorch.optim.build import build_optimizer, describe_optimizer, set_rate
from implementations.pytorch.optim.lamb import Lamb
from podium.config.schema import OptimizerSettings

SETTINGS = OptimizerSettings(
    algorithm="lamb",
    learning_rate=0.003,
    beta1=0.8,
    beta2=0.95,
    epsilon=1e-5,
    weight_decay=0.07,
    warmup_steps=11,
    start_warmup_step=-3,
    decay_steps=123,
    decay_power=0.5,
    end_learning_rate=0.0001,
)
Models = Callable[..., BertForPreTraining]


@pytest.mark.parametrize(("algorithm", "kind"), [("lamb", Lamb), ("adamw", AdamW)])
def test_biases_and_layer_norm_have_no_decay_and_no_trust_ratio(algorithm: str, kind: type, make_model: Models) -> None:
    model = make_model()
    optimizer = build_optimizer(model, SETTINGS.model_copy(update={"algorithm": algorithm}))
    assert type(optimizer) is kind
    group_of = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(list(model.parameters()))
    for name, parameter in model.named_parameters():
        group = group_of[id(parameter)]
        plain = name.endswith("bias") or "norm" in name
        assert group["weight_decay"] == (0.0 if plain else 0.07), name
        assert float(group["lr"]) == pytest.approx(0.003)
        assert (tuple(group["betas"]), group["eps"]) == ((0.8, 0.95), 1e-5)
        if algorithm == "lamb":
            assert group["adapt"] is not plain, name


@pytest.mark.parametrize("algorithm", ["lamb", "adamw"])
def test_every_parameter_is_in_exactly_one_group(algorithm: str, make_model: Models, small: Size) -> None:
    model = make_model()
    matrices, fused, vectors = build_optimizer(model, SETTINGS.model_copy(update={"algorithm": algorithm})).param_groups
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found = [[names[id(parameter)] for parameter in group["params"]] for group in (matrices, fused, vectors)]
    assert sorted(name for group in found for name in group) == sorted(names.values())
    assert len(found[1]) == small.layers
    assert all(name.endswith("qkv.weight") for name in found[1])
    assert not any("qkv" in name for name in found[0])
    assert all(parameter.dim() == 1 for parameter in vectors["params"])
    if algorithm == "lamb":
        assert [group["parts"] for group in (matrices, fused, vectors)] == [1, 3, 1]


def test_query_key_and_value_are_updated_as_three_matrices(make_model: Models) -> None:
    """Each third has a trust ratio, as in the reference, which has three matrices."""
    model = make_model()
    weights = dict(model.named_parameters())
    (weight,) = [value for name, value in weights.items() if name.endswith("qkv.weight")][:1]
    with torch.no_grad():
        for scale, third in zip((0.1, 1.0, 10.0), weight.chunk(3), strict=True):
            third.mul_(scale)
    before = weight.detach().clone()
    weight.grad = torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
    apart = [third.clone().requires_grad_() for third in before.chunk(3)]
    for third, gradient in zip(apart, weight.grad.chunk(3), strict=True):
        third.grad = gradient.clone()
    build_optimizer(model, SETTINGS).step()
    Lamb(apart, lr=0.003, betas=(0.8, 0.95), eps=1e-5, weight_decay=0.07).step()
    assert torch.equal(weight, torch.cat(apart))
    for third, old in zip(weight.detach().chunk(3), before.chunk(3), strict=True):
        assert float((third - old).norm() / old.norm()) == pytest.approx(0.003, rel=1e-3)


@pytest.mark.parametrize("algorithm", ["lamb", "adamw"])
def test_reported_hyperparameters_are_the_configured_ones(algorithm: str, make_model: Models) -> None:
    settings = SETTINGS.model_copy(update={"algorithm": algorithm})
    found = vars(describe_optimizer(build_optimizer(make_model(), settings), settings))
    assert found == settings.model_dump(exclude={"backend", "sharded_from"})


@pytest.mark.parametrize(
    ("key", "field", "value"),
    [("weight_decay", "weight_decay", 0.5), ("eps", "epsilon", 0.25), ("betas", "beta1", (0.125, 0.95))],
)
def test_reported_hyperparameters_are_read_from_the_optimizer(
    key: str, field: str, value: Any, make_model: Models
) -> None:
    optimizer = build_optimizer(make_model(), SETTINGS)
    optimizer.param_groups[0][key] = value
    found = getattr(describe_optimizer(optimizer, SETTINGS), field)
    assert found == (value if isinstance(value, float) else value[0])


def test_reported_learning_rate_is_the_base_rate(make_model: Models) -> None:
    optimizer = build_optimizer(make_model(), SETTINGS)
    set_rate(optimizer, torch.tensor(0.9))
    assert describe_optimizer(optimizer, SETTINGS).learning_rate == 0.003


def test_set_rate_applies_to_all_groups(make_model: Models) -> None:
    model = make_model()
    optimizer = build_optimizer(model, SETTINGS)
    set_rate(optimizer, torch.tensor(0.0))
    before = [parameter.detach().clone() for parameter in model.parameters()]
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def set_gradients(model: torch.nn.Module, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=random)


def test_adamw_matches_its_equations(make_model: Models) -> None:
    """Equations of Loshchilov and Hutter, arXiv 1711.05101, with another rate in every step."""
    model = make_model()
    optimizer = build_optimizer(model, SETTINGS.model_copy(update={"algorithm": "adamw"}))
    expected = {name: parameter.detach().double().numpy().copy() for name, parameter in model.named_parameters()}
    moments = {name: (np.zeros_like(value), np.zeros_like(value)) for name, value in expected.items()}
    for step, rate in enumerate((0.01, 0.05, 0.002), start=1):
        set_gradients(model, step)
        set_rate(optimizer, torch.tensor(rate))
        optimizer.step()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            g, p, (m, v) = parameter.grad.double().numpy(), expected[name], moments[name]
            p *= 1 - rate * (0.0 if parameter.dim() == 1 else 0.07)
            m[...] = 0.8 * m + 0.2 * g
            v[...] = 0.95 * v + 0.05 * g * g
            p -= rate * (m / (1 - 0.8**step)) / (np.sqrt(v / (1 - 0.95**step)) + 1e-5)
    for name, parameter in model.named_parameters():
        np.testing.assert_allclose(parameter.detach().numpy(), expected[name], rtol=2e-5, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("algorithm", ["lamb", "adamw"])
def test_saved_state_is_resumed_bit_for_bit(algorithm: str, make_model: Models) -> None:
    """Saved to a file and loaded into an optimizer that has taken other steps."""
    settings = SETTINGS.model_copy(update={"algorithm": algorithm})
    model, other = make_model(), make_model(seed=1)
    optimizer, second = build_optimizer(model, settings), build_optimizer(other, settings)
    for seed in range(3):
        set_gradients(model, seed)
        set_rate(optimizer, torch.tensor(0.02 / (seed + 1)))
        optimizer.step()
    set_gradients(other, 9)
    second.step()
    file = io.BytesIO()
    torch.save((model.state_dict(), optimizer.state_dict()), file)
    file.seek(0)
    weights, state = torch.load(file)
    other.load_state_dict(weights)
    second.load_state_dict(state)
    for trained, its_optimizer in ((model, optimizer), (other, second)):
        set_gradients(trained, 10)
        its_optimizer.step()
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)
        assert optimizer.state[one].keys() == second.state[two].keys()
        assert all(torch.equal(optimizer.state[one][key], second.state[two][key]) for key in optimizer.state[one])


@pytest.mark.parametrize("algorithm", ["lamb", "adamw"])
def test_all_groups_share_one_rate(algorithm: str, make_model: Models) -> None:
    """One tensor, since a CUDA graph captures its address."""
    model = make_model()
    optimizer = build_optimizer(model, SETTINGS.model_copy(update={"algorithm": algorithm}))
    rate = optimizer.param_groups[0]["lr"]
    assert (rate.shape, rate.dtype, rate.device) == ((), torch.float32, next(model.parameters()).device)
    assert all(group["lr"] is rate for group in optimizer.param_groups)
