"""Several nodes that make a run together, as the first of them sees it.

On every node the same `podium run` or `podium doctor` is started, with a --node-rank of its own. The first one prepares
data, keeps the results and tells the others (launching/following.py) over TCP when to clear their caches and when to
start torchrun; torchrun's processes then meet by its rendezvous. The repository's runs/ and data/ are shared by all
nodes.
"""

import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.errors import UsageError, WorkError
from podium.config import RunConfig, RunFolder
from podium.launching.caches import Cleared, clear_caches
from podium.launching.node import ALONE, Node
from podium.launching.wire import LostError, Wire

GATHERING_SECONDS = 600.0
"""How long nodes wait for each other before the first run: a job's nodes start minutes apart."""
ANSWER_SECONDS = 300.0
ENDING_SECONDS = 30.0
"""How long the first node's processes may go on after another node's have ended."""


class Crew:
    """The nodes of a set of runs. Without others every method does what a machine by itself needs."""

    def __init__(self, node: Node = ALONE, others: Mapping[int, tuple[str, Wire]] | None = None) -> None:
        """others: name and connection by node rank."""
        self.node, self._others = node, dict(others or {})
        self._at_work: set[int] = set()
        self._ended: dict[int, tuple[str, float]] = {}

    def clear_caches(self, config: RunConfig, config_path: Path) -> Cleared:
        """Clear caches on all nodes; what was done is what was done on the one where least was."""
        self._tell_all({"do": "clear", "config": str(config_path)})
        own = clear_caches(config)
        answers = [Cleared(bool(a["samples"]), f"{self._name(rank)}: {a['words']}") for rank, a in self._answers()]
        return min([own, *answers], key=lambda cleared: cleared.samples)

    def start(self, folder: RunFolder, entry: str, options: Sequence[str]) -> None:
        """Have the other nodes start their processes."""
        self._tell_all({"do": "run", "folder": str(folder.path), "entry": entry, "options": list(options)})
        self._at_work, self._ended = set(self._others), {}

    def watch(self) -> None:
        """WorkError if a node was lost, or if its processes ended a while ago and ours go on without them."""
        for rank in sorted(self._at_work):
            answer = self._receive(rank, 0)
            if answer is not None:
                self._at_work.remove(rank)
                self._ended[rank] = (str(answer["words"]), time.monotonic())
        for rank, (words, when) in self._ended.items():
            if words and time.monotonic() - when > ENDING_SECONDS:
                raise WorkError(f"{self._name(rank)}: {words}")

    def finish(self) -> None:
        """Our processes ended by themselves: let the others' do so too."""
        deadline = time.monotonic() + ENDING_SECONDS
        while self._at_work and time.monotonic() < deadline:
            self.watch()
            time.sleep(0.05)
        self.stop()

    def stop(self) -> None:
        """See to it that no node's processes go on."""
        for rank in sorted(self._at_work):
            with suppress(LostError):
                self._others[rank][1].send({"do": "stop"})
        deadline = time.monotonic() + ANSWER_SECONDS
        for rank in sorted(self._at_work):
            with suppress(LostError):
                self._others[rank][1].receive(max(0.0, deadline - time.monotonic()))
        self._at_work = set()

    def dismiss(self) -> None:
        """There are no more runs."""
        for _, wire in self._others.values():
            with suppress(LostError):
                wire.send({"do": "end"})
            wire.close()

    def _tell_all(self, message: Mapping[str, Any]) -> None:
        for rank, (_, wire) in self._others.items():
            try:
                wire.send(message)
            except LostError as error:
                raise self._lost(rank, error) from None

    def _answers(self) -> Iterator[tuple[int, dict[str, Any]]]:
        deadline = time.monotonic() + ANSWER_SECONDS
        for rank in self._others:
            answer = self._receive(rank, max(0.0, deadline - time.monotonic()))
            if answer is None:
                raise WorkError(f"{self._name(rank)} has not answered for {ANSWER_SECONDS:.0f} s; see what it does")
            yield rank, answer

    def _receive(self, rank: int, seconds: float) -> dict[str, Any] | None:
        try:
            answer = self._others[rank][1].receive(seconds)
        except LostError as error:
            raise self._lost(rank, error) from None
        if answer is not None and "failed" in answer:
            raise WorkError(f"{self._name(rank)}: {answer['failed']}")
        return answer

    def _lost(self, rank: int, error: LostError) -> WorkError:
        return WorkError(f"{self._name(rank)} was lost ({error}); see what Podium said there")

    def _name(self, rank: int) -> str:
        return f"node {rank} ({self._others[rank][0]})"


@contextmanager
def gathered(config: RunConfig, note: Callable[[str], None]) -> Iterator[Crew]:
    """All nodes of the configuration, met at launch.rendezvous. They are dismissed at the end.

    Raises UsageError where no rendezvous is named, and WorkError where the other nodes do not come.
    """
    if config.launch.nodes == 1:
        yield Crew()
        return
    crew = _gather(config, note)
    try:
        yield crew
    finally:
        crew.stop()
        crew.dismiss()


def meeting_place(config: RunConfig) -> tuple[str, int]:
    """Host and port where the nodes meet: the port after the one of torchrun's rendezvous."""
    if config.launch.rendezvous is None:
        raise UsageError(
            f"launch.nodes is {config.launch.nodes}, but launch.rendezvous is missing; name HOST:PORT of the first "
            "node, such as --set launch.rendezvous=node0:29500"
        )
    host, _, port = config.launch.rendezvous.rpartition(":")
    return host.strip("[]"), int(port) + 1


def _gather(config: RunConfig, note: Callable[[str], None]) -> Crew:
    host, port = meeting_place(config)
    missing = set(range(1, config.launch.nodes))
    others: dict[int, tuple[str, Wire]] = {}
    address = host
    try:
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        server = socket.create_server(("", port), family=family, dualstack_ipv6=both)
    except OSError as error:
        raise WorkError(f"launch.rendezvous: port {port} cannot be listened on ({error.strerror})") from None
    note(f"Waiting for {config.launch.nodes - 1} other nodes at {host}:{port}")
    deadline = time.monotonic() + GATHERING_SECONDS
    with server:
        while missing:
            server.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                connection, _ = server.accept()
            except TimeoutError:
                for _, wire in others.values():
                    wire.close()
                which = ", ".join(map(str, sorted(missing)))
                raise WorkError(
                    f"nodes {which} have not come to {host}:{port} in {GATHERING_SECONDS:.0f} s; start the same "
                    "command there with its --node-rank"
                ) from None
            wire = Wire(connection)
            rank, name = _welcome(wire, config, missing)
            if rank is not None:
                missing.remove(rank)
                others[rank] = (name, wire)
                address = wire.own_address
    return Crew(Node(0, address), dict(sorted(others.items())))


def _welcome(wire: Wire, config: RunConfig, missing: set[int]) -> tuple[int | None, str]:
    """Rank and name of the node that has called, or None after telling it why it is not taken."""
    try:
        hello = wire.receive(10.0) or {}
        rank = hello.get("node")
        why = ""
        if hello.get("system") != config.system:
            why = f"this is the meeting place of system {config.system}"
        elif rank not in missing:
            why = f"node {rank} is not awaited; awaited are {', '.join(map(str, sorted(missing)))}"
        wire.send({"refused": why})
    except LostError:
        why = "lost"
    if why or not isinstance(rank, int):
        wire.close()
        return None, ""
    return rank, str(hello.get("host"))
