"""Coordination of several nodes that make a run together: the first node, its workers, and their protocol.

On every node the same `podium run` or `podium doctor` is started, with a different --node-rank. The first node
prepares data, keeps the results and signals the workers over TCP when to clear their caches and when to start
torchrun; torchrun's processes then use its rendezvous. The repository's runs/ and data/ are shared by all nodes.

Messages are JSON objects, one a line. When the other side has ended, its connection closes; a machine that lost its
power or its network is detected by TCP's keep-alive within a minute.
"""

import json
import select
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from podium.config.load import load_resolved
from podium.config.run_data import read_run_data
from podium.config.run_folder import RunFolder
from podium.config.schema import RunConfig
from podium.core.errors import PodiumError, UsageError, WorkError, attempt
from podium.core.json_files import parse_json
from podium.launch.launch import ALONE, Node, failure, launch, run_processes
from podium.launch.node_data import DataChangedError, NodeData, verification_seconds
from podium.launch.page_cache import Cleared, clear_caches

KEEP_ALIVE = {"TCP_KEEPIDLE": 20, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 4}  # seconds, seconds, and tries
LONGEST_MESSAGE = 1 << 20


class LostError(WorkError):
    """The other side has closed the connection, died, or said something that is no message."""


class FirstNodeError(PodiumError):
    """The first node's command failed; this one ends with its exit code."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Wire:
    """One end of a connection; `name` is the node's at the other end."""

    def __init__(self, connection: socket.socket, name: str = "node 0") -> None:
        self._socket, self._received, self.name = connection, b"", name
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
            raise self._lost(error) from None

    def receive(self, seconds: float | None = None) -> dict[str, Any] | None:
        """The next message; None if none has come whole after so many seconds (0: is there one?). Waits for ever
        without a limit. Raises LostError."""
        while b"\n" not in self._received:
            if not select.select([self._socket], [], [], seconds)[0]:
                return None
            try:
                more = self._socket.recv(1 << 16)
            except OSError as error:
                raise self._lost(error) from None
            if not more or len(self._received) > LONGEST_MESSAGE:
                raise self._lost("it closed the connection")
            self._received += more
        line, _, self._received = self._received.partition(b"\n")
        try:
            message = parse_json(line)
        except ValueError:
            message = None
        if not isinstance(message, dict):
            raise self._lost("it sent something that is no message")
        return message

    def answer(self, seconds: float) -> dict[str, Any] | None:
        """As `receive`; WorkError for an answer that says that the node could not do what it was told to."""
        answer = self.receive(seconds)
        if answer is not None and "failed" in answer:
            raise WorkError(f"{self.name}: {answer['failed']}")
        return answer

    def close(self) -> None:
        self._socket.close()

    def _lost(self, why: object) -> LostError:
        return LostError(f"{self.name} was lost ({why}); see what Podium said there")


GATHERING_SECONDS = 600.0  # how long nodes wait for each other before the first run: a job's nodes start minutes apart
ANSWER_SECONDS = 300.0
ENDING_SECONDS = 30.0  # how long the first node's processes may go on after another node's have ended


