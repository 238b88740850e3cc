"""The curve over numbers of GPUs: batch sizes, machines, memory and errors."""

from dataclasses import replace

import pytest

from benchmarks.bert.published.reading import read_runs
from podium.core.errors import UsageError
from podium.planning.prediction.constants import load_constants
from podium.planning.prediction.from_config import INTER_NODE_WARNING
from podium.planning.prediction.memory import estimate_memory_bytes
from podium.planning.prediction.plan import HALF_BYTES, Machine, Plan, published_costs
from podium.planning.prediction.predict import predict
from podium.planning.prediction.published import all_samples, wikipedia_lengths
from podium.planning.prediction.samples_to_target import Estimate, fit_curve
from podium.planning.prediction.scaling import (
    MICRO_BATCHES,
    _matching_strata_counts,
    machine_with_gpus,
    predict_scaling,
    published_points,
)

CONSTANTS = load_constants()
PLAN = Plan(
    machine=Machine("a100_sxm", 1, 8),
    global_batch_size=448,
    lengths=wikipedia_lengths(),
    costs=published_costs("a100_sxm", CONSTANTS),
    samples=Estimate(2.6e6, 2.2e6, 2.9e6),
    strategy="exchanged",
    sharding="slices",
    gradient_bytes=HALF_BYTES,
)


def test_time_falls_with_gpus_and_is_near_published_scores() -> None:
    rows = predict_scaling(PLAN, [8, 64, 1024, 4096], CONSTANTS)
    seconds = [row.prediction.seconds for row in rows]
    assert [row.gpus for row in rows] == [8, 64, 1024, 4096]
    assert seconds == sorted(seconds, reverse=True)
    published = (16.6 * 60, 148.55, 25.3, 12.36)
    for predicted, known in zip(seconds, published, strict=True):
        assert 0.7 * known < predicted < 1.35 * known


def test_the_fastest_known_batch_is_chosen() -> None:
    (row,) = predict_scaling(PLAN, [64], CONSTANTS)
    assert row.global_batch_size % 64 == 0
    assert 256 <= row.global_batch_size <= 16_416
    assert row.global_batch_size // 64 in MICRO_BATCHES
    assert row.accumulation_steps == 1
    known = fit_curve(all_samples(read_runs()), "lamb")
    assert known is not None
    plan = replace(PLAN, machine=Machine("a100_sxm", 8, 8, (8, 200.0)))
    tried = {
        64 * local: predict(
            replace(plan, global_batch_size=64 * local, samples=known.estimate(64 * local)), CONSTANTS
        ).seconds
        for local in MICRO_BATCHES
        if 64 * local >= 256
    }
    assert row.prediction.seconds == min(tried.values()) == tried[row.global_batch_size]
    assert max(tried.values()) > 1.1 * row.prediction.seconds


def test_strata_counts_apply_only_to_batches_of_their_size() -> None:
    """Counts for a micro-batch of 12 samples apply to it on 1,368 GPUs; others draw in proportion to the data."""
    plan = replace(PLAN, strategy="presorted", optimizer="adamw", sharding="none", strata_counts=(4, 2, 2, 4))
    (row,) = predict_scaling(plan, [1368], CONSTANTS)
    (other,) = predict_scaling(replace(plan, strata_counts=None), [1368], CONSTANTS)
    assert row.global_batch_size == other.global_batch_size == 16_416
    assert row.prediction.split.compute > 1.05 * other.prediction.split.compute
    assert any("strata_counts [4, 2, 2, 4] are for 12 samples; " in sentence for sentence in row.prediction.unsure)
    assert not any("strata_counts" in sentence for sentence in other.prediction.unsure)
    assert _matching_strata_counts((4, 2, 2, 4), 24) is None


def test_few_gpus_accumulate_gradients() -> None:
    (row,) = predict_scaling(PLAN, [1], CONSTANTS)
    assert (row.global_batch_size, row.accumulation_steps) == (280, 5)


