"""α–β model: properties of any network, and values computed by hand."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podium.planning.prediction.network import Network

NETWORK = Network(
    nodes=4,
    gpus_per_node=8,
    intra_node_bandwidth=200e9,
    inter_node_bandwidth=50e9,
    intra_node_latency=2e-6,
    inter_node_latency=10e-6,
)
SIZES = st.floats(1, 1e10)
networks = st.builds(
    Network,
    nodes=st.integers(1, 512),
    gpus_per_node=st.integers(1, 8),
    intra_node_bandwidth=st.floats(1e9, 1e12),
    inter_node_bandwidth=st.floats(1e9, 1e12),
    intra_node_latency=st.floats(0, 1e-4),
    inter_node_latency=st.floats(0, 1e-4),
)


def test_an_all_reduce_by_hand() -> None:
    hops = 7 * 2e-6 + 2 * 10e-6
    assert NETWORK.reduce_scatter(1e9) == pytest.approx(hops + 31 / 32 * 1e9 / 50e9)
    assert NETWORK.all_reduce(1e9) == pytest.approx(2 * NETWORK.reduce_scatter(1e9))


def test_inside_one_node_the_adapters_do_not_matter() -> None:
    node = replace(NETWORK, nodes=1)
    assert node.all_reduce(1e9) == pytest.approx(2 * (7 * 2e-6 + 7 / 8 * 1e9 / 200e9))
    assert replace(node, inter_node_bandwidth=1.0, inter_node_latency=1.0) != node
    assert replace(node, inter_node_bandwidth=1.0, inter_node_latency=1.0).all_reduce(1e9) == node.all_reduce(1e9)


def test_with_one_gpu_a_node_the_links_inside_do_not_matter() -> None:
    single = replace(NETWORK, gpus_per_node=1)
    assert single.all_reduce(1e9) == replace(single, intra_node_bandwidth=1.0, intra_node_latency=1.0).all_reduce(1e9)


def test_one_gpu_sends_nothing() -> None:
    assert replace(NETWORK, nodes=1, gpus_per_node=1).all_reduce(1e9) == 0


@given(networks, SIZES, st.sampled_from(["intra_node_bandwidth", "inter_node_bandwidth"]), st.floats(1, 10))
@settings(deadline=None, derandomize=True)
def test_a_faster_network_is_never_slower(network: Network, size: float, which: str, times: float) -> None:
    assert replace(network, **{which: times * getattr(network, which)}).all_reduce(size) <= network.all_reduce(size)


@given(networks, SIZES, st.sampled_from(["intra_node_latency", "inter_node_latency"]))
@settings(deadline=None, derandomize=True)
def test_no_latency_is_never_slower(network: Network, size: float, which: str) -> None:
    assert replace(network, **{which: 0.0}).all_reduce(size) <= network.all_reduce(size)
