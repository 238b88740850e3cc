"""The learning rate by step, against the reference's formula."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from implementations.pytorch.optim.schedule import learning_rate, rate_table
from podium.config.schema import OptimizerSettings


def make(base: float, decay_steps: int, decay_power: float = 1.0, **schedule: float) -> OptimizerSettings:
    values = {"learning_rate": base, "decay_steps": decay_steps, "decay_power": decay_power, "warmup_steps": 0}
    rest = {"algorithm": "lamb", "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-6, "weight_decay": 0.01}
    return OptimizerSettings.model_validate({**rest, **values, **schedule})


@given(
    step=st.integers(0, 3000),
    base=st.floats(1e-6, 1.0),
    decay_steps=st.integers(1, 2000),
    power=st.sampled_from([0.5, 1.0, 2.0]),
    warmup=st.integers(0, 200),
    start=st.integers(-300, 0),
)
@settings(deadline=None)
def test_it_is_the_references_formula(
    step: int, base: float, decay_steps: int, power: float, warmup: int, start: int
) -> None:
    if warmup > 0 and step - start < warmup:
        expected = base * (step - start) / warmup
    else:
        expected = base * (1 - min(step, decay_steps) / decay_steps) ** power
    schedule = make(base, decay_steps, power, warmup_steps=warmup, start_warmup_step=start)
    assert learning_rate(schedule, step) == pytest.approx(expected, rel=1e-12, abs=0)


def test_without_warm_up_it_starts_at_the_base() -> None:
    assert [learning_rate(make(0.4, 4), step) for step in range(7)] == pytest.approx([0.4, 0.3, 0.2, 0.1, 0, 0, 0])


def test_it_jumps_where_warm_up_ends() -> None:
    """Decay runs from the first step, not from the end of warm-up."""
    rates = [learning_rate(make(1.0, 20, warmup_steps=10), step) for step in range(12)]
    assert rates[:10] == pytest.approx([n / 10 for n in range(10)])
    assert rates[10:] == pytest.approx([0.5, 0.45])


def test_a_negative_start_begins_part_of_the_way_up() -> None:
    schedule = make(1.0, 100, warmup_steps=10, start_warmup_step=-4)
    assert learning_rate(schedule, 0) == pytest.approx(0.4)
    assert learning_rate(schedule, 5) == pytest.approx(0.9)
    assert learning_rate(schedule, 6) == pytest.approx(0.94)


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_it_ends_at_the_end_rate(power: float) -> None:
    schedule = make(1.0, 10, power, end_learning_rate=0.2)
    assert learning_rate(schedule, 0) == pytest.approx(1.0)
    assert learning_rate(schedule, 5) == pytest.approx(0.2 + 0.8 * 0.5**power)
    assert [learning_rate(schedule, step) for step in (10, 11, 10_000)] == pytest.approx([0.2] * 3)


def test_a_table_holds_the_rates() -> None:
    schedule = make(base=0.3, decay_steps=7, warmup_steps=3, start_warmup_step=-1, end_learning_rate=0.01)
    table = rate_table(schedule, 9, torch.device("cpu"))
    assert table.dtype == torch.float32
    assert table.tolist() == [float(np.float32(learning_rate(schedule, step))) for step in range(9)]
