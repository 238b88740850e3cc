"""Fixtures: configuration of two nodes with a rendezvous on this machine."""

import socket

import pytest

from podium.config.load import load_system
from podium.config.schema import RunConfig


def free_port() -> int:
    """A free port of the loopback whose successor is free too."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as one:
            port = int(one.getsockname()[1])
            try:
                socket.create_server(("127.0.0.1", port + 1)).close()
            except (OSError, OverflowError):
                continue
        return port


@pytest.fixture
def settings() -> list[str]:
    return ["launch.nodes=2", f"launch.rendezvous=127.0.0.1:{free_port()}", "seed=7"]


@pytest.fixture
def config(settings: list[str]) -> RunConfig:
    return load_system("laptop", settings=settings)
