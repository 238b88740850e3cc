"""Coordination of several nodes that make a run together: the first node, its workers, and their protocol.

On every node the same `podium run` or `podium doctor` is started, with a different --node-rank. The first node
prepares the data and writes the results. Over authenticated connections it orders the workers to verify their data, to
clear their caches and to start torchrun, whose processes then use torchrun's rendezvous. All nodes share the
repository's runs/ and data/.
"""

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import TypeVar

from podium.config.load import load_resolved
from podium.config.run_data import read_run_data
from podium.config.run_folder import RunFolder
from podium.config.schema import RunConfig
from podium.core.errors import Interrupted, PodiumError, StoppedAfterSaving, UsageError, WorkError, attempt
from podium.core.files import raise_open_file_limit
from podium.core.text import short_repr
from podium.launch.addresses import host_and_port, listen_at_rendezvous, resolve_rendezvous
from podium.launch.launch import SINGLE_NODE, Node, diagnose_failure, launch, run_processes
from podium.launch.node_connection import (
    HANDSHAKE_SECONDS,
    Answer,
    Entry,
    Hello,
    NodeConnection,
    NodeLostError,
    Order,
    handshake_with_first_node,
    handshake_with_worker,
    new_secret,
    secret_file,
)
from podium.launch.node_data import DataChangedError, NodeData, verification_seconds
from podium.launch.page_cache import Cleared, clear_caches

JOIN_SECONDS = 600.0  # timeout for all nodes to connect before the first run: a job's nodes start minutes apart
RETRY_SECONDS = 0.5
ACCEPT_SECONDS = 0.1
MAX_PENDING_CONNECTIONS = 64  # unauthenticated connections besides the nodes'; beyond it the oldest is closed
ANSWER_SECONDS = 300.0
ENDING_SECONDS = 30.0  # how long the first node's processes may continue after another node's have ended
# How long a file that the first node has written may take to appear on a worker: network file systems cache folders.
FILE_SECONDS = 60.0