class Crew:
    """The nodes of a set of runs. Without others every method does what a machine by itself needs."""

    def __init__(self, node: Node = ALONE, others: Sequence[Wire] = ()) -> None:
        self.data = NodeData()  # as this node has verified it
        self._changed = ""  # which node's data was changed during the run
        self.node, self._others = node, others
        self._at_work: list[Wire] = []
        self._ended: dict[Wire, tuple[str, float]] = {}
        self._failure = ("", 0)

    def verify_data(self, config: RunConfig, folder: RunFolder) -> None:
        """Have the other nodes verify the stores that their processes will open, and compare them with the run's."""
        for wire in self._others:
            wire.send({"do": "verify", "folder": str(folder.path), "listed": folder.data.exists()})
        deadline = time.monotonic() + verification_seconds(config)
        for wire in self._others:
            if wire.answer(max(0.0, deadline - time.monotonic())) is None:
                raise WorkError(f"{wire.name} has not verified its data; see what it does")

    def clear_caches(self, config: RunConfig, config_path: Path) -> Cleared:
        """Clear caches on all nodes; what was done is what was done on the one where least was."""
        for wire in self._others:
            wire.send({"do": "clear", "config": str(config_path)})
        cleared = [clear_caches(config)]
        deadline = time.monotonic() + ANSWER_SECONDS
        for wire in self._others:
            answer = wire.answer(max(0.0, deadline - time.monotonic()))
            if answer is None:
                raise WorkError(f"{wire.name} has not answered for {ANSWER_SECONDS:.0f} s; see what it does")
            cleared.append(Cleared(bool(answer["samples"]), f"{wire.name}: {answer['words']}"))
        return min(cleared, key=lambda one: one.samples)

    def launch(
        self, config: RunConfig, folder: RunFolder, entry: str, options: Sequence[str], on_tick: Callable[[], None]
    ) -> None:
        """Run an entry point on all nodes to the end, as `launch` does; after a failure no process is left on any."""

        def watched_tick() -> None:
            on_tick()
            self.watch()

        try:
            self.start(folder, entry, options)
            launch(config, folder, entry, options, watched_tick, self.node)
            self.finish()
        except PodiumError:
            self.stop()
            raise

    def start(self, folder: RunFolder, entry: str, options: Sequence[str]) -> None:
        """Have the other nodes start their processes."""
        for wire in self._others:
            wire.send({"do": "run", "folder": str(folder.path), "entry": entry, "options": list(options)})
        self._at_work, self._ended, self._changed = list(self._others), {}, ""

    def watch(self) -> None:
        """WorkError if a node was lost, or if its processes ended a while ago and ours go on without them."""
        for wire in list(self._at_work):
            answer = wire.answer(0)
            if answer is not None:
                self._at_work.remove(wire)
                self._ended[wire] = (str(answer["words"]), time.monotonic())
                self._changed = self._changed or (f"{wire.name}: {answer['changed']}" if answer.get("changed") else "")
        for wire, (words, when) in self._ended.items():
            if words and time.monotonic() - when > ENDING_SECONDS:
                raise WorkError(f"{wire.name}: {words}")

    def finish(self) -> None:
        """Our processes ended by themselves: let the others' do so too."""
        deadline = time.monotonic() + ENDING_SECONDS
        while self._at_work and time.monotonic() < deadline:
            self.watch()
            time.sleep(0.05)
        self.stop()
        if self._changed:
            raise DataChangedError(self._changed)

    def stop(self) -> None:
        """See to it that no node's processes go on."""
        for wire in self._at_work:
            with suppress(LostError):
                wire.send({"do": "stop"})
        deadline = time.monotonic() + ANSWER_SECONDS
        for wire in self._at_work:
            with suppress(LostError):
                wire.receive(max(0.0, deadline - time.monotonic()))
        self._at_work = []

    def fail(self, message: str, exit_code: int) -> None:
        """Have the other nodes end with this message and exit code when they are dismissed."""
        self._failure = (message, exit_code)

    def dismiss(self) -> None:
        """There are no more runs."""
        message, exit_code = self._failure
        for wire in self._others:
            with suppress(LostError):
                wire.send({"do": "end", "failed": message, "exit_code": exit_code})
            wire.close()


@contextmanager
def gathered(config: RunConfig, note: Callable[[str], None]) -> Iterator[Crew]:
    """All nodes of the configuration, met at launch.rendezvous. They are dismissed at the end, with what was raised.

    Raises UsageError where no rendezvous is named, and WorkError where the other nodes do not come.
    """
    if config.launch.nodes == 1:
        yield Crew()
        return
    crew = _gather(config, note)
    try:
        yield crew
    except BaseException as error:
        exit_code = error.exit_code if isinstance(error, PodiumError) else 1
        crew.fail(str(error) or "it ended before the runs did", exit_code)
        raise
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
    others: dict[int, Wire] = {}
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
                for wire in others.values():
                    wire.close()
                which = ", ".join(map(str, sorted(missing)))
                raise WorkError(
                    f"nodes {which} have not come to {host}:{port} in {GATHERING_SECONDS:.0f} s; start the same "
                    "command there with its --node-rank"
                ) from None
            wire = Wire(connection)
            rank = _welcome(wire, config, missing)
            if rank is not None:
                missing.remove(rank)
                others[rank] = wire
                address = wire.own_address
    return Crew(Node(0, address), [others[rank] for rank in sorted(others)])


