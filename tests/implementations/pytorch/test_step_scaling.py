"""Loss scaling: training is unchanged, and a step that overflows has no effect."""

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.bert.store import SampleStore
from implementations.pytorch.model.bert import BertForPreTraining
from implementations.pytorch.phase_clock import PhaseClock
from implementations.pytorch.step import LossScaler, Stepper
from podium.config.schema import Clipping, LossScaling, RunConfig
from podium.planning.batch_plan import TrainingOrder
from tests.implementations.pytorch.data.plain_reader import read_step

ALGORITHMS = pytest.mark.parametrize("algorithm", ["lamb", "adamw"])
Start = Callable[..., tuple[Stepper, TrainingOrder]]


@pytest.fixture
def start(
    make_store: Callable[..., SampleStore],
    make_config: Callable[..., RunConfig],
    make_model: Callable[..., BertForPreTraining],
    make_stepper: Callable[..., Stepper],
    make_order: Callable[[SampleStore, RunConfig], TrainingOrder],
) -> Start:
    store = make_store(np.random.default_rng(0).integers(5, 60, 40))

    def begin(algorithm: str, precision: str, **scaling: float) -> tuple[Stepper, TrainingOrder]:
        config = make_config(
            global_batch_size=4,
            clipping=Clipping(max_norm=1.0),
            loss_scaling=LossScaling(**scaling),  # type: ignore[arg-type]
            optimizer={"algorithm": algorithm, "warmup_steps": 0, "learning_rate": 0.01, "decay_steps": 50},
        )
        return make_stepper(config, make_model(), precision), make_order(store, config)

    return begin


def state_of(stepper: Stepper) -> list[Tensor]:
    optimizer = stepper.optimizer
    moments = [value for p in stepper.model.parameters() for value in optimizer.state[p].values()]
    steps = [group["step"] for group in optimizer.param_groups if "step" in group]
    return [t.detach().clone() for t in (*stepper.model.parameters(), *moments, *steps, stepper.steps_taken)]


@ALGORITHMS
def test_a_step_that_overflows_changes_nothing(algorithm: str, start: Start) -> None:
    """At 2^40 every gradient overflows fp16; the scale is halved until no gradient does."""
    stepper, order = start(algorithm, "fp16", initial=2.0**40)
    before = [p.detach().clone() for p in stepper.model.parameters()]
    first = stepper.take(read_step(order, 0, 0), PhaseClock())
    assert float(first.taken) == 0
    assert int(stepper.steps_taken) == 0
    assert all(torch.equal(a, b) for a, b in zip(before, stepper.model.parameters(), strict=True))
    taken: list[float] = []
    while not taken or not taken[-1]:
        was = state_of(stepper)
        result = stepper.take(read_step(order, 0, 0), PhaseClock())
        taken.append(float(result.taken))
        same = all(torch.equal(a, b) for a, b in zip(was, state_of(stepper), strict=True))
        assert same is (taken[-1] == 0)
        assert float(result.rate) == pytest.approx(0.01)  # that of the first step, until one is taken
    assert int(stepper.steps_taken) == 1
    assert 5 < len(taken) < 40
    assert float(stepper.take(read_step(order, 1, 0), PhaseClock()).rate) == pytest.approx(0.01 * 49 / 50)


@ALGORITHMS
def test_a_skipped_step_keeps_the_optimizers_state(algorithm: str, start: Start) -> None:
    stepper, order = start(algorithm, "fp16")
    stepper.take(read_step(order, 0, 0), PhaseClock())
    before = state_of(stepper)
    with torch.no_grad():
        kept = stepper.model.module.pooler.bias.clone()
        stepper.model.module.pooler.bias[0] = float("nan")
    assert float(stepper.take(read_step(order, 1, 0), PhaseClock()).taken) == 0
    with torch.no_grad():
        stepper.model.module.pooler.bias.copy_(kept)
    assert all(torch.equal(a, b) for a, b in zip(before, state_of(stepper), strict=True))


