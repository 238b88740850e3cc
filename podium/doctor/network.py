"""Checks of host names: this machine's own, and the one at which several nodes meet."""

import socket
from collections.abc import Iterable

from podium.config.schema import RunConfig
from podium.core.errors import PodiumError
from podium.core.finding import Finding, Severity, check_result
from podium.core.text import printable
from podium.doctor.context import Examination, Lookup
from podium.launch.addresses import listen_at_rendezvous, resolve
from podium.launch.node_group import rendezvous_address


def look_up_host() -> Lookup:
    """This machine's host name, as it resolves here."""
    name = printable(socket.gethostname())
    try:
        return Lookup(name, ", ".join(resolve(name)))
    except ValueError as reason:
        return Lookup(name, "", str(reason))


def look_up_rendezvous(config: RunConfig) -> Lookup | None:
    """launch.rendezvous as node 0, with its address if that is this node's; None where a node needs no other."""
    if config.launch.nodes == 1:
        return None
    named = f"launch.rendezvous={config.launch.rendezvous}"
    try:
        host, _ = rendezvous_address(config)
        with listen_at_rendezvous(host, 0) as server:  # the port itself is what the nodes meet at
            return Lookup(named, str(server.getsockname()[0]))
    except PodiumError as error:
        return Lookup(named, "", str(error))


def check_host_name(examination: Examination) -> Iterable[Finding]:
    """A single node's processes meet without it; those of several nodes may look each other up by it."""
    host = examination.host
    if host is not None:
        found = f"{host.name!r} is {host.addresses}" if host.addresses else f"{host.name!r}: {host.fault}"
        advice = "name this machine in DNS or /etc/hosts by letters, digits and hyphens, at most 63 of them"
        fault: Severity = "warning" if examination.config.launch.nodes > 1 else "note"
        yield check_result("host name", bool(host.addresses), found, "a name that resolves", advice, fault)


def check_rendezvous(examination: Examination) -> Iterable[Finding]:
    """Whether the host of launch.rendezvous is this node, which is node 0; others report if they miss it."""
    rendezvous = examination.rendezvous
    if rendezvous is not None:
        own = rendezvous.addresses
        found = f"{rendezvous.name} is {own} on this node" if own else rendezvous.fault
        advice = "set launch.rendezvous to HOST:PORT of node 0, in the same way on all nodes"
        yield check_result("rendezvous", bool(own), found, "an address of node 0", advice)
