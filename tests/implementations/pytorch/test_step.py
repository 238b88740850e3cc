"""Gradients, clipping and learning rate of a step, compared with plain autograd on the whole global batch."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.bert.store import SampleStore
from implementations.pytorch.data.batch import collate
from implementations.pytorch.distributed.gradient_sync import wrap_ddp
from implementations.pytorch.distributed.process_group import Processes
from implementations.pytorch.metrics import Metrics
from implementations.pytorch.model.bert import BertForPreTraining
from implementations.pytorch.model.loss import loss_sums
from implementations.pytorch.optim.build import build_optimizer
from implementations.pytorch.phase_clock import PHASES, PhaseClock
from implementations.pytorch.step import NotFinite, Stepper
from podium.config.schema import Clipping, LossScaling, RunConfig
from podium.planning.batch_plan import TrainingOrder
from tests.implementations.pytorch.data.plain_reader import read_step

Models = Callable[..., BertForPreTraining]
Configs = Callable[..., RunConfig]
Steppers = Callable[[RunConfig, BertForPreTraining], Stepper]
Orders = Callable[[SampleStore, RunConfig], TrainingOrder]
Error = Callable[[Tensor, Tensor], float]


@pytest.fixture
def store(make_store: Callable[..., SampleStore]) -> SampleStore:
    return make_store(np.random.default_rng(0).integers(5, 60, 40))


def gradients_of(model: torch.nn.Module) -> list[Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def total_norm(gradients: list[Tensor]) -> float:
    return float(sum(gradient.double().square().sum() for gradient in gradients)) ** 0.5


@pytest.mark.parametrize("balancing", ["indexed", "padded"])
@pytest.mark.parametrize("accumulation", [1, 4])
def test_the_gradient_is_that_of_the_global_batch(
    balancing: str,
    accumulation: int,
    store: SampleStore,
    make_config: Configs,
    make_model: Models,
    make_stepper: Steppers,
    make_order: Orders,
    relative_error: Error,
) -> None:
    config = make_config(
        balancing=balancing, global_batch_size=8, gradient_accumulation_steps=accumulation, clipping=None
    )
    stepper, order = make_stepper(config, make_model()), make_order(store, config)
    for number in range(2):  # the second step finds the gradients of the first
        model = make_model()
        model.load_state_dict(stepper.model.module.state_dict())
        step = read_step(order, number, 0)
        global_batch = collate([store.read(int(i)) for i in step.global_batch.indices])
        sums = loss_sums(model(global_batch), global_batch)
        expected = torch.autograd.grad(sums.mean(global_batch.masked, 8), [*model.parameters()])
        result = stepper.take(step, PhaseClock())
        assert float(result.masked_lm) == pytest.approx(float(sums.masked_lm.detach()), rel=1e-5)
        assert float(result.next_sentence) == pytest.approx(float(sums.next_sentence.detach()), rel=1e-5)
        assert result.gradient_norm.isnan()  # clipping is off
        for found, gradient in zip(gradients_of(stepper.model), expected, strict=True):
            assert relative_error(found, gradient) < 1e-5
    assert int(stepper.steps_taken) == 2


def test_per_rank_loss_is_the_mean_of_means(
    store: SampleStore,
    make_config: Configs,
    make_model: Models,
    make_stepper: Steppers,
    make_order: Orders,
    relative_error: Error,
) -> None:
    config = make_config(
        balancing="random", loss="per_rank", global_batch_size=8, gradient_accumulation_steps=4, clipping=None
    )
    stepper = make_stepper(config, make_model())
    step = read_step(make_order(store, config), 0, 0)
    assert len({batch.masked for batch in step.micro_batches}) > 1
    model = make_model()
    means = [loss_sums(model(batch), batch).mean(batch.masked, 2) for batch in step.micro_batches]
    expected = torch.autograd.grad(torch.stack(means).mean(), [*model.parameters()])
    stepper.take(step, PhaseClock())
    for found, gradient in zip(gradients_of(stepper.model), expected, strict=True):
        assert relative_error(found, gradient) < 1e-5


@pytest.mark.parametrize("accumulation", [1, 2])
def test_the_global_norm_is_clipped_once_and_reported_unclipped(
    accumulation: int,
    store: SampleStore,
    make_config: Configs,
    make_model: Models,
    make_stepper: Steppers,
    make_order: Orders,
    relative_error: Error,
) -> None:
    settings = {"global_batch_size": 8, "gradient_accumulation_steps": accumulation}
    free, tight, loose = (
        make_config(**settings, clipping=clipping)
        for clipping in (None, Clipping(max_norm=0.5), Clipping(max_norm=1e6))
    )
    step = read_step(make_order(store, free), 0, 0)
    steppers = [make_stepper(config, make_model()) for config in (free, tight, loose)]
    results = [stepper.take(step, PhaseClock()) for stepper in steppers]
    unclipped, clipped, kept = (gradients_of(stepper.model) for stepper in steppers)
    norm = total_norm(unclipped)
    assert norm > 0.6
    for result in results[1:]:
        assert float(result.gradient_norm) == pytest.approx(norm, rel=1e-5)
    assert total_norm(clipped) == pytest.approx(0.5, rel=1e-4)
    for a, b, c in zip(unclipped, clipped, kept, strict=True):
        assert relative_error(b * norm / 0.5, a) < 1e-4
        assert relative_error(c, a) < 1e-6


@pytest.mark.parametrize("when", ["before", "bucket"])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_local_clipping_matches_global_clipping_on_one_rank(
    when: str,
    precision: str,
    store: SampleStore,
    make_config: Configs,
    make_model: Models,
    make_stepper: Steppers,
    make_order: Orders,
    relative_error: Error,
) -> None:
    """With one and several buckets, and with loss scaling: on one rank the local gradient is the averaged one."""
    ends = []
    for clipping in (Clipping(max_norm=0.5), Clipping(max_norm=0.5, when=when)):
        config = make_config(
            global_batch_size=8,
            clipping=clipping,
            gradient_bucket_mib=0.01,
            loss_scaling=LossScaling(initial=64.0),
            optimizer={"learning_rate": 1e-30},
        )
        stepper, order = make_stepper(config, make_model(), precision), make_order(store, config)
        for number in range(3):
            result = stepper.take(read_step(order, number, 0), PhaseClock())
            norm = total_norm(gradients_of(stepper.model))
            ends.append((number, float(result.gradient_norm), norm, stepper.sync.buckets))
    for (number, global_norm, norm, _), (_, local_norm, own, buckets) in zip(ends[:3], ends[3:], strict=True):
        assert local_norm == pytest.approx(global_norm, rel=1e-3)
        assert global_norm > 0.6
        assert norm == pytest.approx(0.5, rel=1e-4)
        if when == "before" or number == 0:
            assert own == pytest.approx(0.5, rel=1e-3)
        else:
            assert buckets > 2
            assert 0.5 / buckets**0.5 < own <= 0.5 * (1 + 1e-5)


def test_clipping_of_stepper_and_synchronisation_must_agree(
    make_config: Configs, make_model: Models, processes: Processes
) -> None:
    """The configuration leaves clipping to the hooks, and these hooks do not clip."""
    config = make_config(clipping=Clipping(max_norm=1.0, when="bucket"))
    ddp, sync = wrap_ddp(make_model(), processes.device)
    optimizer = build_optimizer(ddp, config.optimizer)
    with pytest.raises(AssertionError):
        Stepper(config, processes, ddp, sync, optimizer, torch.ones(3), "fp32")


def test_fp16_gradients_on_the_wire_use_loss_scaling(
    store: SampleStore, make_config: Configs, make_model: Models, make_stepper: Steppers, make_order: Orders
) -> None:
    """Gradients that overflow on the wire only: steps are skipped, and the scale is halved, until none do."""
    config = make_config(
        global_batch_size=8, gradient_wire="fp16", loss_scaling=LossScaling(initial=2.0**24), clipping=None
    )
    stepper, order = make_stepper(config, make_model()), make_order(store, config)
    taken = []
    for number in range(12):
        before = [p.detach().clone() for p in stepper.model.parameters()]
        result = stepper.take(read_step(order, number % 4, 0), PhaseClock())
        taken.append(bool(result.taken))
        moved = any(not torch.equal(a, b) for a, b in zip(before, stepper.model.parameters(), strict=True))
        assert moved is (taken[-1] and float(result.rate) > 0)
    assert not taken[0]
    assert taken[-1]
    assert int(stepper.steps_taken) == sum(taken)
    factor = stepper.scaler.factor
    assert factor is not None
    assert float(factor) == 2.0 ** (24 - taken.count(False))
    assert make_stepper(config.model_copy(update={"gradient_wire": "bf16"}), make_model()).scaler.factor is None


def test_gradients_are_sent_once_a_step(
    store: SampleStore,
    make_config: Configs,
    make_model: Models,
    make_stepper: Steppers,
    make_order: Orders,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the last micro-batch only; the small model is one bucket."""
    config = make_config(global_batch_size=8, gradient_accumulation_steps=4)
    stepper, sent = make_stepper(config, make_model()), []
    hook = stepper.sync.hook
    monkeypatch.setattr(stepper.sync, "hook", lambda sync, bucket: sent.append(True) or hook(sync, bucket))
    for number in range(2):
        stepper.take(read_step(make_order(store, config), number, 0), PhaseClock())
        assert len(sent) == number + 1


