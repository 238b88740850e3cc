"""Back-test on published systems: the division into fitted and tested ones, and bounds on the errors."""

from statistics import median

import pytest

from benchmarks.bert.published.reading import read_runs, read_samples
from podium.planning.prediction.backtest import (
    Comparison,
    Medians,
    compare,
    explain_errors,
    group_comparisons,
    render_intervals,
    render_report,
    render_round_1_1,
)
from podium.planning.prediction.constants import load_constants
from podium.planning.prediction.published import is_fitted, is_tested, known_samples, plan_from_published

CONSTANTS = load_constants()
RUNS = read_runs()


@pytest.fixture(scope="module")
def comparisons() -> list[Comparison]:
    return compare([run for run in RUNS if is_tested(run)], CONSTANTS)


def test_fitted_systems_are_those_of_8_gpus_and_two_more() -> None:
    fitted = [run for run in RUNS if is_fitted(run)]
    assert len(fitted) == 29
    assert sorted(run.name for run in fitted if run.gpus != 8) == [
        "2.0 NVIDIA dgxa100_n128_ngc22.04_pytorch",
        "2.0 NVIDIA dgxa100_n8_ngc22.04_pytorch",
    ]
    assert {run.gpus for run in fitted} == {8, 64, 1024}


def test_tested_systems_are_all_others_except_republished_runs() -> None:
    others = [run for run in RUNS if is_tested(run)]
    assert len(others) == 37
    assert not any(is_fitted(run) or run.republished_from for run in others)
    assert sorted({run.gpus for run in others}) == [1, 2, 4, 16, 32, 64, 128, 1024, 1368, 4096]
    left_out = {run.family for run in RUNS if not is_fitted(run) and not is_tested(run) and not run.republished_from}
    assert left_out == {"mosaicml"}


def test_samples_to_target_exclude_tested_runs() -> None:
    others = {(run.round, run.system) for run in RUNS if is_tested(run)}
    known = known_samples(RUNS)
    assert not others & {(point.round, point.system) for point in known}
    assert len(known) == len(read_samples()) + 29


def test_median_errors_are_below_their_bounds(comparisons: list[Comparison]) -> None:
    found = Medians.from_comparisons(comparisons)
    assert found.systems == 37
    assert found.rate < 0.045
    assert found.seconds < 0.105
    nvidia = Medians.from_comparisons(group_comparisons(comparisons)["code: nvidia"])
    assert nvidia.systems == 32
    assert nvidia.rate < 0.04
    assert nvidia.seconds < 0.09


def test_error_of_the_largest_system_is_below_12_percent(comparisons: list[Comparison]) -> None:
    largest = comparisons[-1]
    assert largest.run.gpus == 4096
    assert abs(largest.rate_error) < 0.06
    assert abs(largest.seconds_error) < 0.12


def test_rate_errors_of_fitted_systems_are_small() -> None:
    errors = [abs(c.rate_error) for c in compare([run for run in RUNS if is_fitted(run)], CONSTANTS)]
    assert median(errors) < 0.02
    assert sum(error < 0.065 for error in errors) >= 0.89 * len(errors)


def test_tested_scores_lie_inside_the_interval(comparisons: list[Comparison]) -> None:
    assert [c.run.name for c in comparisons if not c.is_inside] == []


def test_leave_one_out_coverage_is_nine_of_ten() -> None:
    fitted = [m for m in CONSTANTS.error_intervals if m.code == "fitted" and m.of == "seconds"]
    assert sum(m.systems for m in fitted) == 35
    assert sum(m.inside_left_out for m in fitted) == 32
    assert {m.coverage for m in fitted} == {0.9}
    others = [m for m in CONSTANTS.error_intervals if m.code == "other"]
    assert {(m.coverage, m.systems, m.inside_left_out) for m in others} == {(None, 3, 3)}


def test_every_interval_is_reported() -> None:
    text = render_intervals(CONSTANTS)
    assert len(text.splitlines()) == 2 + 8
    assert "fitted up to 32 GPUs seconds 1/1.20 1.20 90% 22 of 24" in " ".join(text.split())
    assert "other more than 32 GPUs" in text
    assert "not stated   3 of 3" in text


def test_errors_are_predicted_over_published_minus_one(comparisons: list[Comparison]) -> None:
    c = comparisons[0]
    assert c.rate_error == pytest.approx(c.sequences_per_second / c.run.sequences_per_second - 1)
    assert c.seconds_error == pytest.approx(c.prediction.seconds / c.run.score_seconds - 1)
    assert c.samples_error == pytest.approx(c.prediction.samples_to_target / c.run.mean_samples - 1)
    assert c.is_inside == (c.prediction.low <= c.run.score_seconds <= c.prediction.high)


def test_report_lists_every_system_and_explains_large_errors(comparisons: list[Comparison]) -> None:
    text = render_report(comparisons)
    for c in comparisons:
        assert c.run.name in text
    lines = explain_errors(comparisons)
    assert 5 <= len(lines) <= 15
    assert not [line for line in lines if "not explained" in line]


def test_each_grouping_contains_every_system_once(comparisons: list[Comparison]) -> None:
    found = group_comparisons(comparisons)
    for start in ("code: ", "GPU: "):
        assert sum(len(members) for name, members in found.items() if name.startswith(start)) == 37
    assert sum(len(members) for name, members in found.items() if name.endswith("GPUs")) == 37
    assert len(found["all"]) == 37


def test_round_1_1_report_lists_all_systems_and_a_small_error() -> None:
    text = render_round_1_1(CONSTANTS)
    assert len(text.splitlines()) == 11
    share = float(text.rpartition(" ")[2].rstrip("%"))
    assert share < 6


def test_plans_match_published_systems() -> None:
    published = known_samples(RUNS)
    by_name = {run.name: plan_from_published(run, CONSTANTS, published) for run in RUNS if run.family != "mosaicml"}
    samsung = by_name["2.0 Samsung samsung_supercomputer21_dgxa100_n128_pytorch"]
    assert (samsung.strategy, samsung.optimizer, samsung.sharding) == ("presorted", "adamw", "none")
    assert samsung.machine.adapters == (4, 200)
    dell = by_name["2.1 Dell 2xXE8545x4A100-SXM-40GB"]
    assert (dell.strategy, dell.accumulation_steps, dell.machine.gpus_per_node) == ("exchanged", 2, 4)
    assert dell.sharding == "slices"
    assert dell.gradient_bytes == 2
