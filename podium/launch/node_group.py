"""Coordination of several nodes that make a run together: the first node, its workers, and their protocol.

On every node the same `podium run` or `podium doctor` is started, with a different --node-rank. The first node
prepares data, keeps the results and orders the workers by authenticated connections to clear their caches and to start
torchrun; torchrun's processes then use its rendezvous. The repository's runs/ and data/ are shared by all nodes.
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
from podium.core.errors import Interrupted, PodiumError, Saved, UsageError, WorkError, attempt
from podium.core.files import allow_open_files
from podium.core.text import quoted
from podium.launch.addresses import host_and_port, listen_at_rendezvous, resolve_rendezvous
from podium.launch.launch import ALONE, Node, failure, launch, run_processes
from podium.launch.node_connection import (
    GREETING_SECONDS,
    Answer,
    Entry,
    Hello,
    LostError,
    NodeConnection,
    Order,
    greet_caller,
    greet_first_node,
    new_secret,
    secret_file,
)
from podium.launch.node_data import DataChangedError, NodeData, verification_seconds
from podium.launch.page_cache import Cleared, clear_caches

JOIN_SECONDS = 600.0  # how long nodes wait for each other before the first run: a job's nodes start minutes apart
RETRY_SECONDS = 0.5
ACCEPT_SECONDS = 0.1
MOST_CALLERS = 64  # connections besides the nodes' that may be in a greeting at a time; the oldest gives way
ANSWER_SECONDS = 300.0
ENDING_SECONDS = 30.0  # how long the first node's processes may go on after another node's have ended
# How long a file that the first node has written may take to be seen here: network file systems cache folders.
FILE_SECONDS = 60.0


class FirstNodeError(PodiumError):
    """The first node's command failed; this one ends with its exit code."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class NodeGroup:
    """The nodes of a set of runs, as node 0 sees them. Without others every method does what a single node needs."""

    def __init__(self, runs: Path = Path()) -> None:
        """`runs` is the folder that all nodes share, with the folder of every run below it."""
        self.runs, self.node, self.others = runs, ALONE, list[NodeConnection]()
        self.data = NodeData()  # as this node has verified it
        self._changed = ""  # which node's data was changed during the run
        self._running: list[NodeConnection] = []  # those whose processes have not ended
        self._ended: dict[NodeConnection, tuple[str, float]] = {}
        self._failure = ("", 0)

    def verify_data(self, config: RunConfig, folder: RunFolder) -> None:
        """Have the other nodes verify the stores that their processes will open, and compare them with the run's."""
        for other in self.others:
            other.send(Order(do="verify", folder=self._name_of(folder), listed=folder.data.exists()))
        if self.others:
            self._answers(verification_seconds(config))

    def clear_caches(self, config: RunConfig, folder: RunFolder) -> Cleared:
        """Clear caches on all nodes; what was done is what was done on the one where least was."""
        for other in self.others:
            other.send(Order(do="clear", folder=self._name_of(folder)))
        cleared = [clear_caches(config)]
        for other, answer in zip(self.others, self._answers(ANSWER_SECONDS), strict=True):
            cleared.append(Cleared(answer.samples, f"{other.name}: {answer.message}"))
        return min(cleared, key=lambda one: one.samples)

    def launch(
        self, config: RunConfig, folder: RunFolder, entry: Entry, options: Sequence[str], on_tick: Callable[[], None]
    ) -> None:
        """Run an entry point on all nodes to the end, as `launch` does; after a failure no process is left on any."""

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
        """Have the other nodes start their processes."""
        self._running, self._ended, self._changed = [], {}, ""
        for other in self.others:
            other.send(Order(do="run", folder=self._name_of(folder), entry=entry, options=tuple(options)))
            self._running.append(other)

    def watch(self) -> None:
        """WorkError if a node was lost, or if its processes ended a while ago and ours go on without them."""
        for other in list(self._running):
            answer = other.receive(Answer, 0)
            if answer is not None:
                self._running.remove(other)
                self._ended[other] = (answer.message, time.monotonic())
                _require_done(other, answer)
                self._changed = self._changed or (f"{other.name}: {answer.changed}" if answer.changed else "")
        for other, (message, when) in self._ended.items():
            if message and time.monotonic() - when > ENDING_SECONDS:
                raise WorkError(f"{other.name}: {message}")

    def finish(self) -> None:
        """Our processes ended normally: let the others' do so too."""
        deadline = time.monotonic() + ENDING_SECONDS
        while self._running and time.monotonic() < deadline:
            self.watch()
            time.sleep(0.05)
        self.stop()
        if self._changed:
            raise DataChangedError(self._changed)

    def stop(self) -> None:
        """See to it that no node's processes go on."""
        for other in self._running:
            with suppress(LostError):
                other.send(Order(do="stop"))
        deadline = time.monotonic() + ANSWER_SECONDS
        for other in self._running:
            with suppress(LostError):
                other.receive(Answer, max(0.0, deadline - time.monotonic()))
        self._running = []

    def fail(self, message: str, exit_code: int) -> None:
        """Have the other nodes end with this message and exit code when they are dismissed."""
        self._failure = (message, exit_code)

    def dismiss(self) -> None:
        """There are no more runs."""
        message, exit_code = self._failure
        for other in self.others:
            with suppress(LostError):
                other.send(Order(do="end", failure=message, exit_code=exit_code))
            other.close()

    def _answers(self, seconds: float) -> list[Answer]:
        """Every other node's answer to an order; WorkError for one that failed or has not come in time."""
        deadline, answers = time.monotonic() + seconds, []
        for other in self.others:
            answer = other.receive(Answer, max(0.0, deadline - time.monotonic()))
            if answer is None:
                raise WorkError(f"{other.name} has not answered for {seconds:.0f} s; see what it does")
            _require_done(other, answer)
            answers.append(answer)
        return answers

    def _name_of(self, folder: RunFolder) -> str:
        """A run's folder relative to runs/, as the other nodes are sent it."""
        path, runs = folder.path.resolve(), self.runs.resolve()
        if not path.is_relative_to(runs):
            raise UsageError(f"{folder.path}: is not below {runs}, which all nodes share; move the run's folder there")
        return str(path.relative_to(runs))


