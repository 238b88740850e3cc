"""Addresses and interfaces of this machine."""

import socket

from podium.config import RunFolder
from podium.launching.node import Node, address_towards, interface_of


def test_the_loopback_and_foreign_addresses_have_no_interface() -> None:
    assert interface_of("127.0.0.1") is None
    assert interface_of("203.0.113.77") is None
    assert interface_of("not an address") is None


def test_an_address_of_this_machine_has_one_that_exists() -> None:
    addresses = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
    found = {interface_of(str(address)) for address in addresses} - {None}
    assert found <= {name for _, name in socket.if_nameindex()}


def test_a_machine_reaches_itself_from_its_own_address() -> None:
    assert address_towards("127.0.0.1", 9) == "127.0.0.1"


def test_what_a_node_prints_is_beside_what_the_first_prints(run_folder: RunFolder) -> None:
    assert Node(0, "h").output(run_folder) == run_folder.output
    assert Node(3, "h").output(run_folder) == run_folder.path / "output_3.txt"
