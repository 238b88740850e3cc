"""The predicted result of the RCP check: bounds, fixed runs, and calibration against the official checker."""

import numpy as np
import pytest

from podium.mllog import rcp
from podium.mllog.rcp import Point, Reference
from podium.submission.rcp_forecast import Forecast, evaluation_interval, forecast
from tests.podium.submission.rcp_simulation import calibration_rows, coverage, simulate


def at(benchmark: str, batch_size: int, ruleset: str = "5.1.0") -> tuple[Reference, Point]:
    reference = rcp.require_reference(benchmark, ruleset)
    point = reference.at(batch_size)
    assert point is not None
    return reference, point


def predict(benchmark: str, batch_size: int, samples: list[float | None], ruleset: str = "5.1.0") -> Forecast:
    return forecast(*at(benchmark, batch_size, ruleset), samples)


def test_runs_as_the_reference_pass_nearly_always() -> None:
    """The check's significance level bounds the failures to about one in twenty."""
    for ruleset in ("5.1.0", "6.1.0"):
        for benchmark in rcp.benchmarks(ruleset):
            reference = rcp.require_reference(benchmark, ruleset)
            found = predict(benchmark, reference.pruned[0].batch_size, [], ruleset)
            assert found.passes > 0.93 and found.remaining == reference.runs, benchmark


def test_a_whole_set_is_certain_and_equals_the_verdict() -> None:
    reference, point = at("llama31_8b", 32)
    for runs in ([172_032.0] * 10, [172_032.0] * 8 + [196_608.0] * 2, [184_320.0] * 9 + [None]):
        found, verdict = forecast(reference, point, runs), reference.verdict(32, runs)
        assert found.passes == float(verdict.passed) and found.remaining == 0
        assert found.mean_interval == (verdict.samples, verdict.samples)
        assert found.factor == (verdict.factor if verdict.passed else None)
        assert found.needed == {0.5: None, 0.95: None}


def test_the_runs_so_far_are_part_of_the_set() -> None:
    """Nine fast runs fail whatever the tenth needs, nine slow ones pass."""
    fast, slow = predict("llama31_8b", 32, [159_744.0] * 9), predict("llama31_8b", 32, [196_608.0] * 9)
    assert fast.passes == 0 and fast.factor is None and fast.needed == {0.5: None, 0.95: None}
    assert slow.passes > 0.99 and slow.factor_interval == (1.0, 1.0) and slow.needed == {0.5: 0.0, 0.95: 0.0}


def test_few_runs_leave_more_open_than_many() -> None:
    few, many = predict("bert", 3072, [2.5e6, 2.6e6], "5.0.0"), predict("bert", 3072, [2.5e6, 2.6e6] * 4, "5.0.0")
    widths = [high - low for low, high in (few.mean_interval, many.mean_interval)]
    assert widths[0] > 2 * widths[1] > 0


def test_more_samples_pass_more_often() -> None:
    chances = [predict("rgat", 16384, [count] * 3).passes for count in (0.75, 0.8, 0.85, 0.9)]
    assert chances == sorted(chances) and chances[0] < 0.1 and chances[-1] > 0.95


def test_runs_that_did_not_converge_make_others_likelier() -> None:
    none, one, two = (predict("llama31_8b", 32, [184_320.0] * 4 + [None] * failed) for failed in (0, 1, 2))
    assert none.unconverged < 0.01 < one.unconverged < two.unconverged == 1.0
    assert two.passes == 0


def test_the_samples_needed_are_those_that_pass_so_often() -> None:
    """Runs with that mean and the predicted spread pass with about that probability."""
    found = predict("bert", 3072, [2.5e6, 2.6e6], "5.0.0")
    assert found.needed[0.5] is not None and found.needed[0.95] is not None and found.sd is not None
    reference, point = at("bert", 3072, "5.0.0")
    generator = np.random.default_rng(2)
    for chance, mean in found.needed.items():
        assert mean is not None
        sets = [[2.5e6, 2.6e6, *generator.normal(mean, point.sd, 8)] for _ in range(1000)]
        passed = np.mean([reference.olympic_mean(runs) >= point.threshold for runs in sets])
        assert passed == pytest.approx(chance, abs=0.1)


def test_the_same_runs_have_the_same_prediction() -> None:
    assert predict("flux1", 1500, [8.1e6, 8.4e6]) == predict("flux1", 1500, [8.1e6, 8.4e6])


def test_more_runs_than_a_set_has_are_refused() -> None:
    with pytest.raises(ValueError, match="4 runs, and a set of llama31_405b has 3"):
        predict("llama31_405b", 1152, [313_344.0] * 4)


@pytest.mark.parametrize(
    ("benchmark", "batch_size", "known", "step"),
    [
        ("llama2_70b_lora", 8, [], 384),
        ("llama2_70b_lora", 8, [3072, 3264], 192),
        ("rgat", 20000, [], 0.05),
        ("retinanet", 256, [], 1),  # all runs of the reference are equal
        ("retinanet", 256, [3.917], 1),
    ],
)
def test_the_evaluation_interval_is_found(benchmark: str, batch_size: int, known: list[float], step: float) -> None:
    assert evaluation_interval(*at(benchmark, batch_size), known) == pytest.approx(step)


def test_where_all_runs_of_the_reference_are_equal_one_run_decides_nothing() -> None:
    assert predict("qwen35_397b_grpo", 256, [4608.0, 4608.0], "6.1.0").step == 512
    assert 0.8 < predict("qwen35_397b_grpo", 256, [4608.0, 4608.0], "6.1.0").passes <= 1
    assert 0.005 < predict("qwen35_397b_grpo", 256, [4391.3], "6.1.0").passes < 0.2


@pytest.mark.parametrize("sets", [5, pytest.param(200, marks=pytest.mark.exhaustive)])
def test_probabilities_and_intervals_are_those_observed(sets: int) -> None:
    """Of sets that are predicted to pass with p, a share of about p does, by the official checker."""
    generator = np.random.default_rng(sets)
    found = []
    for ruleset in ("5.1.0", "6.1.0") if sets > 100 else ("6.1.0",):
        for benchmark in rcp.benchmarks(ruleset):
            reference = rcp.require_reference(benchmark, ruleset)
            for made in {10: (0, 3, 5, 9), 5: (0, 1, 3, 4), 3: (0, 1, 2)}[reference.runs]:
                found += simulate(reference, made, sets, generator)
    for group in (0, 1, 2, 3, 4, 5, 9):
        of_group = [one for one in found if one.made == group]
        if of_group:
            print(f"after {group} runs, n = {len(of_group)}: coverage", *(f"{one:.3f}" for one in coverage(of_group)))
            for row in calibration_rows(of_group):
                print("  {}: n = {}, predicted {:.3f}, passed {:.3f}, standard error {:.3f}".format(*row))
    print(f"all with runs, coverage {coverage([one for one in found if one.made])}")
    for name, count, mean, share, error in calibration_rows([one for one in found if one.made]):
        print(f"  {name}: n = {count}, predicted {mean:.3f}, passed {share:.3f}, standard error {error:.3f}")
        assert abs(mean - share) < 0.08 + 3 * error, name
    means, factors, _, scaled = coverage(found)
    assert means > 0.86 and factors > 0.9 and scaled > 0.86
    assert sets < 100 or means < 0.97  # intervals of values on a grid cover more than 90%
    brier = float(np.mean([(one.passes - one.passed) ** 2 for one in found]))
    assert brier < 0.06
