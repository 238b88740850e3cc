"""The learning-rate schedule compared with the reference's formula and published schedules."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.bert.published.hyperparameters import hyperparameter_sets
from implementations.pytorch.optim.schedule import learning_rate, rate_table
from podium.config.load import load_system
from podium.config.schema import OptimizerSettings

PUBLISHED = Path(__file__).resolve().parents[5] / "shared" / "data" / "published_bert_hyperparameters_to_v2.1.json"


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
def test_schedule_matches_the_references_formula(
    step: int, base: float, decay_steps: int, power: float, warmup: int, start: int
) -> None:
    if warmup > 0 and step - start < warmup:
        expected = base * (step - start) / warmup
    else:
        expected = base * (1 - min(step, decay_steps) / decay_steps) ** power
    schedule = make(base, decay_steps, power, warmup_steps=warmup, start_warmup_step=start)
    assert learning_rate(schedule, step) == pytest.approx(expected, rel=1e-12, abs=0)


def test_schedule_without_warm_up_starts_at_the_base_rate() -> None:
    assert [learning_rate(make(0.4, 4), step) for step in range(7)] == pytest.approx([0.4, 0.3, 0.2, 0.1, 0, 0, 0])


def test_rate_jumps_at_the_end_of_warm_up() -> None:
    """Decay runs from the first step, not from the end of warm-up."""
    rates = [learning_rate(make(1.0, 20, warmup_steps=10), step) for step in range(12)]
    assert rates[:10] == pytest.approx([n / 10 for n in range(10)])
    assert rates[10:] == pytest.approx([0.5, 0.45])


def test_negative_start_step_shortens_the_warm_up() -> None:
    schedule = make(1.0, 100, warmup_steps=10, start_warmup_step=-4)
    assert learning_rate(schedule, 0) == pytest.approx(0.4)
    assert learning_rate(schedule, 5) == pytest.approx(0.9)
    assert learning_rate(schedule, 6) == pytest.approx(0.94)


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_schedule_ends_at_the_end_rate(power: float) -> None:
    schedule = make(1.0, 10, power, end_learning_rate=0.2)
    assert learning_rate(schedule, 0) == pytest.approx(1.0)
    assert learning_rate(schedule, 5) == pytest.approx(0.2 + 0.8 * 0.5**power)
    assert [learning_rate(schedule, step) for step in (10, 11, 10_000)] == pytest.approx([0.2] * 3)


@pytest.mark.parametrize("system", ["dgxa100_n128", "dgxa100_n171"])
def test_samsungs_rate_exceeds_the_base_after_the_warm_up(system: str) -> None:
    """Rates of the published runs by step, from 0, to the four digits that are published."""
    published = {20: 1.725e-4, 40: 2.684e-4, 65: 3.882e-4, 66: 4.461e-4}
    published |= {82: 3.894e-4, 100: 3.257e-4, 140: 1.840e-4, 178: 4.945e-5, 298: 4.945e-5}
    schedule = load_system(system).optimizer
    rates = {step: learning_rate(schedule, step) for step in published}
    assert rates == pytest.approx(published, rel=3e-4)
    base, end = 3.9299421615882676e-4, 4.94549100544884e-5
    for step in range(300):
        late = 1 - (step + 1 - 82) / (179 - 82)
        expected = base * (step + 16) / 82 if step + 16 < 82 else end + (base - end) * late if step < 178 else end
        assert learning_rate(schedule, step) == pytest.approx(expected, rel=1e-12)


def published() -> list[dict[str, Any]]:
    """Every published set with a schedule, except for Samsung's, whose logged values are not those used."""
    rows = json.loads(PUBLISHED.read_text(encoding="utf-8")) if PUBLISHED.is_file() else []
    return [row for row in rows if row["lr"] and row["decay_steps"] and row["submitter"] != "Samsung"]


@pytest.mark.skipif(not PUBLISHED.is_file(), reason=f"{PUBLISHED} is not here")
def test_other_published_schedules_match_the_reference() -> None:
    rows = published()
    assert len(rows) > 150
    for row in rows:
        base, last, power = row["lr"], row["decay_steps"], row["decay_power"] or 1.0
        warm, start = int(row["warmup_steps"] or 0), min(0, int(row["start_warmup_step"] or 0))
        schedule = make(base, int(last), power, warmup_steps=warm, start_warmup_step=start)
        for step in (0, 1, 5, 50, 99, 100, 101, 180, 215, 400, int(last) - 1, int(last), int(last) + 9):
            decayed = base * (1.0 - min(step, last) / last) ** power
            expected = base * (step - start) / warm if warm > 0 and step - start < warm else decayed
            assert learning_rate(schedule, step) == pytest.approx(expected, rel=1e-12, abs=0), (row["system"], step)


# Computed by hand: base · (1 − 100 / decay steps), or during the warm-up base · (100 − start) / warm-up steps.
LAMB_AT_100 = {
    "lamb_256": 3.57e-4,
    "lamb_448": 4.186567164179104e-4,
    "lamb_768": 9.339130434782609e-4,
    "lamb_1536": 1.9112688553682343e-3,
    "lamb_3072": 1.9009752596789424e-3,
    "lamb_4096": 1.753125e-3,
    "lamb_16384": 2.2758620689655173e-3,
}


def test_rates_of_shipped_hyperparameters_at_step_100() -> None:
    for name, rate in LAMB_AT_100.items():
        settings = OptimizerSettings.model_validate(hyperparameter_sets()[name].optimizer)
        assert learning_rate(settings, 100) == pytest.approx(rate, rel=1e-12), name


def test_rate_table_contains_the_rates() -> None:
    schedule = make(base=0.3, decay_steps=7, warmup_steps=3, start_warmup_step=-1, end_learning_rate=0.01)
    table = rate_table(schedule, 9, torch.device("cpu"))
    assert table.dtype == torch.float32
    assert table.tolist() == [float(np.float32(learning_rate(schedule, step))) for step in range(9)]
