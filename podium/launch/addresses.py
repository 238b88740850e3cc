"""Addresses of this node's network interfaces, and the rendezvous address at which several nodes meet."""

import errno
import fcntl
import ipaddress
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from podium.core.errors import UsageError, WorkError

SIOCGIFADDR = 0x8915  # <linux/sockios.h>
INTERFACE_REQUEST = struct.Struct("16sHH4s")  # struct ifreq with an IPv4 address: name, family, port, address
IPV6_INTERFACES = Path("/proc/net/if_inet6")  # address, index, prefix length, scope and flags in hexadecimal, name


def node_addresses() -> Iterator[tuple[str, str]]:
    """Yield (interface, address) pairs of this node: one IPv4 address an interface first, then all IPv6 addresses."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = name.encode().ljust(16, b"\0") + bytes(24)
            with suppress(OSError):  # an interface without an IPv4 address
                response = fcntl.ioctl(probe, SIOCGIFADDR, request)
                yield name, socket.inet_ntoa(INTERFACE_REQUEST.unpack(response[: INTERFACE_REQUEST.size])[3])
    with suppress(OSError):  # a kernel without IPv6
        for line in IPV6_INTERFACES.read_text(encoding="ascii").splitlines():
            address, *_, name = line.split()
            yield name, str(ipaddress.IPv6Address(bytes.fromhex(address)))


def interface_of(address: str) -> str | None:
    """Name of this node's network interface with this address, such as eth0; None if no interface has it."""
    return next((name for name, found in node_addresses() if found == address), None)


def address_towards(host: str, port: int) -> str:
    """This node's source address on its route to the host; OSError if the host is unknown or unreachable."""
    family, socket_type, protocol, _, socket_address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket_type, protocol) as probe:
        probe.connect(socket_address)  # on a UDP socket this looks up the route and sends nothing
        return str(probe.getsockname()[0])


def host_and_port(host: str, port: int) -> str:
    """Format HOST:PORT, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def resolve(host: str) -> list[str]:
    """Resolve a host name or address to its addresses, in getaddrinfo's order. ValueError states why it has none."""
    if not host:
        raise ValueError("it is empty")
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except UnicodeError:
        # The IDNA codec of Python rejects an empty label and one of more than 63 characters.
        raise ValueError("a part of a host name has 1 to 63 characters") from None
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from None
    return list(dict.fromkeys(str(socket_address[0]) for *_, socket_address in found))


def resolve_rendezvous(host: str) -> list[str]:
    """Resolve the host of launch.rendezvous; UsageError if it does not resolve or is the wildcard address."""
    try:
        found = resolve(host)
    except ValueError as reason:
        raise UsageError(
            f"launch.rendezvous: the host name {host} does not resolve on this node ({reason}); use a name of node 0 "
            "that all nodes resolve by DNS or /etc/hosts, or its address, such as 10.0.0.1:29500 or [fd00::1]:29500"
        ) from None
    if ipaddress.ip_address(found[0]).is_unspecified:
        raise UsageError(f"launch.rendezvous: {host} is not the address of one node; give an address of node 0")
    return found


def listen_at_rendezvous(host: str, port: int) -> socket.socket:
    """Open node 0's TCP socket, which listens at the rendezvous's address only and not on all interfaces.

    Raises UsageError if the host is not this node, or resolves to the loopback address, which other nodes cannot reach,
    and WorkError if the port is in use.
    """
    found = resolve_rendezvous(host)
    for address in sorted(found, key=_is_loopback):  # the loopback address last
        server = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        try:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind((address, port))
            server.listen(socket.SOMAXCONN)
        except OSError as error:
            server.close()
            if error.errno == errno.EADDRNOTAVAIL:  # an address of another machine
                continue
            raise WorkError(f"launch.rendezvous: cannot listen on port {port} ({error.strerror})") from None
        if (
            _is_loopback(address)
            and "localhost" not in host
            and host not in found
            and (others := _addresses_for_others())
        ):
            server.close()
            raise UsageError(
                f"launch.rendezvous: {host} resolves to {address} on node 0 (see /etc/hosts), which other nodes cannot "
                f"reach; give an address of node 0 ({others}), or localhost if all nodes are this machine"
            )
        return server
    addresses = "" if found == [host] else f" ({', '.join(found)})"
    raise UsageError(
        f"launch.rendezvous: {host}{addresses} is not this node, which was started as node 0; this node's addresses "
        f"are {_addresses_for_others() or 'those of the loopback only'}: give one of them, or start node 0 there"
    )


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback


def _addresses_for_others() -> str:
    """List this node's addresses that other nodes may reach, with their interfaces, such as `10.0.0.1 on eth0`."""
    usable = [(name, address) for name, address in node_addresses() if not _is_loopback(address)]
    return ", ".join(f"{a} on {name}" for name, a in usable if not ipaddress.ip_address(a).is_link_local)
