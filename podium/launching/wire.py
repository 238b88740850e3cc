"""Messages between two nodes: JSON objects, one a line, over TCP.

A connection tells of itself when the other side has ended; a machine that lost its power or its network is found out
by TCP's keep-alive within a minute.
"""

import json
import select
import socket
from collections.abc import Mapping
from typing import Any

KEEP_ALIVE = {"TCP_KEEPIDLE": 20, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 4}
"""Seconds, seconds, and tries."""
LONGEST_MESSAGE = 1 << 20


class LostError(Exception):
    """The other side has closed the connection, died, or said something that is no message."""


class Wire:
    """One end of a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket, self._received = connection, b""
        connection.setblocking(True)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEP_ALIVE.items():
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    @property
    def own_address(self) -> str:
        """The address of this end; an IPv4 address as such, also where the socket is one for both."""
        return str(self._socket.getsockname()[0]).removeprefix("::ffff:")

    def send(self, message: Mapping[str, Any]) -> None:
        try:
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise LostError(str(error)) from None

    def receive(self, seconds: float | None = None) -> dict[str, Any] | None:
        """The next message; None if none has come whole after so many seconds (0: is there one?). Waits for ever
        without a limit. Raises LostError."""
        while b"\n" not in self._received:
            if not select.select([self._socket], [], [], seconds)[0]:
                return None
            try:
                more = self._socket.recv(1 << 16)
            except OSError as error:
                raise LostError(str(error)) from None
            if not more or len(self._received) > LONGEST_MESSAGE:
                raise LostError("it closed the connection")
            self._received += more
        line, _, self._received = self._received.partition(b"\n")
        try:
            message = json.loads(line)
        except ValueError:
            message = None
        if not isinstance(message, dict):
            raise LostError("it sent something that is no message")
        return message

    def close(self) -> None:
        self._socket.close()
