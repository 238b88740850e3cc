"""Messages between nodes: whole, in order, and lost when the other side is."""

import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest

from podium.launching.wire import LostError, Wire


@pytest.fixture
def ends() -> Iterator[tuple[Wire, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        there = socket.create_connection(server.getsockname())
        here, _ = server.accept()
    wire = Wire(here)
    yield wire, there
    wire.close()
    there.close()


def test_messages_come_whole_and_in_order(ends: tuple[Wire, socket.socket]) -> None:
    wire, there = ends
    assert wire.receive(0) is None
    there.sendall(b'{"do": "cl')
    assert wire.receive(0.01) is None
    there.sendall(b'ear"}\n{"n": 2}\n{"n": 3}\n')
    assert [wire.receive(5), wire.receive(0), wire.receive(0), wire.receive(0)] == [
        {"do": "clear"},
        {"n": 2},
        {"n": 3},
        None,
    ]
    wire.send({"words": "ä\n"})
    assert there.recv(100) == b'{"words": "\\u00e4\\n"}\n'
    assert wire.own_address == "127.0.0.1"


@pytest.mark.parametrize("last", [b"", b'{"half": ', b"no JSON\n", b"[1]\n", b"x" * (3 << 20)])
def test_what_is_no_message_is_a_loss(ends: tuple[Wire, socket.socket], last: bytes) -> None:
    wire, there = ends
    there.settimeout(0.5)
    with suppress(TimeoutError):  # more than fits into the buffers
        there.sendall(last)
    there.shutdown(socket.SHUT_WR)
    with pytest.raises(LostError):
        wire.receive(5)


def test_sending_to_one_who_is_gone_is_a_loss(ends: tuple[Wire, socket.socket]) -> None:
    wire, there = ends
    there.close()
    with pytest.raises(LostError):
        for _ in range(100):
            wire.send({"a": "b" * 10_000})