@ALGORITHMS
def test_scaling_does_not_change_training(algorithm: str, start: Start) -> None:
    """Scaling by a power of two is exact in fp32, so only rounding in the optimizer differs."""
    ends = []
    for scaled in (False, True):
        stepper, order = start(algorithm, "fp32")
        stepper.scaler = LossScaler(LossScaling(), torch.device("cpu"), enabled=scaled)
        results = [stepper.take(read_step(order, number, 0), PhaseClock()) for number in range(4)]
        assert [float(r.taken) for r in results] == [1.0] * 4
        ends.append([p.detach().clone() for p in stepper.model.parameters()])
    for plain, scaled_ in zip(*ends, strict=True):
        torch.testing.assert_close(scaled_, plain, rtol=2e-5, atol=1e-5)


def test_fp16_learns_as_fp32_does(start: Start) -> None:
    losses = {}
    for precision in ("fp32", "fp16"):
        stepper, order = start("adamw", precision)
        step = read_step(order, 0, 0)
        losses[precision] = [float(stepper.take(step, PhaseClock()).masked_lm) for _ in range(12)]
    assert losses["fp16"][-1] == pytest.approx(losses["fp32"][-1], rel=0.03)
    assert losses["fp16"][-1] < 0.8 * losses["fp16"][0]


def scaled_step(scaler: LossScaler, gradient: float) -> float:
    """Take the step of one parameter; 1 if it was taken, else 0."""
    parameter = torch.ones(2, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    parameter.grad = scaler.scale(torch.tensor([1.0, gradient]))
    scaler.unscale_(optimizer)
    if scaler.is_enabled():
        assert parameter.grad.tolist() == [1.0, gradient]
    return float(scaler.take_step(optimizer))


def scale_of(scaler: LossScaler) -> float:
    return float(scaler.scale(torch.ones(())))


def test_the_scale_is_halved_at_an_overflow_and_doubled_after_the_growth_interval() -> None:
    scaler = LossScaler(LossScaling(initial=64.0, growth_interval=3), torch.device("cpu"), enabled=True)
    infinite = float("inf")
    scales, taken = [], []
    for gradient in (0.5, 0.5, 0.5, 0.5, infinite, 0.5, 0.5, -infinite, 0.5, 0.5, 0.5, 0.5):
        scales.append(scale_of(scaler))
        taken.append(scaled_step(scaler, gradient))
    assert scales == [64, 64, 64, 128, 128, 64, 64, 64, 32, 32, 32, 64]
    assert taken == [1, 1, 1, 1, 0, 1, 1, 0, 1, 1, 1, 1]


def test_the_scalers_state_is_restored() -> None:
    """The scale and the number of steps until it is doubled; into a used scaler and into a new one."""
    settings = LossScaling(initial=64.0, growth_interval=3)
    scaler = LossScaler(settings, torch.device("cpu"), enabled=True)
    for _ in range(5):
        scaled_step(scaler, 0.5)
    state = copy.deepcopy(scaler.state_dict())
    for used in (False, True):
        other = LossScaler(LossScaling(), torch.device("cpu"), enabled=True)
        if used:
            scaled_step(other, 0.5)
        other.load_state_dict(state)
        assert scale_of(other) == 128
        scaled_step(other, 0.5)
        assert scale_of(other) == 256


def test_a_disabled_scaler_changes_nothing() -> None:
    """A gradient that is not finite is passed on too: the metrics report it."""
    scaler = LossScaler(LossScaling(), torch.device("cpu"), enabled=False)
    loss = torch.ones(())
    assert scaler.scale(loss) is loss
    assert scaled_step(scaler, float("inf")) == 1
    scaler.load_state_dict(scaler.state_dict())


def test_a_step_with_scaled_gradients_is_an_error() -> None:
    scaler = LossScaler(LossScaling(), torch.device("cpu"), enabled=True)
    parameter = torch.ones(2, requires_grad=True)
    parameter.grad = scaler.scale(torch.ones(2))
    with pytest.raises(AssertionError, match="gradients are unscaled before the step"):
        scaler.take_step(torch.optim.SGD([parameter], lr=1.0))