class FirstNodeError(PodiumError):
    """The first node's command failed; this one ends with its exit code."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class NodeGroup:
    """Node 0's connections to the other nodes of a set of runs. With one node all methods act on this node only."""

    def __init__(self, runs: Path = Path()) -> None:
        """`runs` is the folder that all nodes share, with the folder of every run below it."""
        self.runs, self.node, self.others = runs, SINGLE_NODE, list[NodeConnection]()
        self.hosts = {0: socket.gethostname()}  # host names by node
        self.data = NodeData()  # verified on this node
        self._data_change = ""  # first node whose data was changed during the run, and the message
        self._running: list[NodeConnection] = []  # nodes whose processes have not ended
        self._ended: dict[NodeConnection, tuple[str, float]] = {}  # error message and time by monotonic clock
        self._failure = ("", 0)  # message and exit code of this node

    def verify_data(self, config: RunConfig, folder: RunFolder) -> None:
        """Make the other nodes verify the stores that their processes will open, and compare them with the run's."""
        for other in self.others:
            other.send(Order(do="verify", folder=self._relative_name(folder), listed=folder.data.exists()))
        if self.others:
            self._collect_answers(verification_seconds(config))

    def clear_caches(self, config: RunConfig, folder: RunFolder) -> Cleared:
        """Clear caches on all nodes; the result is that of a node on which samples remain in memory, if any."""
        for other in self.others:
            other.send(Order(do="clear", folder=self._relative_name(folder)))
        cleared = [clear_caches(config)]
        for other, answer in zip(self.others, self._collect_answers(ANSWER_SECONDS), strict=True):
            cleared.append(Cleared(answer.samples, f"{other.name}: {answer.message}"))
        return min(cleared, key=lambda one: one.samples)

    def launch(
        self, config: RunConfig, folder: RunFolder, entry: Entry, options: Sequence[str], on_tick: Callable[[], None]
    ) -> None:
        """Run an entry point on all nodes to its end, like `launch`; after a failure no process is left on any node."""

        def watched_tick() -> None:
            on_tick()
            self.watch()

        try:
            self.start(folder, entry, options)
            launch(config, folder, entry, options, watched_tick, self.node)
            self.finish()
        except (PodiumError, Interrupted):
            self.stop()
            raise

    def start(self, folder: RunFolder, entry: Entry, options: Sequence[str]) -> None:
        """Make the other nodes start their processes."""
        self._running, self._ended, self._data_change = [], {}, ""
        for other in self.others:
            other.send(Order(do="run", folder=self._relative_name(folder), entry=entry, options=tuple(options)))
            self._running.append(other)

    def watch(self) -> None:
        """Raise WorkError if a node was lost, or if its processes failed ENDING_SECONDS ago and these still run."""
        for other in list(self._running):
            answer = other.receive(Answer, 0)
            if answer is not None:
                self._running.remove(other)
                self._ended[other] = (answer.message, time.monotonic())
                _raise_failure(other, answer)
                self._data_change = self._data_change or (f"{other.name}: {answer.changed}" if answer.changed else "")
        for other, (message, when) in self._ended.items():
            if message and time.monotonic() - when > ENDING_SECONDS:
                raise WorkError(f"{other.name}: {message}")

    def finish(self) -> None:
        """Wait for the other nodes' processes, after this node's have ended; DataChangedError if their data changed."""
        deadline = time.monotonic() + ENDING_SECONDS
        while self._running and time.monotonic() < deadline:
            self.watch()
            time.sleep(0.05)
        self.stop()
        if self._data_change:
            raise DataChangedError(self._data_change)

    def stop(self) -> None:
        """Stop the processes of all other nodes, and wait until they have ended."""
        # All orders before all answers: the nodes stop their processes at the same time.
        for other in self._running:
            with suppress(NodeLostError):
                other.send(Order(do="stop"))
        deadline = time.monotonic() + ANSWER_SECONDS
        for other in self._running:
            with suppress(NodeLostError):
                other.receive(Answer, max(0.0, deadline - time.monotonic()))
        self._running = []

    def fail(self, message: str, exit_code: int) -> None:
        """Set the message and exit code with which the other nodes end when they are dismissed."""
        self._failure = (message, exit_code)

    def dismiss(self) -> None:
        """End the other nodes' commands: there are no more runs."""
        message, exit_code = self._failure
        for other in self.others:
            with suppress(NodeLostError):
                other.send(Order(do="end", failure=message, exit_code=exit_code))
            other.close()

    def _collect_answers(self, seconds: float) -> list[Answer]:
        """Receive every other node's answer to an order; WorkError for a failure or after `seconds`."""
        deadline, answers = time.monotonic() + seconds, []
        for other in self.others:
            answer = other.receive(Answer, max(0.0, deadline - time.monotonic()))
            if answer is None:
                raise WorkError(f"{other.name} has not answered for {seconds:.0f} s; see Podium's output there")
            _raise_failure(other, answer)
            answers.append(answer)
        return answers

    def _relative_name(self, folder: RunFolder) -> str:
        """A run's folder relative to runs/, for an order."""
        path, runs = folder.path.resolve(), self.runs.resolve()
        if not path.is_relative_to(runs):
            raise UsageError(f"{folder.path}: not below {runs}, which all nodes share; move the run's folder there")
        return str(path.relative_to(runs))


def _raise_failure(other: NodeConnection, answer: Answer) -> None:
    if answer.failure:
        raise WorkError(f"{other.name}: {answer.failure}")


@contextmanager
def node_group(config: RunConfig, runs: Path, note: Callable[[str], None]) -> Iterator[NodeGroup]:
    """Connect all nodes of the configuration at launch.rendezvous; end their commands with the block, and its error.

    `runs` is the folder runs/, which all nodes share; `note` prints progress. Raises UsageError without a rendezvous,
    or if it is not this node's, and WorkError if a node does not connect within JOIN_SECONDS.
    """
    group = NodeGroup(runs)
    try:
        if config.launch.nodes > 1:
            _accept_workers(group, config, note)
        yield group
    except BaseException as error:
        exit_code = error.exit_code if isinstance(error, PodiumError | Interrupted) else 1
        group.fail(str(error) or "it ended before the runs did", exit_code)
        raise
    finally:
        group.stop()
        group.dismiss()


def require_rendezvous(config: RunConfig, file: str = "") -> None:
    """Raise UsageError if several nodes are started by hand, by torchrun or docker, and no address is set to meet at.

    `file` is the system's. A Slurm job uses the address of its first node.
    """
    launch = config.launch
    if launch.nodes > 1 and launch.launcher != "slurm" and launch.rendezvous is None:
        raise _missing_rendezvous(config, file)


