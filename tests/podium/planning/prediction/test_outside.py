"""Published scores outside an interval, and the differences that are listed for them."""

from dataclasses import replace

import pytest

from benchmarks.bert.published.reading import read_runs
from podium.planning.prediction.constants import load_constants
from podium.planning.prediction.outside import find_outlying_scores
from podium.planning.prediction.plan import Machine, Plan
from podium.planning.prediction.predict import Prediction, predict
from podium.planning.prediction.published import all_samples, plan_from_published

CONSTANTS = load_constants()
LARGEST = "2.0 NVIDIA dgxa100_n512_ngc22.04_pytorch"
RUNS = read_runs()
(RUN,) = (run for run in RUNS if run.name == LARGEST)
PLAN = plan_from_published(RUN, CONSTANTS, all_samples(RUNS))
PREDICTION = predict(PLAN, CONSTANTS)


def outlying_scores(plan: Plan, prediction: Prediction) -> dict[str, tuple[str, str]]:
    return {each.system: (each.side, each.why) for each in find_outlying_scores(plan, prediction, CONSTANTS)}


def test_a_score_in_the_interval_is_not_listed() -> None:
    assert outlying_scores(PLAN, PREDICTION) == {}


@pytest.mark.parametrize(("low", "high", "side"), [(20.0, 30.0, "below"), (1.0, 5.0, "above")])
def test_identical_plan_reports_no_difference(low: float, high: float, side: str) -> None:
    found, why = outlying_scores(PLAN, replace(PREDICTION, low=low, high=high, samples_to_target=RUN.mean_samples))[
        LARGEST
    ]
    assert (found, why) == (side, f"no difference is known; predicted as it was run: {PREDICTION.seconds:.3g} s")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"sharding": "none"}, "its slice of the optimizer there (here gradients are all-reduced and the whole"),
        ({"optimizer": "adamw"}, "it trains with lamb (here adamw)"),
        ({"global_batch_size": 8192}, "its batch size is 16,384 (here 8,192)"),
        ({"accumulation_steps": 2}, "micro-batches a step are 1 there (here 2)"),
        ({"machine": Machine("a100_pcie", 512, 8, (4, 100))}, "its GPUs are NVIDIA A100 SXM (here NVIDIA A100 PCIe)"),
        ({"machine": Machine("a100_sxm", 512, 8, (4, 100))}, "of 200 Gb/s (here 8 GPUs and 4 adapters of 100 Gb/s)"),
    ],
)
def test_each_difference_is_named(changes: dict[str, object], expected: str) -> None:
    plan = replace(PLAN, **changes)  # type: ignore[arg-type]
    _, why = outlying_scores(plan, replace(PREDICTION, low=20.0, high=30.0))[LARGEST]
    assert expected in why


def test_unexpected_samples_to_target_are_named() -> None:
    _, why = outlying_scores(PLAN, replace(PREDICTION, low=20.0, high=30.0, samples_to_target=9e6))[LARGEST]
    assert f"it took {RUN.mean_samples:,.0f} samples (here 9,000,000)" in why


def test_other_model_code_is_named_as_the_reason() -> None:
    plan = replace(PLAN, machine=Machine("a100_sxm", 1, 8), global_batch_size=448)
    found = outlying_scores(plan, replace(PREDICTION, low=900.0, high=2500.0))
    assert any("other model code" in why for name, (_, why) in found.items() if "MosaicML" in name)
