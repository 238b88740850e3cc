"""From a plan to a time: what must hold of any prediction, and single terms worked out by hand."""

from dataclasses import asdict, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.bert.sizes import LARGE, TINY
from podium.planning.costs import StepCosts
from podium.planning.prediction.constants import load_constants
from podium.planning.prediction.network import Network, buckets, exposed
from podium.planning.prediction.plan import Machine, Plan, optimizer_seconds, published_costs
from podium.planning.prediction.predict import evaluation_seconds, network_of, predict, step_of
from podium.planning.prediction.published import wikipedia
from podium.planning.prediction.rank_load import load
from podium.planning.prediction.samples_to_target import Estimate

CONSTANTS = load_constants()
PARAMETERS = 336_226_108
PLAN = Plan(
    machine=Machine("a100_sxm", 8, 8, (8, 200.0)),
    global_batch_size=3072,
    lengths=wikipedia(),
    costs=published_costs("a100_sxm", CONSTANTS),
    samples=Estimate(3e6, 2.7e6, 3.5e6, ("a guess",)),
    unsure=("a doubt",),
)
FREE = Network(8, 8, inside=float("inf"), between=float("inf"), hop_inside=0.0, hop_between=0.0)

plans = st.builds(
    lambda machine, local, accumulation, strategy, optimizer, sharing, gradient_bytes: replace(
        PLAN,
        machine=machine,
        global_batch_size=machine.ranks * local * accumulation,
        accumulation_steps=accumulation,
        strategy=strategy,
        optimizer=optimizer,
        sharing=sharing,
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
    sharing=st.sampled_from(["none", "slices", "whole_tensors"]),
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
    network = network_of(plan, CONSTANTS)
    faster = replace(network, inside=times * network.inside, between=times * network.between)
    assert step_of(plan, faster, CONSTANTS).seconds <= step_of(plan, network, CONSTANTS).seconds * (1 + 1e-12)


@given(plans)
@settings(max_examples=30, deadline=None, derandomize=True)
def test_a_network_that_costs_nothing_exposes_nothing(plan: Plan) -> None:
    assert step_of(plan, FREE, CONSTANTS).communication == 0


@pytest.mark.parametrize("strategy", ["padded", "random", "exchanged", "indexed"])
def test_more_gpus_never_lengthen_compute_at_the_same_batch(strategy: str) -> None:
    compute = [
        predict(replace(PLAN, machine=Machine("a100_sxm", nodes, 8), strategy=strategy), CONSTANTS).split.compute
        for nodes in (1, 2, 4, 8, 16, 32)
    ]
    assert compute == sorted(compute, reverse=True)


def test_a_step_by_hand() -> None:
    network = network_of(PLAN, CONSTANTS)
    step = step_of(PLAN, network, CONSTANTS)
    samples = load(PLAN)
    assert step.compute == pytest.approx(samples.mean + CONSTANTS.micro_batch_seconds)
    assert step.imbalance == pytest.approx(samples.slowest - samples.mean)
    assert step.optimizer == pytest.approx(42 * PARAMETERS / (2.039e12 * 0.8))
    count = buckets(4 * PARAMETERS)
    assert count == 52
    reduced = network.all_reduce(4 * PARAMETERS / count)
    assert step.communication == pytest.approx(exposed(count, reduced, step.compute * 2 / 3))


def test_an_optimizer_shared_in_slices_gathers_values_and_updates_its_share() -> None:
    plan, network = replace(PLAN, sharing="slices", gradient_bytes=2), network_of(PLAN, CONSTANTS)
    step = step_of(plan, network, CONSTANTS)
    hidden = exposed(26, network.reduce_scatter(2 * PARAMETERS / 26), step.compute * 2 / 3)
    assert step.communication == pytest.approx(hidden + network.reduce_scatter(2 * PARAMETERS))
    assert optimizer_seconds(plan, CONSTANTS) == pytest.approx(optimizer_seconds(PLAN, CONSTANTS) / 64)


def test_an_optimizer_shared_by_whole_tensors_sends_each_from_its_owner() -> None:
    plan, network = replace(PLAN, sharing="whole_tensors"), network_of(PLAN, CONSTANTS)
    matrices = 24 * 12 * 1024**2 + (30_522 + 512 + 1 + 1) * 1024 + 2 * 1024**2 - 2 * 1024
    assert sum(plan.shared_tensors) == matrices
    assert max(plan.shared_tensors) == 30_522 * 1024
    step, unshared = (step_of(one, network, CONSTANTS) for one in (plan, PLAN))
    hops = 24 * 4 + 4  # tensors of a layer: q, k and v together, output, up, down; word and position embeddings, two
    assert len(plan.shared_tensors) == hops
    sent = hops * (7 * CONSTANTS.hop_inside + 3 * CONSTANTS.hop_between) + 4 * matrices / network.between
    assert step.communication == pytest.approx(unshared.communication + sent)
    largest = (30_522 * 1024 + PARAMETERS - matrices) / PARAMETERS
    assert step.optimizer == pytest.approx(largest * unshared.optimizer, rel=1e-6)


def test_with_accumulation_only_the_last_micro_batch_hides_communication() -> None:
    slow = replace(network_of(PLAN, CONSTANTS), between=10e9)
    one, four = (step_of(replace(PLAN, accumulation_steps=n), slow, CONSTANTS) for n in (1, 4))
    assert four.communication > one.communication + 0.05
    assert four.compute == pytest.approx(one.compute + 3 * CONSTANTS.micro_batch_seconds)


def test_adapters_are_in_series_with_the_way_to_them() -> None:
    network = network_of(PLAN, CONSTANTS)
    assert 1 / network.between == pytest.approx(1 / 200e9 + 1 / CONSTANTS.host_path_switched)
    assert network.inside == pytest.approx(0.75 * 300e9)
    four = network_of(replace(PLAN, machine=Machine("a100_pcie", 2, 4, (1, 100.0))), CONSTANTS)
    assert 1 / four.between == pytest.approx(1 / 12.5e9 + 1 / CONSTANTS.host_path_direct)
    assert network_of(replace(PLAN, machine=Machine("a100_sxm", 8, 8)), CONSTANTS).between == network.between


def test_evaluations_come_after_whole_steps() -> None:
    assert PLAN.samples_between_evaluations == 175_104
    assert replace(PLAN, evaluation_interval=3072).samples_between_evaluations == 3072
    one = evaluation_seconds(PLAN, CONSTANTS)
    samples = load(PLAN).slowest / 48
    assert one == pytest.approx((157 * samples + 3 * CONSTANTS.micro_batch_seconds) / 3, rel=1e-4)
    assert predict(PLAN, CONSTANTS).split.evaluation == pytest.approx(one * 3e6 / 175_104)


def test_the_interval_is_of_samples_and_of_the_rate() -> None:
    plan = replace(PLAN, costs=replace(PLAN.costs, median_relative_error=0.1), start_seconds=2.0)
    prediction = predict(plan, CONSTANTS)
    going = prediction.seconds - 2
    assert prediction.split.data == 2
    assert prediction.low == pytest.approx(2 + going * 0.9 / 1.1)
    assert prediction.high == pytest.approx(2 + going * 3.5 / 3 * 1.1)


def test_the_start_is_that_of_published_systems() -> None:
    starts = [CONSTANTS.start_seconds(ranks) for ranks in (1, 8, 64, 256, 1024, 4096)]
    assert starts[:3] == [2.68, 2.68, 2.2]
    assert starts[3] == pytest.approx((2.2 + 0.81) / 2)
    assert starts[4:] == [0.81, 0.81]
    assert predict(PLAN, CONSTANTS).split.data == 2.2


def test_a_number_of_samples_takes_the_place_of_the_target() -> None:
    whole, half = predict(PLAN, CONSTANTS), predict(PLAN, CONSTANTS, 1.5e6)
    assert half.samples_to_target == 1.5e6
    assert half.split.compute == pytest.approx(whole.split.compute / 2)
    assert half.split.data == whole.split.data
    assert whole.sequences_per_second == pytest.approx(3e6 / whole.seconds)
    assert whole.unsure == ("a doubt", "a guess")


def test_published_costs_are_flops_by_the_rate() -> None:
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


def test_costs_as_measured_are_taken_as_they_are() -> None:
    plan = replace(PLAN, costs=StepCosts(0.5, 0, 0, 0, 0), machine=Machine("a100_sxm", 1, 1), start_seconds=0.0)
    step = step_of(plan, network_of(plan, CONSTANTS), CONSTANTS)
    assert (step.compute, step.imbalance, step.communication) == (0.5, 0.0, 0.0)
