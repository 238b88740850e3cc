"""Optimizer and schedule as configured, and what the log is told of them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import AdamW

from implementations.pytorch.model.bert import BertForPreTraining
from implementations.pytorch.optimization.build import build_optimizer, build_schedule, set_rate, used
from implementations.pytorch.optimization.lamb import Lamb
from podium.config import OptimizerSettings

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
def test_biases_and_layer_norm_take_neither_decay_nor_ratio(algorithm: str, kind: type, make_model: Models) -> None:
    model = make_model()
    optimizer = build_optimizer(model, SETTINGS.model_copy(update={"algorithm": algorithm}))
    assert type(optimizer) is kind
    group_of = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(list(model.parameters()))
    for name, parameter in model.named_parameters():
        group = group_of[id(parameter)]
        plain = name.endswith("bias") or "norm" in name
        assert group["weight_decay"] == (0.0 if plain else 0.07), name
        assert (group["lr"], tuple(group["betas"]), group["eps"]) == (0.003, (0.8, 0.95), 1e-5)
        if algorithm == "lamb":
            assert group["adapt"] is not plain, name


@pytest.mark.parametrize("algorithm", ["lamb", "adamw"])
def test_used_is_what_was_set(algorithm: str, make_model: Models) -> None:
    settings = SETTINGS.model_copy(update={"algorithm": algorithm})
    found = vars(used(build_optimizer(make_model(), settings), build_schedule(settings)))
    assert found == settings.model_dump()


@pytest.mark.parametrize(
    ("key", "field", "value"),
    [("weight_decay", "weight_decay", 0.5), ("eps", "epsilon", 0.25), ("betas", "beta1", (0.125, 0.95))],
)
def test_used_is_read_from_the_optimizer_and_not_from_the_settings(
    key: str, field: str, value: Any, make_model: Models
) -> None:
    optimizer = build_optimizer(make_model(), SETTINGS)
    optimizer.param_groups[0][key] = value
    found = getattr(used(optimizer, build_schedule(SETTINGS)), field)
    assert found == (value if isinstance(value, float) else value[0])


def test_used_is_not_the_rate_of_the_moment(make_model: Models) -> None:
    optimizer = build_optimizer(make_model(), SETTINGS)
    set_rate(optimizer, 0.9)
    assert used(optimizer, build_schedule(SETTINGS)).learning_rate == 0.003


def test_set_rate_is_for_all_groups(make_model: Models) -> None:
    model = make_model()
    optimizer = build_optimizer(model, SETTINGS)
    set_rate(optimizer, 0.0)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
