"""Optimizer settings: those that were published pass, those far from them are doubted."""

import re

import pytest

from benchmarks.bert.published.reading import read_learning_rates
from podium.config.load import load_system, system_names
from podium.planning.prediction.constants import load_constants
from podium.planning.prediction.doubts import learning_rate_doubt
from podium.planning.prediction.from_config import plan_of_config

SYSTEMS = [name for name in system_names() if not name.startswith(("laptop", "h200"))]


def of_optimizer(system: str, *settings: str) -> list[str]:
    plan = plan_of_config(load_system(system, settings=settings), None, load_constants())
    return [sentence for sentence in plan.unsure if sentence.startswith("optimizer.")]


def test_published_rates_and_those_within_a_factor_of_four_pass() -> None:
    rows = read_learning_rates()
    assert {row.optimizer for row in rows} == {"lamb", "adamw"}
    for row in rows:
        for factor in (1, 3.9, 1 / 3.9):
            assert learning_rate_doubt(row.optimizer, factor * row.learning_rate, row.global_batch_size) == []


@pytest.mark.parametrize(
    ("optimizer", "rate", "batch", "words"),
    [
        ("lamb", 100.0, 448, "learning_rate 100 is far from .*0.0004 to 0.000425 at 448"),
        ("lamb", 1e-5, 5000, "0.0035 at 4,608"),
        ("adamw", 4.25e-3, 448, "published with adamw .*0.000393 at 16,384"),
    ],
)
def test_rates_far_from_the_nearest_published_are_doubted(optimizer: str, rate: float, batch: int, words: str) -> None:
    (sentence,) = learning_rate_doubt(optimizer, rate, batch)
    assert re.search(words, sentence)
    assert "samples to target" in sentence


def test_an_optimizer_without_published_rates_is_not_doubted() -> None:
    assert learning_rate_doubt("sgd", 100.0, 448) == []


@pytest.mark.parametrize("system", SYSTEMS)
def test_what_systems_come_with_is_not_doubted(system: str) -> None:
    assert of_optimizer(system) == []


def test_a_set_that_was_never_trained_with_is_doubted() -> None:
    """Its decay ends at 3.0 million samples, and more are published at the nearest batch size."""
    (sentence,) = of_optimizer("h200_1x")
    assert "optimizer.decay_steps 53,600 ends the schedule before the target: at 0.736 of the 72,858 steps" in sentence


@pytest.mark.parametrize(
    ("system", "settings", "words"),
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
            "weight_decay 1000 is far above those that are published (0.00289 to 0.1)",
        ),
        (
            "dgxa100_n1",
            ["end_learning_rate=1.0e-3"],
            "end_learning_rate 0.001 is above learning_rate 0.000425, so the rate rises to its end (published: 0 to "
            "0.126 of learning_rate)",
        ),
        ("academic_t4", ["warmup_steps=70000"], "at 1.12 of the 62,500 steps predicted to the end (published"),
    ],
)
def test_settings_that_do_not_train_to_the_target_are_doubted(system: str, settings: list[str], words: str) -> None:
    (sentence,) = of_optimizer(system, *(f"optimizer.{setting}" for setting in settings))
    assert words in sentence


@pytest.mark.parametrize(
    "setting", ["decay_steps=6000", "decay_steps=10000", "warmup_steps=3000", "weight_decay=0.2", "weight_decay=0"]
)
def test_settings_near_published_ones_are_not_doubted(setting: str) -> None:
    assert of_optimizer("dgxa100_n1", f"optimizer.{setting}") == []


def test_a_decay_that_ends_above_zero_may_end_before_the_shortest_run() -> None:
    """As Samsung's runs did."""
    settings = ("optimizer.decay_steps=5000", "optimizer.end_learning_rate=5.0e-5")
    assert of_optimizer("dgxa100_n1", *settings) == []