def _welcome(wire: Wire, config: RunConfig, missing: set[int]) -> int | None:
    """Rank of the node that has called, or None after telling it why it is not taken."""
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
        return None
    wire.name = f"node {rank} ({hello.get('host')})"
    return rank


# How long a file that the first node has written may take to be seen here: network file systems cache folders.
FILE_SECONDS = 60.0


class _StoppedError(Exception):
    """The first node's run is over, or the first node is."""


def follow(config: RunConfig, rank: int, note: Callable[[str], None]) -> None:
    """Take part in the first node's runs until it says that there are no more.

    Raises UsageError if this node is not one of them, WorkError if the first one is not met or is lost, FirstNodeError
    if its command failed, Interrupted.
    """
    if not 0 < rank < config.launch.nodes:
        raise UsageError(f"--node-rank: found {rank}, allowed is 0 to {config.launch.nodes - 1} (launch.nodes)")
    with closing(_met(config, rank, note)) as wire:
        node, data = Node(rank, wire.own_address), NodeData()
        while (order := wire.receive() or {}).get("do") != "end":
            if order["do"] != "stop":  # one that came after all had ended has nothing to stop
                wire.send(_obeyed(order, node, wire, data))
        if exit_code := int(order.get("exit_code", 0)):
            raise FirstNodeError(f"node 0 failed: {order.get('failed')}", exit_code)


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
    wire.send({"node": rank, "host": socket.gethostname(), "system": config.system})
    answer = wire.receive(60.0) or {"refused": "no answer"}
    if answer.get("refused"):
        raise UsageError(f"node 0 refused this node: {answer['refused']}")
    return wire


def _obeyed(order: Mapping[str, Any], node: Node, wire: Wire, data: NodeData) -> dict[str, Any]:
    """The answer to an order, once it is done."""
    try:
        if order["do"] == "clear":
            return asdict(clear_caches(_config(Path(order["config"]))))
        if order["do"] == "verify":
            return _verified(RunFolder(Path(order["folder"])), bool(order["listed"]), data)
        words = _run(order, node, wire)
        _, changed = attempt(data.require_unchanged)
        return {"words": words, "changed": str(changed or "")}
    except PodiumError as error:
        if type(error) in (UsageError, WorkError):
            return {"failed": str(error)}
        raise


def _verified(folder: RunFolder, listed: bool, data: NodeData) -> dict[str, Any]:
    """The answer once this node's stores are verified, and compared with those `listed` in the run's folder."""
    config = _config(folder.config)
    expected = read_run_data(_seen(folder.data)) if listed else data.of(config)
    if expected is None:
        raise WorkError(f"{folder.data}: is not seen on this node; have one runs/ for all nodes")
    data.require(config, expected, "node 0")
    return {}


def _run(order: Mapping[str, Any], node: Node, wire: Wire) -> str:
    """Why the processes here failed, or nothing.

    Only the first node knows whether the run as a whole succeeded, and says so when it dismisses this one.
    """
    folder = RunFolder(Path(order["folder"]))

    def tick() -> None:
        if wire.receive(0) is not None:
            raise _StoppedError

    try:
        exit_code = run_processes(_config(folder.config), folder, order["entry"], order["options"], tick, node)
    except _StoppedError:
        return "stopped"
    return str(failure(folder, exit_code, node)) if exit_code else ""


def _config(path: Path) -> RunConfig:
    return load_resolved(_seen(path))


def _seen(path: Path) -> Path:
    """The path of a file that the first node has written, as soon as it is seen here."""
    deadline = time.monotonic() + FILE_SECONDS
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    return path
