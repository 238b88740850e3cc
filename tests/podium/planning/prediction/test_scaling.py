"""The curve over GPU counts: batch sizes, machines, and how it runs."""

from dataclasses import replace

import pytest

from benchmarks.bert.published.reading import read_runs
from podium.core.errors import UsageError
from podium.planning.prediction.constants import load_constants
from podium.planning.prediction.from_config import BETWEEN_NODES
from podium.planning.prediction.memory import needed_bytes
from podium.planning.prediction.plan import HALF, Machine, Plan, published_costs
from podium.planning.prediction.predict import predict
from podium.planning.prediction.published import all_samples, wikipedia
from podium.planning.prediction.samples_to_target import Estimate, curve
from podium.planning.prediction.scaling import LOCAL, machine_of, published_points, scale

CONSTANTS = load_constants()
PLAN = Plan(
    machine=Machine("a100_sxm", 1, 8),
    global_batch_size=448,
    lengths=wikipedia(),
    costs=published_costs("a100_sxm", CONSTANTS),
    samples=Estimate(2.6e6, 2.2e6, 2.9e6),
    strategy="exchanged",
    sharing="slices",
    gradient_bytes=HALF,
)


def test_more_gpus_take_less_time_and_near_what_was_published() -> None:
    rows = scale(PLAN, [8, 64, 1024, 4096], CONSTANTS)
    seconds = [row.prediction.seconds for row in rows]
    assert [row.gpus for row in rows] == [8, 64, 1024, 4096]
    assert seconds == sorted(seconds, reverse=True)
    published = (16.6 * 60, 148.55, 25.3, 12.36)
    for predicted, known in zip(seconds, published, strict=True):
        assert 0.7 * known < predicted < 1.35 * known


def test_the_batch_is_the_fastest_that_is_known() -> None:
    (row,) = scale(PLAN, [64], CONSTANTS)
    assert row.global_batch_size % 64 == 0
    assert 256 <= row.global_batch_size <= 16_416
    assert row.global_batch_size // 64 in LOCAL
    assert row.accumulation_steps == 1
    known = curve(all_samples(read_runs()), "lamb")
    assert known is not None
    plan = replace(PLAN, machine=Machine("a100_sxm", 8, 8, (8, 200.0)))
    tried = {
        64 * local: predict(
            replace(plan, global_batch_size=64 * local, samples=known.at(64 * local)), CONSTANTS
        ).seconds
        for local in LOCAL
        if 64 * local >= 256
    }
    assert row.prediction.seconds == min(tried.values()) == tried[row.global_batch_size]
    assert max(tried.values()) > 1.1 * row.prediction.seconds


def test_few_gpus_accumulate() -> None:
    (row,) = scale(PLAN, [1], CONSTANTS)
    assert (row.global_batch_size, row.accumulation_steps) == (280, 5)


def test_where_memory_is_short_the_fastest_batch_that_fits_is_in_parts() -> None:
    """On GPUs of 16 GB larger batches in parts are faster than the largest ones that fit as a whole."""
    short = replace(PLAN, memory_bytes=16e9)
    (row,) = scale(short, [32], CONSTANTS)
    assert (row.global_batch_size, row.accumulation_steps) == (1792, 2)
    known = curve(all_samples(read_runs()), "lamb")
    assert known is not None

    def plan(local: int, parts: int) -> Plan:
        machine, batch = Machine("a100_sxm", 4, 8, (8, 200.0)), 32 * local
        samples = known.at(batch)
        return replace(short, machine=machine, global_batch_size=batch, accumulation_steps=parts, samples=samples)

    chosen = plan(56, 2)
    assert needed_bytes(chosen) <= 16e9 < needed_bytes(plan(56, 1))
    assert row.prediction.seconds == predict(chosen, CONSTANTS).seconds
    whole = [plan(local, 1) for local in LOCAL if 32 * local >= 256]
    fitting = [predict(one, CONSTANTS).seconds for one in whole if needed_bytes(one) <= 16e9]
    assert fitting and min(fitting) > 1.02 * row.prediction.seconds
    (ample,) = scale(replace(PLAN, memory_bytes=80e9), [32], CONSTANTS)
    assert ample.accumulation_steps == 1


def test_memory_for_no_micro_batch_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--scale: found 8 GPUs of 2 GB, which by an estimate hold no micro-batch"):
        scale(replace(PLAN, memory_bytes=2e9), [8], CONSTANTS)


def test_what_is_assumed_is_said() -> None:
    (eight, many) = scale(PLAN, [8, 64], CONSTANTS)
    assert not [s for s in eight.prediction.unsure if "assumed" in s]
    assert [s for s in many.prediction.unsure if "8 adapters of 200 Gb/s are assumed" in s]
    (known,) = scale(replace(PLAN, machine=Machine("a100_sxm", 8, 8, (4, 200.0))), [64], CONSTANTS)
    assert not [s for s in known.prediction.unsure if "assumed" in s]
    assert known.prediction.seconds > many.prediction.seconds
    (h200,) = scale(replace(PLAN, machine=Machine("h200", 1, 1)), [64], CONSTANTS)
    assert BETWEEN_NODES in h200.prediction.unsure
    assert BETWEEN_NODES not in many.prediction.unsure


def test_machines_are_nodes_of_up_to_eight() -> None:
    assert machine_of(PLAN.machine, 4) == Machine("a100_sxm", 1, 4, (8, 200.0))
    assert machine_of(PLAN.machine, 1368) == Machine("a100_sxm", 171, 8, (8, 200.0))


@pytest.mark.parametrize("gpus", [0, 12, 100])
def test_numbers_that_are_no_whole_nodes_are_refused(gpus: int) -> None:
    with pytest.raises(UsageError, match=rf"--scale: found {gpus} GPUs.*multiples of 8"):
        scale(PLAN, [gpus], CONSTANTS)


def test_a_cpu_and_an_unknown_optimizer_have_no_curve() -> None:
    with pytest.raises(UsageError, match="--scale"):
        scale(replace(PLAN, machine=Machine("cpu", 1, 1)), [8], CONSTANTS)
    with pytest.raises(UsageError, match="sgd"):
        scale(replace(PLAN, optimizer="sgd"), [8], CONSTANTS)


def test_a_strategy_that_can_share_no_batch_says_so() -> None:
    with pytest.raises(UsageError, match=r"16,384 GPUs, which with presorted"):
        scale(replace(PLAN, strategy="presorted"), [16_384], CONSTANTS)


@pytest.mark.parametrize("gpus", [16_424, 131_072])
def test_more_gpus_than_samples_that_are_known_of_are_refused(gpus: int) -> None:
    with pytest.raises(UsageError, match=rf"found {gpus:,} GPUs, .* up to 16,416; ask for fewer"):
        scale(PLAN, [gpus], CONSTANTS)


def test_adam_stays_near_the_batch_it_is_known_at() -> None:
    (row,) = scale(replace(PLAN, optimizer="adamw"), [1024], CONSTANTS)
    assert row.global_batch_size == 16_384


def test_published_points_are_every_system_once() -> None:
    points = published_points()
    assert len(points) == len({point["system"] for point in points}) == 68
    assert {point["fitted"] for point in points} == {True, False}
    largest = max(points, key=lambda point: float(str(point["gpus"])))
    assert largest["seconds"] == pytest.approx(12.3, abs=0.1)
