"""Predictions: properties of any plan, and single terms computed by hand."""

from collections.abc import Callable
from dataclasses import asdict, replace
from math import exp

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.bert.sizes import LARGE, TINY
from podium.planning.costs import StepCosts
from podium.planning.prediction.buckets import backward_gradients, exposed_seconds, fill_buckets
from podium.planning.prediction.constants import load_constants
from podium.planning.prediction.network import Network
from podium.planning.prediction.plan import (
    CLIPPING_BYTES,
    Lengths,
    Machine,
    Plan,
    counted_costs,
    optimizer_seconds,
    published_costs,
)
from podium.planning.prediction.predict import build_network, evaluation_seconds, predict, predict_step
from podium.planning.prediction.published import wikipedia_lengths
from podium.planning.prediction.rank_load import compute_load
from podium.planning.prediction.samples_to_target import Estimate

CONSTANTS = load_constants()
PARAMETERS = 336_226_108
PLAN = Plan(
    machine=Machine("a100_sxm", 8, 8, (8, 200.0)),
    global_batch_size=3072,
    lengths=wikipedia_lengths(),
    costs=published_costs("a100_sxm", CONSTANTS),
    samples=Estimate(3e6, 2.7e6, 3.5e6, ("a guess",)),
    unsure=("a doubt",),
)
FREE = Network(
    8,
    8,
    intra_node_bandwidth=float("inf"),
    inter_node_bandwidth=float("inf"),
    intra_node_latency=0.0,
    inter_node_latency=0.0,
)

plans = st.builds(
    lambda machine, local, accumulation, strategy, optimizer, sharding, gradient_bytes: replace(
        PLAN,
        machine=machine,
        global_batch_size=machine.ranks * local * accumulation,
        accumulation_steps=accumulation,
        strategy=strategy,
        optimizer=optimizer,
        sharding=sharding,
        gradient_bytes=gradient_bytes,
    ),
    machine=st.builds(
        Machine,
        st.sampled_from(["a100_sxm", "a100_pcie", "h200"]),
        st.sampled_from([1, 2, 16]),
        st.sampled_from([1, 4, 8]),
        st.sampled_from([None, (1, 100.0), (8, 400.0)]),
    ),
    local=st.sampled_from([4, 16]),
    accumulation=st.sampled_from([1, 2]),
    strategy=st.sampled_from(["padded", "random", "exchanged", "indexed"]),
    optimizer=st.sampled_from(["lamb", "adamw"]),
    sharding=st.sampled_from(["none", "slices", "whole_tensors"]),
    gradient_bytes=st.sampled_from([2, 4]),
)


@given(plans)
@settings(max_examples=30, deadline=None, derandomize=True)
def test_parts_are_not_negative_and_sum_to_the_whole_between_low_and_high(plan: Plan) -> None:
    prediction = predict(plan, CONSTANTS)
    parts = asdict(prediction.split).values()
    assert min(parts) >= 0
    assert sum(parts) == pytest.approx(prediction.seconds)
    assert 0 < prediction.low <= prediction.seconds <= prediction.high
    training = prediction.seconds - prediction.split.evaluation - prediction.split.data
    assert prediction.step_milliseconds == pytest.approx(1000 * training / (3e6 / plan.global_batch_size))


@given(plans, st.floats(1, 20))
@settings(max_examples=30, deadline=None, derandomize=True)
def test_a_faster_network_is_never_slower(plan: Plan, times: float) -> None:
    network = build_network(plan, CONSTANTS)
    faster = replace(
        network,
        intra_node_bandwidth=times * network.intra_node_bandwidth,
        inter_node_bandwidth=times * network.inter_node_bandwidth,
    )
    assert predict_step(plan, faster, CONSTANTS).seconds <= predict_step(plan, network, CONSTANTS).seconds * (1 + 1e-12)


@given(plans)
@settings(max_examples=30, deadline=None, derandomize=True)
def test_free_network_exposes_no_communication(plan: Plan) -> None:
    assert predict_step(plan, FREE, CONSTANTS).communication == 0


@pytest.mark.parametrize("strategy", ["padded", "random", "exchanged", "indexed"])
def test_more_gpus_never_lengthen_compute_at_the_same_batch(strategy: str) -> None:
    compute = [
        predict(replace(PLAN, machine=Machine("a100_sxm", nodes, 8), strategy=strategy), CONSTANTS).split.compute
        for nodes in (1, 2, 4, 8, 16, 32)
    ]
    assert compute == sorted(compute, reverse=True)


