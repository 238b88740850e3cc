"""MLPerf's rules for BERT: the evaluation interval and the limits of the closed division."""

from math import floor
from typing import Any

import pytest

from benchmarks.bert.rules import RULESETS, closed_division_violations, evaluation_interval

CLOSED: dict[str, Any] = dict(
    size="large",
    optimizer="lamb",
    dropout=0.1,
    target_accuracy=0.72,
    evaluation_samples=10_000,
    interval_samples=150_000,
    global_batch_size=448,
    initial_checkpoint=True,
)


@pytest.mark.parametrize(
    ("global_batch_size", "samples"),
    [
        (1, 150_000),
        (256, 150_000),
        (448, 150_000),
        (2048, 150_000),
        (3072, 175_000),
        (4608, 200_000),
        (6144, 200_000),
        (8192, 225_000),
        (16384, 325_000),
    ],
)
def test_the_evaluation_interval_is_that_of_the_rules(global_batch_size: int, samples: int) -> None:
    assert evaluation_interval(global_batch_size) == samples


def test_the_evaluation_interval_is_the_formula_for_every_batch_size() -> None:
    for size in range(1, 20_000):
        # in integers, so that nothing is rounded before the floor
        assert evaluation_interval(size) == floor(5 * (23_023 * size + 300_000_000) / (100 * 100 * 25_000)) * 25_000


def test_configuration_within_the_rules_passes() -> None:
    assert closed_division_violations(**CLOSED) == []
    assert closed_division_violations(**CLOSED | {"global_batch_size": 16384, "interval_samples": 325_000}) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"size": "tiny"}, "closed division, Model: size is tiny, allowed is large"),
        ({"optimizer": "adamw"}, "closed division, Optimizer: optimizer.algorithm is adamw, allowed is lamb"),
        ({"dropout": 0.0}, "closed division, Hyper-parameters: dropout is 0.0, allowed is 0.1"),
        ({"target_accuracy": 0.71}, "closed division, Quality target: target_accuracy is 0.71, allowed is 0.72"),
        ({"target_accuracy": None}, "closed division, Quality target: target_accuracy is None, allowed is 0.72"),
        ({"evaluation_samples": 5_000}, "closed division, Evaluation: evaluation.samples is 5000, allowed is 10000"),
        (
            {"global_batch_size": 3072},
            "closed division, Evaluation frequency: evaluation.interval_samples is 150000, allowed is 175000",
        ),
        (
            {"initial_checkpoint": False},
            "closed division, Initial checkpoint: initial_checkpoint is missing, "
            "allowed is the reference's checkpoint, made with `podium data checkpoint`",
        ),
    ],
)
def test_broken_rule_is_reported(change: dict[str, object], message: str) -> None:
    assert closed_division_violations(**CLOSED | change) == [message]


def test_all_broken_rules_are_reported_in_their_order() -> None:
    breaches = closed_division_violations(
        size="tiny",
        optimizer="adamw",
        dropout=0.2,
        target_accuracy=None,
        evaluation_samples=1,
        interval_samples=1,
        global_batch_size=448,
        initial_checkpoint=False,
    )
    assert [breach.removeprefix("closed division, ").partition(":")[0] for breach in breaches] == [
        "Model",
        "Optimizer",
        "Hyper-parameters",
        "Quality target",
        "Evaluation",
        "Evaluation frequency",
        "Initial checkpoint",
    ]


def test_rulesets_are_ascending_from_1_1_0_to_5_0_0() -> None:
    assert (RULESETS[0], RULESETS[-1]) == ("1.1.0", "5.0.0")
    assert list(RULESETS) == sorted(set(RULESETS))
