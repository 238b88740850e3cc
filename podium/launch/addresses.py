"""Host names and addresses: of this node's network interfaces, and of the rendezvous of several nodes."""

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
    """Network interfaces of this node with an address each: the IPv4 address of every one, then the IPv6 addresses."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = name.encode().ljust(16, b"\0") + bytes(24)
            with suppress(OSError):  # it has none
                answer = fcntl.ioctl(probe, SIOCGIFADDR, request)
                yield name, socket.inet_ntoa(INTERFACE_REQUEST.unpack(answer[: INTERFACE_REQUEST.size])[3])
    with suppress(OSError):  # a kernel without IPv6
        for line in IPV6_INTERFACES.read_text(encoding="ascii").splitlines():
            address, *_, name = line.split()
            yield name, str(ipaddress.IPv6Address(bytes.fromhex(address)))


def interface_of(address: str) -> str | None:
    """The network interface that has an address; None where none has."""
    return next((name for name, found in node_addresses() if found == address), None)


def address_towards(host: str, port: int) -> str:
    """The address of this machine from which it would reach the host; OSError where that is unknown or unreachable."""
    family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(place)
        return str(probe.getsockname()[0])


def host_and_port(host: str, port: int) -> str:
    """HOST:PORT, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def resolve(host: str) -> list[str]:
    """The addresses of a host name or an address, as this node resolves it. ValueError with the reason for none."""
    if not host:
        raise ValueError("it is empty")
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except UnicodeError:
        raise ValueError("a part of a host name has 1 to 63 characters") from None
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from None
    return list(dict.fromkeys(str(place[0]) for *_, place in found))


def resolve_rendezvous(host: str) -> list[str]:
    """As `resolve`, of the host of launch.rendezvous. UsageError for one that does not resolve or names no one node."""
    try:
        found = resolve(host)
    except ValueError as reason:
        raise UsageError(
            f"launch.rendezvous: the host name {host} does not resolve on this node ({reason}); name node 0 as all "
            "nodes know it in DNS or /etc/hosts, or give its address, such as 10.0.0.1:29500 or [fd00::1]:29500"
        ) from None
    if ipaddress.ip_address(found[0]).is_unspecified:
        raise UsageError(f"launch.rendezvous: {host} is not the address of one node; give one of node 0's own")
    return found


def listen_at_rendezvous(host: str, port: int) -> socket.socket:
    """A TCP socket of node 0 that listens at the rendezvous's address alone.

    UsageError where the host is not this node, or resolves to the loopback address, at which no other node reaches it;
    WorkError where the port is in use.
    """
    found = resolve_rendezvous(host)
    for address in sorted(found, key=_is_loopback):
        server = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        try:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind((address, port))
            server.listen(socket.SOMAXCONN)
        except OSError as error:
            server.close()
            if error.errno == errno.EADDRNOTAVAIL:
                continue
            raise WorkError(f"launch.rendezvous: port {port} cannot be listened on ({error.strerror})") from None
        if (
            _is_loopback(address)
            and "localhost" not in host
            and host not in found
            and (others := _addresses_for_others())
        ):
            server.close()
            raise UsageError(
                f"launch.rendezvous: {host} is {address} on node 0 (see /etc/hosts), which no other node can reach; "
                f"give an address of node 0 ({others}), or localhost where all nodes are this machine"
            )
        return server
    addresses = "" if found == [host] else f" ({', '.join(found)})"
    raise UsageError(
        f"launch.rendezvous: {host}{addresses} is not this node, which was started as node 0; its own addresses are "
        f"{_addresses_for_others() or 'those of the loopback alone'}: name one of them, or start node 0 there"
    )


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback


def _addresses_for_others() -> str:
    """This node's addresses that other nodes may reach, with their interfaces."""
    usable = [(name, address) for name, address in node_addresses() if not _is_loopback(address)]
    return ", ".join(f"{a} on {name}" for name, a in usable if not ipaddress.ip_address(a).is_link_local)
