"""One of the machines that a run goes on on."""

import fcntl
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

from podium.config import RunFolder

SIOCGIFADDR = 0x8915  # <linux/sockios.h>
INTERFACE_REQUEST = struct.Struct("16sHH4s")
"""struct ifreq with an IPv4 address: name, family, port, address."""


@dataclass(frozen=True)
class Node:
    """A machine's number among the nodes, and the address at which the others reach it (None: there are no others)."""

    rank: int = 0
    address: str | None = None

    def output(self, folder: RunFolder) -> Path:
        """Where what this node's processes print goes: all nodes share the run's folder."""
        return folder.output if self.rank == 0 else folder.path / f"output_{self.rank}.txt"


ALONE = Node()


def interface_of(address: str) -> str | None:
    """The network interface that has an IPv4 address; None where none has or it is the loopback's."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = name.encode().ljust(16, b"\0") + bytes(24)
            try:
                answer = fcntl.ioctl(probe, SIOCGIFADDR, request)
            except OSError:  # it has none
                continue
            found = socket.inet_ntoa(INTERFACE_REQUEST.unpack(answer[: INTERFACE_REQUEST.size])[3])
            if found == address and not found.startswith("127."):
                return name
    return None


def address_towards(host: str, port: int) -> str:
    """The address of this machine that it would reach the other from. Nothing is sent.

    Raises OSError for a name that is not known or a network that is not reached.
    """
    family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(place)
        return str(probe.getsockname()[0])