def test_each_step_uses_its_scheduled_learning_rate(
    store: SampleStore, make_config: Configs, make_model: Models, make_stepper: Steppers, make_order: Orders
) -> None:
    config = make_config(global_batch_size=4, optimizer={"warmup_steps": 2, "decay_steps": 4, "learning_rate": 0.1})
    stepper, order = make_stepper(config, make_model()), make_order(store, config)
    rates = []
    for number in range(5):
        before = [p.detach().clone() for p in stepper.model.parameters()]
        stepper.take(read_step(order, number, 0), PhaseClock())
        rates.append({float(group["lr"]) for group in stepper.optimizer.param_groups})
        moved = any(not torch.equal(a, b) for a, b in zip(before, stepper.model.parameters(), strict=True))
        assert moved is (number not in (0, 4))  # a learning rate of zero changes no weights
    assert [sorted(rate) for rate in rates] == [[pytest.approx(r)] for r in (0.0, 0.05, 0.05, 0.025, 0.0)]


def test_training_on_one_batch_reduces_its_loss(
    store: SampleStore, make_config: Configs, make_model: Models, make_stepper: Steppers, make_order: Orders
) -> None:
    config = make_config(global_batch_size=4, optimizer={"warmup_steps": 0, "learning_rate": 0.01})
    stepper = make_stepper(config, make_model())
    step = read_step(make_order(store, config), 0, 0)
    losses = [float(stepper.take(step, PhaseClock()).masked_lm) for _ in range(30)]
    assert losses[-1] < 0.5 * losses[0]


