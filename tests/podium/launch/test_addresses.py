"""Addresses and interfaces of this machine, and validation of the rendezvous on node 0."""

import socket
from collections.abc import Callable
from typing import Any

import pytest

from podium.core.errors import UsageError, WorkError
from podium.launch import addresses
from podium.launch.addresses import address_towards, interface_of, listen_at_rendezvous, node_addresses, resolve


def test_only_addresses_of_this_machine_have_an_interface() -> None:
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("203.0.113.77") is None
    assert interface_of("not an address") is None


def test_every_address_belongs_to_an_existing_interface() -> None:
    found = list(node_addresses())
    assert ("lo", "127.0.0.1") in found
    assert {name for name, _ in found} <= {name for _, name in socket.if_nameindex()}
    assert all(interface_of(address) == name for name, address in found)


def test_source_address_towards_the_loopback() -> None:
    assert address_towards("127.0.0.1", 9) == "127.0.0.1"


@pytest.fixture
def host_names(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make host names resolve to addresses, like /etc/hosts or DNS."""
    whole = socket.getaddrinfo

    def resolve_to(**known: list[str]) -> None:
        def lookup(host: str, *rest: Any, **options: Any) -> Any:
            return [one for name in known.get(host, [host]) for one in whole(name, *rest, **options)]

        monkeypatch.setattr(socket, "getaddrinfo", lookup)

    return resolve_to


@pytest.fixture
def other_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give this node another address besides the loopback's."""
    monkeypatch.setattr(addresses, "node_addresses", lambda: iter([("lo", "127.0.0.1"), ("eth0", "192.0.2.2")]))


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("localhost", "127.0.0.1"), ("node0", "127.0.0.3")],
)
def test_node_0_listens_only_at_its_address(
    host_names: Callable[..., None], monkeypatch: pytest.MonkeyPatch, host: str, expected: str
) -> None:
    """Of the addresses of a host name it takes this node's; a node with only the loopback uses that."""
    if ":" in expected and interface_of(expected) is None:
        pytest.skip("there is no IPv6 here")
    monkeypatch.setattr(addresses, "node_addresses", lambda: iter([("lo", "127.0.0.1")]))
    host_names(node0=["203.0.113.77", "127.0.0.3"], localhost=["127.0.0.1"])
    with listen_at_rendezvous(host, 0) as server:
        assert server.getsockname()[0] == expected
        assert server.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)


@pytest.mark.usefixtures("other_address")
@pytest.mark.parametrize(
    ("host", "match"),
    [
        (
            "node0.invalid",
            r"the host name node0\.invalid does not resolve on this node \(.+\); use a name of node 0",
        ),
        (
            "a" * 64,
            r"the host name a{64} does not resolve on this node \(a part of a host name has 1 to 63 characters\)",
        ),
        ("203.0.113.77", r"203\.0\.113\.77 is not this node, .* addresses are 192\.0\.2\.2 on eth0: give one"),
        ("elsewhere", r"elsewhere \(203\.0\.113\.77, 203\.0\.113\.78\) is not this node, which was started as node 0"),
        (
            "debian",
            r"debian resolves to 127\.0\.1\.1 on node 0 \(see /etc/hosts\), .*; give an address of node 0 \(192\.0",
        ),
        ("0.0.0.0", r"0\.0\.0\.0 is not the address of one node"),
        ("::", r":: is not the address of one node"),
    ],
)
def test_unreachable_rendezvous_is_refused(host_names: Callable[..., None], host: str, match: str) -> None:
    host_names(elsewhere=["203.0.113.77", "203.0.113.78"], debian=["127.0.1.1"])
    with pytest.raises(UsageError, match=rf"^launch\.rendezvous: {match}"):
        listen_at_rendezvous(host, 0)


def test_port_in_use_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(WorkError, match=rf"^launch\.rendezvous: cannot listen on port {port} \(Address"):
            listen_at_rendezvous("127.0.0.1", port)


@pytest.mark.parametrize(("host", "reason"), [("", "it is empty"), ("a b", "."), ("x..y", "1 to 63 characters")])
def test_invalid_host_name_does_not_resolve(host: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        resolve(host)