def expected_exposed_seconds(network: Network, wire: int, backward: float, reduce: Callable[[float], float]) -> float:
    """Return the exposed seconds of PyTorch's default buckets."""
    buckets = fill_buckets(backward_gradients(LARGE, float(wikipedia_lengths().means[0])), wire)
    assert len(buckets) == 38
    return exposed_seconds([b.ready for b in buckets], [reduce(b.size) for b in buckets], backward)


def test_a_step_by_hand() -> None:
    network = build_network(PLAN, CONSTANTS)
    step = predict_step(PLAN, network, CONSTANTS)
    samples = compute_load(PLAN)
    assert step.compute == pytest.approx(samples.mean + CONSTANTS.micro_batch_seconds)
    assert step.imbalance == pytest.approx(samples.slowest - samples.mean)
    assert step.optimizer == pytest.approx(42 * PARAMETERS / (2.039e12 * 0.8))
    assert step.communication == pytest.approx(
        expected_exposed_seconds(network, 4, step.compute * 2 / 3, network.all_reduce)
    )


def test_optimizer_sharded_in_slices_gathers_values_and_updates_one_share() -> None:
    plan, network = replace(PLAN, sharding="slices", gradient_bytes=2), build_network(PLAN, CONSTANTS)
    step = predict_step(plan, network, CONSTANTS)
    sent = expected_exposed_seconds(network, 2, step.compute * 2 / 3, network.reduce_scatter)
    assert step.communication == pytest.approx(sent + network.reduce_scatter(2 * PARAMETERS))
    assert optimizer_seconds(plan, CONSTANTS) == pytest.approx(optimizer_seconds(PLAN, CONSTANTS) / 64)


def test_optimizer_sharded_by_whole_tensors_broadcasts_each_from_its_owner() -> None:
    plan, network = replace(PLAN, sharding="whole_tensors"), build_network(PLAN, CONSTANTS)
    matrices = 24 * 12 * 1024**2 + (30_522 + 512 + 1 + 1) * 1024 + 2 * 1024**2 - 2 * 1024
    assert sum(plan.sharded_tensors) == matrices
    assert max(plan.sharded_tensors) == 30_522 * 1024
    step, unshared = (predict_step(one, network, CONSTANTS) for one in (plan, PLAN))
    hops = 24 * 4 + 4  # tensors of a layer: q, k and v together, output, up, down; word and position embeddings, two
    assert len(plan.sharded_tensors) == hops
    sent = hops * (7 * CONSTANTS.hop_inside + 3 * CONSTANTS.hop_between) + 4 * matrices / network.inter_node_bandwidth
    assert step.communication == pytest.approx(unshared.communication + sent)
    largest = (30_522 * 1024 + PARAMETERS - matrices) / PARAMETERS
    assert step.optimizer == pytest.approx(largest * unshared.optimizer, rel=1e-6)


def test_with_accumulation_only_the_last_micro_batch_hides_communication() -> None:
    slow = replace(build_network(PLAN, CONSTANTS), inter_node_bandwidth=10e9)
    one, four = (predict_step(replace(PLAN, accumulation_steps=n), slow, CONSTANTS) for n in (1, 4))
    assert four.communication > one.communication + 0.05
    assert four.compute == pytest.approx(one.compute + 3 * CONSTANTS.micro_batch_seconds)


def test_adapters_are_in_series_with_the_host_path() -> None:
    network = build_network(PLAN, CONSTANTS)
    assert 1 / network.inter_node_bandwidth == pytest.approx(1 / 200e9 + 1 / CONSTANTS.host_path_switched)
    assert network.intra_node_bandwidth == pytest.approx(0.75 * 300e9)
    four = build_network(replace(PLAN, machine=Machine("a100_pcie", 2, 4, (1, 100.0))), CONSTANTS)
    assert 1 / four.inter_node_bandwidth == pytest.approx(1 / 12.5e9 + 1 / CONSTANTS.host_path_direct)
    assert (
        build_network(replace(PLAN, machine=Machine("a100_sxm", 8, 8)), CONSTANTS).inter_node_bandwidth
        == network.inter_node_bandwidth
    )


def test_evaluations_come_after_whole_steps() -> None:
    assert PLAN.samples_between_evaluations == 175_104
    assert replace(PLAN, evaluation_interval=3072).samples_between_evaluations == 3072
    one = evaluation_seconds(PLAN, CONSTANTS)
    samples = compute_load(PLAN).slowest / 48
    assert one == pytest.approx((157 * samples + 3 * CONSTANTS.micro_batch_seconds) / 3, rel=1e-4)
    assert predict(PLAN, CONSTANTS).split.evaluation == pytest.approx(one * 3e6 / 175_104)


