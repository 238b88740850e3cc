"""Podium with --node-rank N, on every node but the first: does what the first one says, and when."""

import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.errors import PodiumError, UsageError, WorkError
from podium.config import RunConfig, RunFolder, load_resolved
from podium.launching import failure, run_processes
from podium.launching.caches import clear_caches
from podium.launching.crew import GATHERING_SECONDS, meeting_place
from podium.launching.node import Node
from podium.launching.wire import LostError, Wire

FILE_SECONDS = 60.0
"""How long a file that the first node has written may take to be seen here: network file systems cache folders."""


class _StoppedError(Exception):
    """The first node's run is over, or the first node is."""


def follow(config: RunConfig, rank: int, note: Callable[[str], None]) -> None:
    """Take part in the first node's runs until it says that there are no more.

    Raises UsageError if this node is not one of them, WorkError if the first one is not met or is lost, Interrupted.
    """
    if not 0 < rank < config.launch.nodes:
        raise UsageError(f"--node-rank: found {rank}, allowed is 0 to {config.launch.nodes - 1} (launch.nodes)")
    wire = _met(config, rank, note)
    node = Node(rank, wire.own_address)
    try:
        while (order := wire.receive() or {}).get("do") != "end":
            if order["do"] != "stop":  # one that came after all had ended has nothing to stop
                wire.send(_obeyed(order, node, wire))
    except LostError as error:
        raise WorkError(f"node 0 was lost ({error}); see what Podium said there") from None
    finally:
        wire.close()


def _met(config: RunConfig, rank: int, note: Callable[[str], None]) -> Wire:
    host, port = meeting_place(config)
    note(f"Node {rank} takes part in the runs of {host}:{port}")
    deadline = time.monotonic() + GATHERING_SECONDS
    while True:
        try:
            wire = Wire(socket.create_connection((host, port), timeout=10))
            break
        except OSError as error:
            if time.monotonic() > deadline:
                raise WorkError(
                    f"launch.rendezvous: nobody answers at {host}:{port} ({error.strerror or error}); start the same "
                    "command on that node"
                ) from None
            time.sleep(0.5)
    try:
        wire.send({"node": rank, "host": socket.gethostname(), "system": config.system})
        answer = wire.receive(60.0) or {"refused": "no answer"}
    except LostError as error:
        raise WorkError(f"node 0 was lost ({error}); see what Podium said there") from None
    if answer.get("refused"):
        raise UsageError(f"node 0 refused this node: {answer['refused']}")
    return wire


def _obeyed(order: dict[str, Any], node: Node, wire: Wire) -> dict[str, Any]:
    """The answer to an order, once it is done."""
    try:
        return ORDERS[order["do"]](order, node, wire)
    except PodiumError as error:
        if type(error) in (UsageError, WorkError):
            return {"failed": str(error)}
        raise


def _clear(order: dict[str, Any], node: Node, wire: Wire) -> dict[str, Any]:
    cleared = clear_caches(_config(Path(order["config"])))
    return {"samples": cleared.samples, "words": cleared.words}


def _run(order: dict[str, Any], node: Node, wire: Wire) -> dict[str, Any]:
    """Only the first node knows whether the run as a whole succeeded: a missed target is an exit code of 1 too."""
    folder = RunFolder(Path(order["folder"]))

    def tick() -> None:
        if wire.receive(0) is not None:
            raise _StoppedError

    try:
        exit_code = run_processes(
            _config(folder.config), folder, str(order["entry"]), [str(o) for o in order["options"]], tick, node
        )
    except _StoppedError:
        return {"words": "stopped"}
    return {"words": str(failure(folder, exit_code, node)) if exit_code else ""}


ORDERS = {"clear": _clear, "run": _run}


def _config(path: Path) -> RunConfig:
    deadline = time.monotonic() + FILE_SECONDS
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    return load_resolved(path)