def _missing_rendezvous(config: RunConfig, file: str = "") -> UsageError:
    return UsageError(
        f"{f'{file}: ' if file else ''}launch.nodes is {config.launch.nodes}, but launch.rendezvous is missing; set it "
        "to HOST:PORT of the first node, such as --set launch.rendezvous=node0:29500"
    )


def rendezvous_address(config: RunConfig) -> tuple[str, int]:
    """Host and port at which node 0 waits for the others: the port after the one of torchrun's rendezvous."""
    if config.launch.rendezvous is None:
        raise _missing_rendezvous(config)
    host, _, port = config.launch.rendezvous.rpartition(":")
    return host.strip("[]"), int(port) + 1


def _accept_workers(group: NodeGroup, config: RunConfig, note: Callable[[str], None]) -> None:
    """Accept connections and add the other nodes to the group; WorkError after JOIN_SECONDS."""
    host, port = rendezvous_address(config)
    missing, max_pending = set(range(1, config.launch.nodes)), MAX_PENDING_CONNECTIONS + config.launch.nodes
    pending: list[NodeConnection] = []  # without a finished handshake, the oldest first
    authenticated: SimpleQueue[tuple[NodeConnection, Hello]] = SimpleQueue()

    def handshake(connection: NodeConnection) -> None:
        try:
            authenticated.put((connection, handshake_with_worker(connection, secret)))
        except NodeLostError:
            connection.close()

    raise_open_file_limit(2 * max_pending)
    file = secret_file(config, group.runs)
    with listen_at_rendezvous(host, port) as server, new_secret(file) as secret:
        group.node = Node(0, str(server.getsockname()[0]))
        server.settimeout(ACCEPT_SECONDS)
        note(f"Waiting for {config.launch.nodes - 1} other nodes at {host_and_port(host, port)}")
        deadline = time.monotonic() + JOIN_SECONDS
        try:
            while missing:
                if time.monotonic() > deadline:
                    raise WorkError(
                        f"nodes {', '.join(map(str, sorted(missing)))} have not connected to "
                        f"{host_and_port(host, port)} within {JOIN_SECONDS:.0f} s; start the same command there with "
                        f"its --node-rank, and check that they can reach {group.node.address}"
                    )
                with suppress(OSError):  # the timeout, or the peer has disconnected again
                    # One thread each: a peer that is silent or slow must not delay the nodes.
                    pending.append(NodeConnection(server.accept()[0], "a new connection"))
                    threading.Thread(target=handshake, args=pending[-1:], daemon=True).start()
                if len(pending) > max_pending:
                    pending.pop(0).shut_down()
                while not authenticated.empty():
                    connection, hello = authenticated.get()
                    if connection in pending:  # else it has just been closed as the oldest
                        pending.remove(connection)
                        if _admit(connection, hello, missing):
                            missing.remove(hello.rank)
                            group.others.append(connection)
                            group.hosts[hello.rank] = hello.host
        finally:
            for connection in pending:
                connection.shut_down()


def _admit(connection: NodeConnection, hello: Hello, missing: set[int]) -> bool:
    """Accept a node if its rank is missing, else send it the reason and disconnect; return whether it was accepted."""
    expected = hello.rank in missing
    reason = f"node {hello.rank} is not expected; nodes {', '.join(map(str, sorted(missing)))} are missing"
    connection.name = f"node {hello.rank} ({hello.host})"
    try:
        connection.send(Answer(failure="" if expected else reason))
    except NodeLostError:
        expected = False
    if not expected:
        connection.close()
    return expected


class _StoppedError(Exception):
    """The first node has ended the run."""


def require_node_rank(config: RunConfig, rank: int) -> None:
    """UsageError for a rank that no node of this configuration has."""
    if not 0 <= rank < config.launch.nodes:
        raise UsageError(f"--node-rank: found {rank}, allowed is 0 to {config.launch.nodes - 1} (launch.nodes)")


def run_worker_node(config: RunConfig, rank: int, runs: Path, note: Callable[[str], None]) -> None:
    """Execute the first node's orders on this node, whose rank is `rank`, until there are no more runs.

    Raises UsageError for a rank out of range or a rendezvous that does not resolve, WorkError if the connection to the
    first node fails or is lost, FirstNodeError if its command failed, and Interrupted.
    """
    require_node_rank(config, rank)
    with closing(_connect_to_first_node(config, rank, runs, note)) as first:
        worker = _Worker(Node(rank, first.own_address), first, runs, note)
        while (order := first.receive(Order)) is not None and order.do != "end":
            if order.do != "stop":  # it arrived after the processes had ended, and needs no answer
                first.send(worker.execute(order))
        if order is not None and order.exit_code:
            raise FirstNodeError(f"node 0 failed: {order.failure}", order.exit_code)