def test_interval_of_measured_steps_combines_samples_and_rate_error() -> None:
    plan = replace(PLAN, costs=replace(PLAN.costs, median_relative_error=0.1), start_seconds=2.0, code="measured")
    prediction = predict(plan, CONSTANTS)
    running = prediction.seconds - 2
    assert prediction.split.data == 2
    assert prediction.low == pytest.approx(2 + running * 0.9 / 1.1)
    assert prediction.high == pytest.approx(2 + running * 3.5 / 3 * 1.1)


def test_start_seconds_interpolate_published_systems() -> None:
    starts = [CONSTANTS.start_seconds(ranks) for ranks in (1, 8, 64, 256, 1024, 4096)]
    assert starts[:3] == [2.68, 2.68, 2.2]
    assert starts[3] == pytest.approx((2.2 + 0.81) / 2)
    assert starts[4:] == [0.81, 0.81]
    assert predict(PLAN, CONSTANTS).split.data == 2.2


def test_number_of_samples_replaces_the_target() -> None:
    whole, half = predict(PLAN, CONSTANTS), predict(PLAN, CONSTANTS, 1.5e6)
    assert half.samples_to_target == 1.5e6
    assert half.split.compute == pytest.approx(whole.split.compute / 2)
    assert half.split.data == whole.split.data
    assert whole.sequences_per_second == pytest.approx(3e6 / whole.seconds)
    assert whole.unsure == ("a doubt", "a guess")


def test_published_costs_are_flops_over_the_rate() -> None:
    costs = published_costs("a100_sxm", CONSTANTS)
    lengths, masked = [100, 250, 512], 130
    seconds = costs.token * 862 + costs.pair * sum(n * n for n in lengths) + costs.masked * 130 + costs.sequence * 3
    flops = LARGE.training_flops(lengths, masked, 30_522)
    assert seconds == pytest.approx(flops / CONSTANTS.sustained_flops_sxm)
    needed = published_costs("a100_sxm", CONSTANTS, last_layer="needed")
    assert needed.token < costs.token
    assert needed.masked > costs.masked


def test_a_size_has_its_own_vocabulary() -> None:
    masked = published_costs("h200", CONSTANTS, TINY).masked / published_costs("h200", CONSTANTS).masked
    assert masked == pytest.approx(TINY.training_flops([], 1, 512) / LARGE.training_flops([], 1, 30_522))


def test_other_gpus_sustain_the_same_share_of_their_peak() -> None:
    a100, pcie, h200 = (published_costs(name, CONSTANTS) for name in ("a100_sxm", "a100_pcie", "h200"))
    assert h200.token == pytest.approx(a100.token * 312 / 989)
    assert pcie.token / a100.token == pytest.approx(CONSTANTS.sustained_flops_sxm / CONSTANTS.sustained_flops_pcie)


def test_measured_costs_are_used_unchanged() -> None:
    plan = replace(PLAN, costs=StepCosts(0.5, 0, 0, 0, 0), machine=Machine("a100_sxm", 1, 1), start_seconds=0.0)
    step = predict_step(plan, build_network(plan, CONSTANTS), CONSTANTS)
    assert (step.compute, step.imbalance, step.communication) == (0.5, 0.0, 0.0)


def test_interval_equals_the_back_test_errors() -> None:
    plan = replace(PLAN, samples=Estimate(3e6, 2.99e6, 3.01e6))
    (error_interval,) = (
        m for m in CONSTANTS.error_intervals if (m.code, m.gpus, m.of) == ("fitted", "large", "seconds")
    )
    prediction = predict(plan, CONSTANTS)
    assert prediction.low == pytest.approx(prediction.seconds * exp(error_interval.low))
    assert prediction.high == pytest.approx(prediction.seconds * exp(error_interval.high))
    assert (prediction.interval.coverage, prediction.interval.systems) == (0.9, error_interval.systems)
    other = predict(replace(plan, code="other"), CONSTANTS)
    assert other.interval.coverage is None
    assert other.high > 1.8 * other.seconds
    assert other.low == pytest.approx(prediction.low)
    guessed = replace(plan, code="other", costs=replace(plan.costs, median_relative_error=0.3))
    assert predict(guessed, CONSTANTS).high == pytest.approx(1.3 * other.high)
    extrapolated = replace(plan, samples=replace(plan.samples, extrapolation=0.5))
    assert predict(extrapolated, CONSTANTS).high == pytest.approx(1.5 * prediction.high)