def test_a_step_times_its_phases(
    store: SampleStore, make_config: Configs, make_model: Models, make_stepper: Steppers, make_order: Orders
) -> None:
    config = make_config(global_batch_size=4, gradient_accumulation_steps=2)
    stepper, clock = make_stepper(config, make_model()), PhaseClock()
    stepper.take(read_step(make_order(store, config), 0, 0), clock)
    assert set(clock.seconds) == set(PHASES)
    assert all(seconds >= 0 for seconds in clock.seconds.values())
    assert min(clock.seconds[phase] for phase in ("forward", "backward", "optimizer")) > 0
    assert clock.seconds["evaluation"] == clock.seconds["data_wait"] == 0


@pytest.mark.parametrize("when", ["after", "before", "bucket"])
@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_the_error_of_a_gradient_that_is_not_finite_names_the_step(
    when: str,
    bad: float,
    store: SampleStore,
    make_config: Configs,
    make_model: Models,
    make_stepper: Steppers,
    make_order: Orders,
    processes: Processes,
    tmp_path: Path,
) -> None:
    """The loss of the step is finite, and only an evaluation may follow, not another step."""
    config = make_config(global_batch_size=8, clipping=Clipping(max_norm=0.5, when=when))
    stepper, order = make_stepper(config, make_model()), make_order(store, config)
    first, second = (read_step(order, number, 0) for number in range(2))
    assert float(stepper.take(first, PhaseClock()).finite) == 1
    parameter = next(stepper.model.parameters())

    def make_not_finite(gradient: torch.Tensor) -> torch.Tensor:
        gradient = gradient.clone()
        gradient.view(-1)[0] = bad
        return gradient

    parameter.register_hook(make_not_finite)
    result = stepper.take(second, PhaseClock())
    assert math.isfinite(float(result.masked_lm)) and float(result.taken) == 1
    with Metrics(tmp_path / "metrics.jsonl", processes) as metrics:
        metrics.step(2, 16, second, result)
        with pytest.raises(NotFinite, match=r"^the gradient of step 2 is not finite$"):
            metrics.flush()