def _require_done(other: NodeConnection, answer: Answer) -> None:
    if answer.failure:
        raise WorkError(f"{other.name}: {answer.failure}")


@contextmanager
def node_group(config: RunConfig, runs: Path, note: Callable[[str], None]) -> Iterator[NodeGroup]:
    """All nodes of the configuration, met at launch.rendezvous. They are dismissed at the end, with what was raised.

    Raises UsageError where no rendezvous is named, or one that is not this node, and WorkError where the other nodes do
    not come. `runs` is the folder runs/, which all nodes share.
    """
    group = NodeGroup(runs)
    try:
        if config.launch.nodes > 1:
            _gather(group, config, note)
        yield group
    except BaseException as error:
        exit_code = error.exit_code if isinstance(error, PodiumError | Interrupted) else 1
        group.fail(str(error) or "it ended before the runs did", exit_code)
        raise
    finally:
        group.stop()
        group.dismiss()


def rendezvous_address(config: RunConfig) -> tuple[str, int]:
    """Host and port where node 0 waits for the others: the port after the one of torchrun's rendezvous."""
    if config.launch.rendezvous is None:
        raise UsageError(
            f"launch.nodes is {config.launch.nodes}, but launch.rendezvous is missing; name HOST:PORT of the first "
            "node, such as --set launch.rendezvous=node0:29500"
        )
    host, _, port = config.launch.rendezvous.rpartition(":")
    return host.strip("[]"), int(port) + 1


def _gather(group: NodeGroup, config: RunConfig, note: Callable[[str], None]) -> None:
    """Add the other nodes. Each caller is greeted in a thread of its own, so that a stranger keeps no node waiting."""
    host, port = rendezvous_address(config)
    missing, most_callers = set(range(1, config.launch.nodes)), MOST_CALLERS + config.launch.nodes
    callers: list[NodeConnection] = []  # whose greeting has not ended, the oldest first
    greeted: SimpleQueue[tuple[NodeConnection, Hello]] = SimpleQueue()

    def greet(caller: NodeConnection) -> None:
        try:
            greeted.put((caller, greet_caller(caller, secret)))
        except LostError:
            caller.close()

    allow_open_files(2 * most_callers)
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
                        f"nodes {', '.join(map(str, sorted(missing)))} have not come to {host_and_port(host, port)} in "
                        f"{JOIN_SECONDS:.0f} s; start the same command there with its --node-rank, and see that they "
                        f"reach {group.node.address}"
                    )
                with suppress(OSError):  # none has called, or it has left again
                    callers.append(NodeConnection(server.accept()[0], "a caller"))
                    threading.Thread(target=greet, args=callers[-1:], daemon=True).start()
                if len(callers) > most_callers:
                    callers.pop(0).shut_down()
                while not greeted.empty():
                    caller, hello = greeted.get()
                    if caller in callers:  # else it has just been shut down
                        callers.remove(caller)
                        if _is_admitted(caller, hello, missing):
                            missing.remove(hello.rank)
                            group.others.append(caller)
        finally:
            for caller in callers:
                caller.shut_down()


def _is_admitted(caller: NodeConnection, hello: Hello, missing: set[int]) -> bool:
    """Admit the node that has called, or send it why not."""
    awaited = hello.rank in missing
    why = f"node {hello.rank} is not awaited; awaited are {', '.join(map(str, sorted(missing)))}"
    caller.name = f"node {hello.rank} ({hello.host})"
    try:
        caller.send(Answer(failure="" if awaited else why))
    except LostError:
        awaited = False
    if not awaited:
        caller.close()
    return awaited


