"""Values that are derived from a result's runs."""

from collections.abc import Sequence
from typing import Any

import pytest

from benchmarks.bert.lengths import wikipedia_histogram
from benchmarks.bert.sizes import LARGE
from podium.comparison.page.families import group_by_family
from podium.comparison.result import Result
from podium.comparison.table import scaling_families
from podium.comparison.versus import compare_accelerators
from podium.core.errors import UsageError
from podium.mllog.benchmarks import find_benchmark
from tests.podium.comparison.conftest import make_result, make_run


def test_measured_and_scaled_scores() -> None:
    result = make_result([make_run(600.0 + n) for n in range(10)])
    assert result.score_minutes == pytest.approx(604.5 / 60) == result.minutes == result.score_minutes_scaled
    scaled = make_result(result.runs, scaling_factor=1.01)
    assert scaled.score_minutes == result.score_minutes
    assert scaled.score_minutes_scaled == pytest.approx(1.01 * 604.5 / 60)


def test_fewer_than_ten_runs_have_a_mean_and_no_score() -> None:
    result = make_result([make_run(60.0), make_run(120.0), make_run(1.0, status="aborted")])
    assert (result.score_minutes, result.score_minutes_scaled, result.minutes) == (None, None, 1.5)
    assert make_result([]).minutes is None


def test_throughput() -> None:
    result = make_result(
        [make_run(100.0, 1000.0, evaluating_seconds=10.0), make_run(300.0, 1400.0, evaluating_seconds=30.0)]
    )
    assert result.samples_to_target == 1200 and result.samples_per_second == 6.0
    assert result.evaluation_share == 0.1 and result.training_samples_per_second == pytest.approx(6 / 0.9)
    assert result.per_accelerator(16.0) == 2.0 and result.per_node(16.0) == 16.0
    assert result.per_accelerator(None) is None
    assert make_result(accelerators=0).per_accelerator(16.0) is None
    assert make_result(nodes=None).per_node(16.0) is None


def test_samples_after_the_target_count_only_for_throughput() -> None:
    result = make_result([make_run(100.0, 1000.0, trained=1500.0)] * 2)
    assert result.samples_to_target == 1000.0 and result.samples_per_second == 15.0


def test_a_mean_is_unknown_if_one_run_did_not_log_the_value() -> None:
    runs = [make_run(evaluating_seconds=10.0), make_run(1001.0, None)]
    result = make_result(runs)
    assert (result.samples_to_target, result.samples_per_second, result.evaluation_share) == (None, None, None)
    assert (result.training_samples_per_second, result.steady_samples_per_second, result.utilization) == (None,) * 3


def test_global_batch_size_is_unknown_if_runs_differ() -> None:
    assert make_result().global_batch_size == 448
    assert make_result([make_run(), make_run(global_batch_size=256.0)]).global_batch_size is None
    assert make_result([make_run(global_batch_size=None)]).global_batch_size is None


def test_utilization() -> None:
    """288 samples/s on an A100 are 46% of its peak."""
    result = make_result([make_run(1000.0, 288_000.0 * 8)])
    assert result.utilization == pytest.approx(0.459, abs=0.001)
    assert make_result(result.runs, kind=None).utilization is None
    assert make_result(result.runs, full_size=False).utilization is None
    assert make_result(result.runs, accelerators=0).utilization is None


def test_flops_per_sample_match_wikipedias_histogram() -> None:
    """The constant is from the data of 2,230 published logs; Wikipedia's histogram agrees within 1%."""
    bert = find_benchmark("bert")
    assert bert is not None
    histogram = wikipedia_histogram()
    samples, flops = float(histogram.sum()), 0.0
    for length, count in enumerate(histogram):
        if count:
            flops += float(count) * LARGE.training_flops([length], min(76, max(1, round(0.15 * length))), 30_522)
    assert flops / samples == pytest.approx(bert.flops_per_sample, rel=0.01)


