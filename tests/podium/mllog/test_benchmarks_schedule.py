"""The evaluation schedules of the rules, as most published logs of rounds 5.0 and 5.1 have them."""

import pytest

from podium.mllog.benchmarks import Target, benchmarks


@pytest.mark.parametrize(
    ("benchmark", "round_name", "batch", "first", "interval"),
    [
        ("llama2_70b_lora", "v5.1", 8, 1_536, 384),
        ("llama2_70b_lora", "v5.1", 9, 1_548, 387),
        ("llama2_70b_lora", "v5.1", 72, 5_184, 432),
        ("llama31_405b", "v5.0", 1_152, 46_080, 46_080),
        ("llama31_405b", "v5.1", 1_152, 276_480, 18_432),
        ("llama31_405b", "v5.1", 1_280, 307_200, 19_200),
        ("llama31_8b", "v5.1", 36, 12_312, 12_312),
        ("flux1", "v5.1", 2_304, 262_656, 262_656),
    ],
)
def test_evaluations_come_after_whole_batches(
    benchmark: str, round_name: str, batch: int, first: int, interval: int
) -> None:
    schedule = benchmarks()[benchmark].evaluation_interval_in(round_name)
    assert schedule is not None
    assert (schedule.first(batch), schedule.interval(batch)) == (first, interval)


def test_a_schedule_is_unknown_before_its_first_round() -> None:
    assert benchmarks()["ssd"].evaluation_interval_in("v1.1") is None
    assert benchmarks()["bert"].evaluation_interval_in("v5.0") is None


def test_values_beyond_the_other_bound_are_not_counted() -> None:
    loss = Target("loss", at_most=3.3, more_than=0)
    assert loss.is_beyond_bounds(0.0) and not loss.is_beyond_bounds(0.1) and loss.bounds == "0 < loss ≤ 3.3"
    accuracy = Target("accuracy", at_least=0.72, less_than=1)
    assert accuracy.is_beyond_bounds(1.0) and not accuracy.is_beyond_bounds(0.9)
    assert accuracy.bounds == "accuracy ≥ 0.72 and < 1"
