"""Optimizer settings near published ones pass; settings far from them get a warning."""

import re

import pytest

from benchmarks.bert.published.reading import read_learning_rates
from podium.config.load import load_system, system_names
from podium.planning.prediction.constants import load_constants
from podium.planning.prediction.doubts import learning_rate_warnings
from podium.planning.prediction.from_config import plan_from_config

SYSTEMS = [name for name in system_names() if not name.startswith(("laptop", "h200"))]


def optimizer_warnings_of(system: str, *settings: str) -> list[str]:
    plan = plan_from_config(load_system(system, settings=settings), None, load_constants())
    return [sentence for sentence in plan.unsure if sentence.startswith("optimizer.")]


def test_learning_rates_within_a_factor_of_four_of_published_ones_pass() -> None:
    rows = read_learning_rates()
    assert {row.optimizer for row in rows} == {"lamb", "adamw"}
    for row in rows:
        for factor in (1, 3.9, 1 / 3.9):
            assert learning_rate_warnings(row.optimizer, factor * row.learning_rate, row.global_batch_size) == []


@pytest.mark.parametrize(
    ("optimizer", "rate", "batch", "expected"),
    [
        ("lamb", 100.0, 448, "learning_rate 100 is far from .*0.0004 to 0.000425 at 448"),
        ("lamb", 1e-5, 5000, "0.0035 at 4,608"),
        ("adamw", 4.25e-3, 448, "published with adamw .*0.000393 at 16,384"),
    ],
)
def test_learning_rates_far_from_published_ones_get_a_warning(
    optimizer: str, rate: float, batch: int, expected: str
) -> None:
    (sentence,) = learning_rate_warnings(optimizer, rate, batch)
    assert re.search(expected, sentence)
    assert "samples to target" in sentence


def test_optimizer_without_published_rates_gets_no_warning() -> None:
    assert learning_rate_warnings("sgd", 100.0, 448) == []


@pytest.mark.parametrize("system", SYSTEMS)
def test_shipped_systems_get_no_optimizer_warning(system: str) -> None:
    if system == "dgxb200_n1":
        pytest.skip("no steps of a B200 were published or measured, so none are predicted")
    assert optimizer_warnings_of(system) == []


def test_untrained_hyperparameter_set_gets_a_warning() -> None:
    """Its decay ends at 3.0 million samples, and published runs at the nearest batch size need more."""
    (sentence,) = optimizer_warnings_of("h200_1x")
    assert "optimizer.decay_steps 53,600 ends the schedule before the target: at 0.736 of the 72,858 steps" in sentence


@pytest.mark.parametrize(
    ("system", "settings", "expected"),
    [
        (
            "dgxa100_n1",
            ["decay_steps=2000"],
            "optimizer.decay_steps 2,000 ends the schedule before the target: at 0.339 of the 5,901 steps predicted to "
            "the target (published: 0.994 to 1.41)",
        ),
        ("dgxa100_n1", ["decay_steps=5000"], "decay_steps 5,000 ends the schedule"),  # at 0, before the shortest run
        ("dgxa100_n1", ["decay_steps=3000", "end_learning_rate=1.0e-5"], "decay_steps 3,000 ends the schedule"),
        (
            "dgxa100_n1",
            ["decay_steps=100000"],
            "decay_steps 100,000 lets the rate decay little before the target: at 16.9",
        ),
        (
            "dgxa100_n1",
            ["warmup_steps=6000"],
            "optimizer.warmup_steps 6,000 is longer than the run: the warm-up ends at 1.02 of the 5,901 steps "
            "predicted to the target (published: 0 to 0.569)",
        ),
        (
            "dgxa100_n1",
            ["decay_from=6000"],
            "decay_from 6,000 begins the decay after the run, at 1.02 of the 5,901 steps",
        ),
        (
            "dgxa100_n1",
            ["weight_decay=1000"],
            "weight_decay 1000 is far above published values (0.00289 to 0.1)",
        ),
        (
            "dgxa100_n1",
            ["end_learning_rate=1.0e-3"],
            "end_learning_rate 0.001 is above learning_rate 0.000425, so the learning rate rises (published: 0 to "
            "0.126 of learning_rate)",
        ),
        ("academic_t4", ["warmup_steps=70000"], "at 1.12 of the 62,500 steps predicted to the end (published"),
    ],
)
def test_settings_unlikely_to_reach_the_target_get_a_warning(system: str, settings: list[str], expected: str) -> None:
    (sentence,) = optimizer_warnings_of(system, *(f"optimizer.{setting}" for setting in settings))
    assert expected in sentence


@pytest.mark.parametrize(
    "setting", ["decay_steps=6000", "decay_steps=10000", "warmup_steps=3000", "weight_decay=0.2", "weight_decay=0"]
)
def test_settings_near_published_ones_get_no_warning(setting: str) -> None:
    assert optimizer_warnings_of("dgxa100_n1", f"optimizer.{setting}") == []


def test_a_decay_that_ends_above_zero_may_end_before_the_shortest_run() -> None:
    """As Samsung's runs did."""
    settings = ("optimizer.decay_steps=5000", "optimizer.end_learning_rate=5.0e-5")
    assert optimizer_warnings_of("dgxa100_n1", *settings) == []