def test_short_memory_is_met_by_gradient_accumulation() -> None:
    """On GPUs of 16 GB larger batches with gradient accumulation are faster than the largest that fit at once."""
    short = replace(PLAN, memory_bytes=16e9)
    (row,) = predict_scaling(short, [32], CONSTANTS)
    assert (row.global_batch_size, row.accumulation_steps) == (1792, 2)
    known = fit_curve(all_samples(read_runs()), "lamb")
    assert known is not None

    def plan(local: int, parts: int) -> Plan:
        machine, batch = Machine("a100_sxm", 4, 8, (8, 200.0)), 32 * local
        samples = known.estimate(batch)
        return replace(short, machine=machine, global_batch_size=batch, accumulation_steps=parts, samples=samples)

    chosen = plan(56, 2)
    assert estimate_memory_bytes(chosen) <= 16e9 < estimate_memory_bytes(plan(56, 1))
    assert row.prediction.seconds == predict(chosen, CONSTANTS).seconds
    whole = [plan(local, 1) for local in MICRO_BATCHES if 32 * local >= 256]
    fitting = [predict(one, CONSTANTS).seconds for one in whole if estimate_memory_bytes(one) <= 16e9]
    assert fitting and min(fitting) > 1.02 * row.prediction.seconds
    (ample,) = predict_scaling(replace(PLAN, memory_bytes=80e9), [32], CONSTANTS)
    assert ample.accumulation_steps == 1


def test_too_little_memory_for_any_micro_batch_is_an_error() -> None:
    with pytest.raises(UsageError, match=r"--scale: found 8 GPUs of 2 GB, by an estimate too little for a micro-batch"):
        predict_scaling(replace(PLAN, memory_bytes=2e9), [8], CONSTANTS)


def test_assumptions_are_reported() -> None:
    (eight, many) = predict_scaling(PLAN, [8, 64], CONSTANTS)
    assert not [s for s in eight.prediction.unsure if "assumed" in s]
    assert [s for s in many.prediction.unsure if "8 adapters of 200 Gb/s are assumed" in s]
    (known,) = predict_scaling(replace(PLAN, machine=Machine("a100_sxm", 8, 8, (4, 200.0))), [64], CONSTANTS)
    assert not [s for s in known.prediction.unsure if "assumed" in s]
    assert known.prediction.seconds > many.prediction.seconds
    (h200,) = predict_scaling(replace(PLAN, machine=Machine("h200", 1, 1)), [64], CONSTANTS)
    assert INTER_NODE_WARNING in h200.prediction.unsure
    assert INTER_NODE_WARNING not in many.prediction.unsure


def test_machines_are_nodes_of_up_to_eight() -> None:
    assert machine_with_gpus(PLAN.machine, 4) == Machine("a100_sxm", 1, 4, (8, 200.0))
    assert machine_with_gpus(PLAN.machine, 1368) == Machine("a100_sxm", 171, 8, (8, 200.0))


@pytest.mark.parametrize("gpus", [0, 12, 100])
def test_partial_nodes_are_refused(gpus: int) -> None:
    with pytest.raises(UsageError, match=rf"--scale: found {gpus} GPUs.*multiples of 8"):
        predict_scaling(PLAN, [gpus], CONSTANTS)


def test_a_cpu_and_an_unknown_optimizer_have_no_curve() -> None:
    with pytest.raises(UsageError, match="--scale"):
        predict_scaling(replace(PLAN, machine=Machine("cpu", 1, 1)), [8], CONSTANTS)
    with pytest.raises(UsageError, match="sgd"):
        predict_scaling(replace(PLAN, optimizer="sgd"), [8], CONSTANTS)


def test_strategy_that_cannot_share_any_batch_is_an_error() -> None:
    with pytest.raises(UsageError, match=r"16,384 GPUs, too many with presorted balancing"):
        predict_scaling(replace(PLAN, strategy="presorted"), [16_384], CONSTANTS)


@pytest.mark.parametrize("gpus", [16_424, 131_072])
def test_more_gpus_than_the_largest_known_batch_are_refused(gpus: int) -> None:
    with pytest.raises(UsageError, match=rf"found {gpus:,} GPUs, .* up to 16,416; use fewer GPUs"):
        predict_scaling(PLAN, [gpus], CONSTANTS)


def test_adam_uses_batches_near_its_known_batch_size() -> None:
    (row,) = predict_scaling(replace(PLAN, optimizer="adamw"), [1024], CONSTANTS)
    assert row.global_batch_size == 16_384


def test_published_points_are_every_system_once() -> None:
    points = published_points()
    assert len(points) == len({point["system"] for point in points}) == 68
    assert {point["fitted"] for point in points} == {True, False}
    largest = max(points, key=lambda point: float(str(point["gpus"])))
    assert largest["seconds"] == pytest.approx(12.3, abs=0.1)