def test_known_number_of_samples_uses_the_rate_interval() -> None:
    exact = predict(replace(PLAN, samples=Estimate(3e6, 3e6, 3e6)), CONSTANTS)
    (error_interval,) = (m for m in CONSTANTS.error_intervals if (m.code, m.gpus, m.of) == ("fitted", "large", "rate"))
    assert exact.high == pytest.approx(exact.seconds * exp(error_interval.high))


def test_clipping_time_decides_what_overlaps() -> None:
    network = replace(build_network(PLAN, CONSTANTS), inter_node_bandwidth=20e9)
    none, after, before, bucket = (
        predict_step(replace(PLAN, clipping=when), network, CONSTANTS) for when in (None, "after", "before", "bucket")
    )
    clipping = CLIPPING_BYTES * PARAMETERS / (2.039e12 * 0.8)
    for step in (after, before, bucket):
        assert step.optimizer == pytest.approx(none.optimizer + clipping)
    assert after.communication == pytest.approx(none.communication)
    buckets = fill_buckets(backward_gradients(LARGE, float(wikipedia_lengths().means[0])), 4)
    assert before.communication == pytest.approx(sum(network.all_reduce(b.size) for b in buckets))
    assert none.communication - clipping <= bucket.communication < none.communication < before.communication


def test_larger_buckets_hide_less_and_smaller_ones_cost_hops() -> None:
    network = build_network(PLAN, CONSTANTS)
    found = {
        mib: predict_step(replace(PLAN, bucket_mib=mib, gradient_bytes=2), network, CONSTANTS).communication
        for mib in (1, 25, 400)
    }
    assert found[25] < found[400]
    slow = replace(network, inter_node_latency=1e-3)
    hops = [
        predict_step(replace(PLAN, bucket_mib=mib, gradient_bytes=2), slow, CONSTANTS).communication for mib in (1, 25)
    ]
    assert hops[0] > hops[1]


def test_phases_use_their_lengths() -> None:
    tokens, masked = wikipedia_lengths().tokens, wikipedia_lengths().masked
    few = np.flatnonzero(tokens <= 128)
    short = Lengths(tokens[few], masked[few], 128)
    plan = replace(PLAN, strategy="padded")
    whole = predict(plan, CONSTANTS)
    phased = predict(replace(plan, phases=((1_500_000, short),)), CONSTANTS)
    first = -(-1_500_000 // 3072) * 3072
    ratio = compute_load(replace(plan, lengths=short)).mean / compute_load(plan).mean
    assert ratio < 0.25
    steps = 3e6 / 3072
    expected = whole.split.compute - first / 3072 * compute_load(plan).mean * (1 - ratio)
    assert phased.split.compute == pytest.approx(expected)
    assert phased.step_milliseconds == pytest.approx(
        1000 * (phased.seconds - phased.split.evaluation - phased.split.data) / steps
    )
    all_short = predict(replace(plan, phases=((9_000_000, short),)), CONSTANTS)
    assert all_short.split.compute == pytest.approx(
        steps * (CONSTANTS.micro_batch_seconds + compute_load(plan).mean * ratio)
    )


def test_counted_costs_reproduce_the_counted_step() -> None:
    costs = counted_costs("h200", CONSTANTS, wikipedia_lengths(), last_layer="needed")
    seconds = costs.seconds(np.array([0]), 0) - costs.sequence  # the passes over all parameters
    assert seconds == pytest.approx(0.013)
    means = 56 * wikipedia_lengths().means
    step = costs.step + means @ (costs.token, costs.pair, costs.masked, costs.sequence)
    assert step == pytest.approx(0.087)
    slower = counted_costs("t4", CONSTANTS, wikipedia_lengths(), last_layer="needed")
    assert slower.pair / costs.pair == pytest.approx(989 / 65)
    assert slower.masked / costs.masked == pytest.approx(4.8e12 / 320e9)


def test_interval_includes_the_counted_step() -> None:
    plan = replace(PLAN, code="other", counted=counted_costs("a100_sxm", CONSTANTS, wikipedia_lengths()))
    prediction = predict(plan, CONSTANTS)
    assert prediction.as_counted is not None
    assert prediction.seconds < prediction.as_counted < prediction.high
    ten = replace(plan, counted=replace(plan.counted, step=10.0))  # type: ignore[type-var]
    slow = predict(ten, CONSTANTS)
    assert slow.high == slow.as_counted > 10 * 3e6 / 3072
    assert predict(PLAN, CONSTANTS).as_counted is None


def test_fp32_uses_the_fp32_peak() -> None:
    half, full = (published_costs("t4", CONSTANTS, fp32=fp32) for fp32 in (False, True))
    assert full.token / half.token == pytest.approx(65 / 8.1)