class _StoppedError(Exception):
    """The first node's run is over, or the first node is."""


def follow(config: RunConfig, rank: int, runs: Path, note: Callable[[str], None]) -> None:
    """Take part in the first node's runs until it says that there are no more.

    Raises UsageError if this node is not one of them or the rendezvous does not resolve, WorkError if the first node is
    not met or is lost, FirstNodeError if its command failed, Interrupted.
    """
    if not 0 < rank < config.launch.nodes:
        raise UsageError(f"--node-rank: found {rank}, allowed is 0 to {config.launch.nodes - 1} (launch.nodes)")
    with closing(_join(config, rank, runs, note)) as first:
        worker = _Worker(Node(rank, first.own_address), first, runs, note)
        while (order := first.receive(Order)) is not None and order.do != "end":
            if order.do != "stop":  # one that came after all had ended has nothing to stop
                first.send(worker.execute(order))
        if order is not None and order.exit_code:
            raise FirstNodeError(f"node 0 failed: {order.failure}", order.exit_code)


def _join(config: RunConfig, rank: int, runs: Path, note: Callable[[str], None]) -> NodeConnection:
    """A connection to node 0, which has admitted this node."""
    host, port = rendezvous_address(config)
    resolve_rendezvous(host)
    note(f"Node {rank} takes part in the runs of {host_and_port(host, port)}, with the settings given there")
    hello, file = Hello(rank=rank, host=socket.gethostname()), secret_file(config, runs)
    deadline, noted = time.monotonic() + JOIN_SECONDS, ""
    while True:
        try:
            connected = socket.create_connection((host, port), GREETING_SECONDS)
            return greet_first_node(connected, hello, file)
        except OSError as error:
            why = (
                f"launch.rendezvous: no process answers at {host_and_port(host, port)} "
                f"({error.strerror or error}); start the same command on that node, unless all its nodes have joined"
            )
        except LostError as error:
            why = f"launch.rendezvous: {error}"
        if time.monotonic() > deadline:
            raise WorkError(why)
        if why != noted:
            note(f"{why}. Trying again for up to {JOIN_SECONDS:.0f} s")
            noted = why
        time.sleep(RETRY_SECONDS)


T = TypeVar("T")


class _Worker:
    """Carries out node 0's orders on this node."""

    def __init__(self, node: Node, first: NodeConnection, runs: Path, note: Callable[[str], None]) -> None:
        self._node, self._first, self._runs, self._note = node, first, runs.resolve(), note
        self._data = NodeData(node.rank)

    def execute(self, order: Order) -> Answer:
        """The answer to an order, once it is done."""
        try:
            folder = self._folder(order.folder)
            config = self._read(load_resolved, folder.config)
            if order.do == "clear":
                cleared = clear_caches(config)
                return Answer(samples=cleared.samples, message=cleared.words)
            if order.do == "verify":
                expected = self._read(read_run_data, folder.data) if order.listed else self._data.of(config)
                if expected is None:
                    raise WorkError(f"{folder.data}: is not seen on this node; have one runs/ for all nodes")
                self._data.require(config, expected, "node 0")
                return Answer()
            message = self._run(config, folder, order)
            _, changed = attempt(self._data.require_unchanged)
            return Answer(message=message, changed=str(changed or ""))
        except (Interrupted, Saved, LostError):  # this node ends, and node 0 notices
            raise
        except PodiumError as error:
            return Answer(failure=str(error))

    def _folder(self, name: str) -> RunFolder:
        """The folder of a run below runs/, wherever links in it lead. WorkError for any other."""
        try:
            path = (self._runs / name).resolve()
        except (OSError, RuntimeError):  # links in a circle
            path = self._runs
        if path == self._runs or not path.is_relative_to(self._runs):
            raise WorkError(f"{quoted(name)} is not a folder below {self._runs}, so nothing was done")
        return RunFolder(path)

    def _read(self, read: Callable[[Path], T], path: Path) -> T:
        """What node 0 has written into a file, as soon as it is seen here.

        Why a file cannot be read is printed here and not sent, since the message may have lines of the file.
        """
        deadline = time.monotonic() + FILE_SECONDS
        try:
            while not path.exists() and time.monotonic() < deadline:
                time.sleep(0.2)
            return read(path)
        except (PodiumError, OSError) as error:
            self._note(str(error))
            raise WorkError(f"{path}: cannot be read on this node; what is wrong is printed there") from None

    def _run(self, config: RunConfig, folder: RunFolder, order: Order) -> str:
        """Why the processes here failed, or nothing.

        Only the first node knows whether the run as a whole succeeded, and says so when it dismisses this one.
        """

        def tick() -> None:
            if self._first.receive(Order, 0) is not None:
                raise _StoppedError

        try:
            exit_code = run_processes(config, folder, order.entry, order.options, tick, self._node)
        except _StoppedError:
            return "stopped"
        return str(failure(folder, exit_code, self._node)) if exit_code else ""