def _connect_to_first_node(config: RunConfig, rank: int, runs: Path, note: Callable[[str], None]) -> NodeConnection:
    """Connect to node 0, repeatedly for JOIN_SECONDS; return the connection once node 0 has accepted this node."""
    host, port = rendezvous_address(config)
    resolve_rendezvous(host)
    note(f"Node {rank} joins the runs of {host_and_port(host, port)}, with the settings given there")
    hello, file = Hello(rank=rank, host=socket.gethostname()), secret_file(config, runs)
    deadline, noted = time.monotonic() + JOIN_SECONDS, ""
    while True:
        try:
            connected = socket.create_connection((host, port), HANDSHAKE_SECONDS)
            return handshake_with_first_node(connected, hello, file)
        except OSError as error:
            reason = (
                f"launch.rendezvous: no process answers at {host_and_port(host, port)} "
                f"({error.strerror or error}); start the same command on that node, unless its runs have all nodes"
            )
        except NodeLostError as error:
            reason = f"launch.rendezvous: {error}"
        if time.monotonic() > deadline:
            raise WorkError(reason)
        if reason != noted:
            note(f"{reason}. Trying again for up to {JOIN_SECONDS:.0f} s")
            noted = reason
        time.sleep(RETRY_SECONDS)


T = TypeVar("T")


class _Worker:
    """Execution of node 0's orders on this node."""

    def __init__(self, node: Node, first: NodeConnection, runs: Path, note: Callable[[str], None]) -> None:
        self._node, self._first, self._runs, self._note = node, first, runs.resolve(), note
        self._data = NodeData(node.rank)

    def execute(self, order: Order) -> Answer:
        """Execute an order and return its answer."""
        try:
            folder = self._folder(order.folder)
            config = self._read(load_resolved, folder.config)
            if order.do == "clear":
                cleared = clear_caches(config)
                return Answer(samples=cleared.samples, message=cleared.message)
            if order.do == "verify":
                expected = self._read(read_run_data, folder.data) if order.listed else self._data.of(config)
                if expected is None:
                    raise WorkError(f"{folder.data}: not found on this node; share one runs/ between all nodes")
                self._data.require(config, expected, "node 0")
                return Answer()
            message = self._run(config, folder, order)
            _, changed = attempt(self._data.require_unchanged)
            return Answer(message=message, changed=str(changed or ""))
        except (
            Interrupted,
            StoppedAfterSaving,
            NodeLostError,
        ):  # this node ends, and node 0 detects the closed connection
            raise
        except PodiumError as error:
            return Answer(failure=str(error))

    def _folder(self, name: str) -> RunFolder:
        """The folder of a run, with symbolic links resolved; WorkError if it is not below runs/."""
        try:
            path = (self._runs / name).resolve()
        except (OSError, RuntimeError):  # a loop of symbolic links
            path = self._runs
        if path == self._runs or not path.is_relative_to(self._runs):
            raise WorkError(f"{short_repr(name)} is not a folder below {self._runs}, so nothing was done")
        return RunFolder(path)

    def _read(self, read: Callable[[Path], T], path: Path) -> T:
        """Read a file that node 0 has written, as soon as it appears on this node; WorkError if it cannot be read."""
        deadline = time.monotonic() + FILE_SECONDS
        try:
            while not path.exists() and time.monotonic() < deadline:
                time.sleep(0.2)
            return read(path)
        except (PodiumError, OSError) as error:
            # The reason is printed here and not sent, because it may quote the content of a file.
            self._note(str(error))
            raise WorkError(f"{path}: cannot be read on this node; the reason is in Podium's output there") from None

    def _run(self, config: RunConfig, folder: RunFolder, order: Order) -> str:
        """Run the processes on this node; return their error message, or "" if torchrun succeeded.

        This node's exit code is sent later by the first node, which alone can judge the run as a whole.
        """

        def tick() -> None:
            if self._first.receive(Order, 0) is not None:
                raise _StoppedError

        try:
            exit_code = run_processes(config, folder, order.entry, order.options, tick, self._node)
        except _StoppedError:
            return "stopped"
        return str(diagnose_failure(folder, exit_code, self._node)) if exit_code else ""
