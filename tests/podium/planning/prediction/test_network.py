"""The α–β model: what must hold of any network, and figures worked out by hand."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podium.planning.prediction.network import BUCKET_BYTES, Network, buckets, exposed

NETWORK = Network(nodes=4, gpus_per_node=8, inside=200e9, between=50e9, hop_inside=2e-6, hop_between=10e-6)
SIZES = st.floats(1, 1e10)
SECONDS = st.floats(0, 10)
networks = st.builds(
    Network,
    nodes=st.integers(1, 512),
    gpus_per_node=st.integers(1, 8),
    inside=st.floats(1e9, 1e12),
    between=st.floats(1e9, 1e12),
    hop_inside=st.floats(0, 1e-4),
    hop_between=st.floats(0, 1e-4),
)


def test_an_all_reduce_by_hand() -> None:
    hops = 7 * 2e-6 + 2 * 10e-6
    assert NETWORK.reduce_scatter(1e9) == pytest.approx(hops + 31 / 32 * 1e9 / 50e9)
    assert NETWORK.all_reduce(1e9) == pytest.approx(2 * NETWORK.reduce_scatter(1e9))


def test_inside_one_node_the_adapters_do_not_matter() -> None:
    node = replace(NETWORK, nodes=1)
    assert node.all_reduce(1e9) == pytest.approx(2 * (7 * 2e-6 + 7 / 8 * 1e9 / 200e9))
    assert replace(node, between=1.0, hop_between=1.0) != node
    assert replace(node, between=1.0, hop_between=1.0).all_reduce(1e9) == node.all_reduce(1e9)


def test_with_one_gpu_a_node_the_links_inside_do_not_matter() -> None:
    single = replace(NETWORK, gpus_per_node=1)
    assert single.all_reduce(1e9) == replace(single, inside=1.0, hop_inside=1.0).all_reduce(1e9)


def test_one_gpu_sends_nothing() -> None:
    assert replace(NETWORK, nodes=1, gpus_per_node=1).all_reduce(1e9) == 0


@given(networks, SIZES, st.sampled_from(["inside", "between"]), st.floats(1, 10))
@settings(deadline=None, derandomize=True)
def test_a_faster_network_is_never_slower(network: Network, size: float, which: str, times: float) -> None:
    assert replace(network, **{which: times * getattr(network, which)}).all_reduce(size) <= network.all_reduce(size)


@given(networks, SIZES, st.sampled_from(["hop_inside", "hop_between"]))
@settings(deadline=None, derandomize=True)
def test_no_latency_is_never_slower(network: Network, size: float, which: str) -> None:
    assert replace(network, **{which: 0.0}).all_reduce(size) <= network.all_reduce(size)


def test_buckets_are_25_mib() -> None:
    assert buckets(BUCKET_BYTES) == 1
    assert buckets(BUCKET_BYTES + 1) == 2
    assert buckets(2 * 336_226_108) == 26


def simulated(count: int, bucket_seconds: float, backward_seconds: float) -> float:
    """One bucket after the other, as they come."""
    free = 0.0
    for number in range(count):
        full = backward_seconds * (number + 1) / count
        free = max(free, full) + bucket_seconds
    return free - backward_seconds


@given(st.integers(1, 40), SECONDS, SECONDS)
@settings(deadline=None, derandomize=True)
def test_exposed_is_what_a_queue_of_buckets_leaves(count: int, bucket_seconds: float, backward: float) -> None:
    expected = simulated(count, bucket_seconds, backward)
    assert exposed(count, bucket_seconds, backward) == pytest.approx(expected, abs=1e-9)


def test_a_network_that_costs_nothing_exposes_nothing() -> None:
    assert exposed(26, 0.0, 0.1) == 0
    assert exposed(26, 0.0, 0.0) == 0


def test_backward_hides_all_but_the_last_bucket_where_it_can() -> None:
    assert exposed(10, 0.001, 1.0) == pytest.approx(0.001)
    assert exposed(10, 1.0, 0.0) == pytest.approx(10.0)
