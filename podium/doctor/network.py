"""Checks of host names: this machine's, and the rendezvous of several nodes."""

import socket
from collections.abc import Iterable

from podium.config.schema import RunConfig
from podium.core.errors import PodiumError
from podium.core.finding import Finding, Severity, check_result
from podium.core.text import printable
from podium.doctor.context import DiagnosticContext, Lookup
from podium.launch.addresses import listen_at_rendezvous, resolve
from podium.launch.node_group import rendezvous_address


def look_up_host() -> Lookup:
    """Resolve this machine's host name."""
    name = printable(socket.gethostname())
    try:
        return Lookup(name, ", ".join(resolve(name)))
    except ValueError as reason:
        return Lookup(name, "", str(reason))


def look_up_rendezvous(config: RunConfig) -> Lookup | None:
    """Try launch.rendezvous as node 0: its address if this node can listen there; None for a single node."""
    if config.launch.nodes == 1:
        return None
    named = f"launch.rendezvous={config.launch.rendezvous}"
    try:
        host, _ = rendezvous_address(config)
        # At any free port: the nodes that are diagnosed need the configured one a moment later.
        with listen_at_rendezvous(host, 0) as server:
            return Lookup(named, str(server.getsockname()[0]))
    except PodiumError as error:
        return Lookup(named, "", str(error))


def check_host_name(context: DiagnosticContext) -> Iterable[Finding]:
    """Whether this machine's name resolves: several nodes may need that, a single node does not."""
    host = context.host
    if host is not None:
        found = f"{host.name!r} is {host.addresses}" if host.addresses else f"{host.name!r}: {host.fault}"
        advice = "add this machine to DNS or /etc/hosts under a name of letters, digits and hyphens, at most 63 of them"
        fault: Severity = "warning" if context.config.launch.nodes > 1 else "note"
        yield check_result("host name", bool(host.addresses), found, "a name that resolves", advice, fault)


def check_rendezvous(context: DiagnosticContext) -> Iterable[Finding]:
    """Whether the host of launch.rendezvous is this node, which is node 0."""
    rendezvous = context.rendezvous
    if rendezvous is not None:
        address = rendezvous.addresses
        found = f"{rendezvous.name} is {address} on this node" if address else rendezvous.fault
        advice = "set launch.rendezvous to HOST:PORT of node 0, in the same way on all nodes"
        yield check_result("rendezvous", bool(address), found, "an address of node 0", advice)