def test_names_of_results() -> None:
    assert make_result().name == "v2.0 ORG SYS" and not make_result().own
    assert make_result(round=None).name == "own ORG SYS" and make_result(round=None).own
    assert make_result().family == "NVIDIA A100 SXM"
    assert make_result(kind=None).family == "NVIDIA A100-SXM4-80GB"
    assert make_result(kind=None, accelerator=None).family is None


def of_benchmark(name: str, seconds: Sequence[float], **changes: Any) -> Result:
    return make_result([make_run(one, benchmark=name) for one in seconds], benchmark=name, **changes)


@pytest.mark.parametrize(
    ("name", "runs", "minutes"),
    [("unet3d", 40, 20.5), ("llama31_405b", 3, 2.0), ("retinanet", 5, 3.0), ("flux1", 10, 5.5)],
)
def test_runs_and_dropped_runs_are_those_of_the_benchmark(name: str, runs: int, minutes: float) -> None:
    times = [60.0 * n for n in range(1, runs + 1)]
    if name == "unet3d":
        times[36:] = [1e6] * 4  # left out as the slowest four: the mean is of 5 to 36
    result = of_benchmark(name, times)
    assert result.score_minutes == pytest.approx(minutes)
    assert of_benchmark(name, times[1:]).score_minutes is None
    assert len(result.scored_runs) == runs - 2 * (result.rules.dropped if result.rules else 0)


def test_as_many_runs_may_fail_as_are_dropped() -> None:
    def failed(count: int) -> Result:
        runs = [make_run(60.0, benchmark="unet3d")] * (40 - count)
        return make_result([*runs, *[make_run(status="aborted", benchmark="unet3d")] * count], benchmark="unet3d")

    assert failed(4).score_minutes == 1.0 and failed(5).score_minutes is None


def test_a_benchmark_that_is_not_in_the_table_has_no_score() -> None:
    result = of_benchmark("chess_2030", [60.0] * 10)
    assert (result.rules, result.score_minutes, result.samples_to_converge, result.minutes) == (None, None, None, 1.0)
    assert result.utilization is None and result.samples_per_second == 2_400_000 / 60


def test_samples_to_converge_is_the_olympic_mean() -> None:
    runs = [make_run(samples=1000.0 * n) for n in range(1, 11)]
    assert make_result(runs).samples_to_converge == 5500.0
    aborted = make_run(status="aborted")
    assert make_result([*runs[:9], aborted]).samples_to_converge == 5500.0
    assert make_result([*runs[:8], aborted, aborted]).samples_to_converge is None
    assert make_result([*runs[:9], make_run(progress=None)]).samples_to_converge is None


def test_utilization_only_where_the_model_is_known() -> None:
    """The open division may train any model under a benchmark's name."""
    runs = [make_run(1000.0, 288_000.0 * 8)]
    unlisted = [make_run(1000.0, 288_000.0 * 8, tensors=0)]
    assert make_result(unlisted).utilization is not None
    assert make_result(unlisted, round=None, division="open").utilization is not None
    assert make_result(runs, division="open").utilization is not None
    assert make_result(unlisted, division="open").utilization is None
    assert make_result(unlisted, division=None).utilization is None
    assert of_benchmark("llama31_405b", [1e6]).utilization is not None
    assert of_benchmark("llama31_405b", [1e6], division="open").utilization is None
    assert of_benchmark("flux1", [1e3]).utilization is None, "no FLOPs are published"


def test_runs_to_another_target_have_no_score() -> None:
    result = make_result(other_targets=(0.5,), round=None)
    assert result.score_minutes is None and result.score_minutes_scaled is None and result.minutes is not None
    others = [make_result(accelerators=16, other_targets=(0.5,), round=None), make_result(round=None)]
    assert scaling_families([result, *others]) == [] and not group_by_family([result]).results
    with pytest.raises(UsageError, match="no result with a time has this accelerator"):
        compare_accelerators("A100", "H100", [result])
