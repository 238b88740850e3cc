"""Connections between nodes: messages and the handshake, also with unauthenticated peers. All sockets are real."""

import json
import os
import pickle
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from itertools import product
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from pathlib import Path
from typing import Any

import pytest

from podium.config.run_folder import RunFolder
from podium.config.schema import RunConfig
from podium.core.errors import PodiumError, UsageError, WorkError
from podium.core.text import printable
from podium.launch.launch import Node
from podium.launch.node_connection import (
    SECRET_BYTES,
    Answer,
    Hello,
    NodeConnection,
    NodeLostError,
    Order,
    new_secret,
    read_secret,
    secret_file,
)
from podium.launch.node_group import NodeGroup, node_group, rendezvous_address, run_worker_node


@pytest.fixture(autouse=True)
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a failing test end within a minute."""
    for name in ("JOIN_SECONDS", "ANSWER_SECONDS"):
        monkeypatch.setattr(f"podium.launch.node_group.{name}", 20.0)


@pytest.fixture
def ends() -> Iterator[tuple[NodeConnection, NodeConnection]]:
    """The two ends of a connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        there = socket.create_connection(server.getsockname())
        here, _ = server.accept()
    with closing(NodeConnection(here)) as one, closing(NodeConnection(there, "node 1 (b)")) as other:
        yield one, other


Ends = tuple[NodeConnection, NodeConnection]


def test_messages_arrive_complete_and_in_order(ends: Ends) -> None:
    here, there = ends
    assert here.receive(Order, 0) is None
    orders = [
        Order(do="clear", folder="laptop/ä\n"),
        Order(do="run", entry="doctor", options=("a", "b")),
        Order(do="end"),
    ]
    for order in orders:
        there.send(order)
    assert [here.receive(Order, 5), here.receive(Order, 5), here.receive(Order)] == orders
    assert here.receive(Order, 0) is None
    here.send(Answer(samples=False, message="x" * 100_000))
    assert there.receive(Answer, 5) == Answer(samples=False, message="x" * 100_000)
    assert here.own_address == "127.0.0.1"


def raw(connection: NodeConnection) -> "Connection[Any, Any]":
    return connection._connection


class Attack:
    """Object that makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"no JSON", "it sent an invalid Order: message: Invalid JSON"),
        (b"\xff\xfe", "it sent an invalid Order: message: Invalid JSON"),
        (b"[" * 100_000, "it sent an invalid Order: message: Invalid JSON"),
        (b"[1]", "it sent an invalid Order: message: Input should be an object"),
        (b"7", "it sent an invalid Order: message: Input should be an object"),
        (b"", "it sent an invalid Order: message: Invalid JSON"),
        (b"{}", "it sent an invalid Order: do: Field required"),
        (b'{"do": "shell"}', "it sent an invalid Order: do: Input should be 'clear', 'verify', 'run', 'stop' or 'end'"),
        (b'{"do": "run", "entry": "evaluate"}', "it sent an invalid Order: entry: Input should be 'train' or 'doctor'"),
        (b'{"do": "run", "entry": "../../tmp/x"}', "it sent an invalid Order: entry: Input should be 'train' or"),
        (b'{"do": "run", "options": "all"}', "it sent an invalid Order: options: Input should be a valid"),
        (b'{"do": "run", "folder": 7}', "it sent an invalid Order: folder: Input should be a valid string"),
        (b'{"do": "run", "command": "x"}', "it sent an invalid Order: command: Extra inputs are not permitted"),
        (b'{"do": "end", "exit_code": 1e999}', "it sent an invalid Order: exit_code: Input should be a"),
        (json.dumps({"do": "end", "k" * 9000: 1}).encode(), "it sent an invalid Order: kkk"),
        (pickle.dumps(Order), "it sent an invalid Order: message: Invalid JSON"),
        (b"x" * (1 << 20 | 1), "bad message length"),
    ],
)
def test_invalid_message_is_an_error(ends: Ends, content: bytes, reason: str) -> None:
    here, there = ends
    sender = threading.Thread(target=lambda: call_suppressed(raw(there).send_bytes, content))
    sender.start()
    with pytest.raises(NodeLostError) as error:
        here.receive(Order, 5)
    assert str(error.value).startswith(f"node 0 was lost ({reason}")
    assert str(error.value).endswith("; see Podium's output there")
    assert len(str(error.value)) < 300
    here.close()
    sender.join()


def call_suppressed(call: Callable[..., object], *arguments: Any) -> None:
    with suppress(OSError, EOFError):
        call(*arguments)


@pytest.mark.parametrize("sent", [b"", b"\0\0", b"\0\0\0\x09{", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"])
def test_closed_connection_or_partial_message_is_an_error(ends: Ends, sent: bytes) -> None:
    here, there = ends
    os.write(raw(there).fileno(), sent)
    there.shut_down()
    with pytest.raises(NodeLostError, match=r"^node 0 was lost \("):
        here.receive(Answer, 5)
    with pytest.raises(NodeLostError):
        for _ in range(100):
            there.send(Answer(message="b" * 10_000))


def test_pickles_are_never_read(ends: Ends, tmp_path: Path) -> None:
    here, there = ends
    raw(there).send(Attack(tmp_path / "attacked"))
    with pytest.raises(NodeLostError):
        here.receive(Order, 5)
    assert not (tmp_path / "attacked").exists()


def test_secret_is_readable_by_its_user_only_and_is_removed(tmp_path: Path) -> None:
    path, mask = tmp_path / "runs" / "laptop" / ".secret", os.umask(0)
    try:
        path.parent.mkdir(parents=True)
        path.write_bytes(b"x" * SECRET_BYTES)  # left by a killed set of runs
        path.chmod(0o644)
        with new_secret(path) as secret:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert read_secret(path) == secret != b"x" * SECRET_BYTES
            assert [file.name for file in path.parent.iterdir()] == [".secret"]
        assert not path.exists()
        with new_secret(path) as other:
            assert other != secret
            path.write_bytes(secret)  # of another set of runs, which must be kept
        assert read_secret(path) == secret
    finally:
        os.umask(mask)
    path.write_bytes(b"short")
    assert read_secret(path) is None
    path.unlink()
    os.mkfifo(path)
    assert read_secret(path) is None


def test_each_system_and_rendezvous_has_another_secret_file(config: RunConfig, tmp_path: Path) -> None:
    hosts = ("a:29500", "[fd00::1]:29500", "a/../../x:29500")
    launches = [config.launch.model_copy(update={"rendezvous": host}) for host in hosts]
    files = [secret_file(config.model_copy(update={"launch": launch}), tmp_path) for launch in launches]
    assert len(set(files)) == 3
    assert {file.parent for file in files} == {tmp_path / "laptop"}


class WorkerThread:
    """Node 1, in a thread of this process."""

    def __init__(self, config: RunConfig, runs: Path) -> None:
        self.notes, self.error = list[str](), list[PodiumError]()
        self._thread = threading.Thread(target=self._run_worker, args=(config, runs), daemon=True)
        self._thread.start()

    def _run_worker(self, config: RunConfig, runs: Path) -> None:
        try:
            run_worker_node(config, 1, runs, self.notes.append)
        except PodiumError as error:
            self.error.append(error)

    def wait(self) -> str:
        """Wait for its end and return its error message."""
        self._thread.join(20)
        assert not self._thread.is_alive()
        return "".join(map(str, self.error))


def quiet(text: str) -> None:
    pass


@contextmanager
def two_nodes(
    config: RunConfig, runs: Path, before_worker: Callable[[tuple[str, int]], None] = lambda address: None
) -> Iterator[tuple[NodeGroup, WorkerThread]]:
    """Node 0 and a worker, which starts after `before_worker` was called with node 0's address."""
    workers: list[WorkerThread] = []

    def note(text: str) -> None:
        assert text.startswith("Waiting for 1 other nodes at ")
        before_worker(rendezvous_address(config))
        workers.append(WorkerThread(config, runs))

    with node_group(config, runs, note) as nodes:
        yield nodes, workers[0]


@pytest.fixture
def other_peers() -> Iterator[list[socket.socket]]:
    """List of connections to close after the test."""
    opened: list[socket.socket] = []
    yield opened
    for peer in opened:
        peer.close()


@pytest.fixture
def long_handshake(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a handshake take longer than nodes wait for each other."""
    monkeypatch.setattr("podium.launch.node_connection.HANDSHAKE_SECONDS", 60.0)


FRAMED = b'\0\0\0\x0f{"failed": "x"}'


@pytest.mark.usefixtures("long_handshake")
@pytest.mark.parametrize(
    "sent",
    [
        b"",  # silent
        b"\0",  # half of a message's length
        b'{"failed": "x"}\n',
        FRAMED,
        b'{"node": 1, "host": "x", "system": "laptop"}\n',
        b"\x7f\xff\xff\xff" + b"x" * 70_000,
        b"GET / HTTP/1.0\r\n\r\n",
    ],
)
def test_unauthenticated_connections_do_not_delay_a_node(
    config: RunConfig, tmp_path: Path, other_peers: list[socket.socket], sent: bytes
) -> None:
    def call(address: tuple[str, int]) -> None:
        for _ in range(3):
            other_peers.append(socket.create_connection(address))
            call_suppressed(other_peers[-1].sendall, sent)

    with two_nodes(config, tmp_path, call) as (nodes, worker):
        assert [other.name for other in nodes.others] == [f"node 1 ({socket.gethostname()})"]
    assert worker.wait() == ""
    for peer in other_peers:
        peer.settimeout(20)
        received = b""
        with suppress(ConnectionResetError):
            while more := peer.recv(1 << 16):
                received += more
        assert len(received) < 80  # a challenge, and the failure


@pytest.mark.usefixtures("long_handshake")
def test_oldest_pending_connection_is_closed(
    config: RunConfig, tmp_path: Path, other_peers: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("podium.launch.node_group.MAX_PENDING_CONNECTIONS", 0)

    def call() -> None:
        other_peers.extend(socket.create_connection(rendezvous_address(config)) for _ in range(30))
        while other_peers[0].recv(1 << 16):  # a challenge, and the end
            pass
        WorkerThread(config, tmp_path)

    with node_group(config, tmp_path, lambda text: threading.Thread(target=call, daemon=True).start()) as nodes:
        assert len(nodes.others) == 1


def test_handshake_has_one_deadline(config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Single bytes do not extend it."""
    monkeypatch.setattr("podium.launch.node_connection.HANDSHAKE_SECONDS", 0.3)
    answers: list[bytes] = []

    def call(address: tuple[str, int]) -> None:
        with socket.create_connection(address) as peer:
            peer.settimeout(0.02)
            peer.sendall(b"\0\0\0\xff")  # of a message of 255 bytes
            with suppress(ConnectionError):
                while not answers or answers[-1]:
                    with suppress(TimeoutError):
                        answers.append(peer.recv(1 << 16))
                    peer.sendall(b"x")
            answers.append(b"closed")

    def late(address: tuple[str, int]) -> None:
        thread = threading.Thread(target=call, args=(address,))
        thread.start()
        threading.Thread(target=lambda: (thread.join(), WorkerThread(config, tmp_path)), daemon=True).start()

    addresses: list[str] = []
    with node_group(config, tmp_path, lambda text: late(rendezvous_address(config))) as nodes:
        addresses += [other.own_address for other in nodes.others]
    assert addresses == ["127.0.0.1"]
    assert answers[-1] == b"closed"


@pytest.mark.parametrize(
    ("hello", "reason"),
    [
        (Hello(rank=2, host="c"), "node 2 is not expected; nodes 1 are missing"),
        (Hello(rank=0, host="c"), "node 0 is not expected; nodes 1 are missing"),
    ],
)
def test_unexpected_ranks_are_refused(config: RunConfig, tmp_path: Path, hello: Hello, reason: str) -> None:
    """With the right secret: a node that was started twice, or with another launch.nodes."""
    found: list[Answer | None] = []

    def call(address: tuple[str, int]) -> None:
        def connect() -> None:
            secret = read_secret(secret_file(config, tmp_path))
            with closing(NodeConnection(socket.create_connection(address))) as connection:
                assert secret
                connection.authenticate(secret, challenges_first=False)
                connection.send(hello)
                found.append(connection.receive(Answer, 20))
            WorkerThread(config, tmp_path)

        threading.Thread(target=connect).start()

    with node_group(config, tmp_path, lambda text: call(rendezvous_address(config))):
        pass
    assert found == [Answer(failure=reason)]


@pytest.mark.parametrize("sent", [b'{"rank": 1}', b'{"rank": "1", "host": "x"}', b"[]"])
def test_invalid_hello_is_not_accepted(config: RunConfig, tmp_path: Path, sent: bytes) -> None:
    def call(address: tuple[str, int]) -> None:
        def connect() -> None:
            with closing(NodeConnection(socket.create_connection(address))) as connection:
                connection.authenticate(read_secret(secret_file(config, tmp_path)) or b"", challenges_first=False)
                raw(connection).send_bytes(sent)
                with suppress(NodeLostError):
                    assert connection.receive(Answer, 20) is None
            WorkerThread(config, tmp_path)

        threading.Thread(target=connect).start()

    with node_group(config, tmp_path, lambda text: call(rendezvous_address(config))) as nodes:
        assert len(nodes.others) == 1


Handshake = Callable[["Connection[Any, Any]"], None]


@contextmanager
def false_first_node(config: RunConfig, handshake: Handshake) -> Iterator[None]:
    """Server at node 0's address that does not know the secret, with the given handshake."""
    with socket.create_server(rendezvous_address(config)) as server:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connected, _ = server.accept()
                    with Connection(connected.detach()) as connection:
                        call_suppressed(handshake, connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield
        server.shutdown(socket.SHUT_RDWR)
    thread.join()


def with_another_secret(connection: "Connection[Any, Any]") -> None:
    with suppress(Exception):
        deliver_challenge(connection, b"another")
    connection.send_bytes(b"#WELCOME#")
    with suppress(Exception):
        answer_challenge(connection, b"another")
    connection.send_bytes(b'{"do": "run", "folder": "../..", "entry": "train"}')
    connection.recv_bytes()


def order_first(connection: "Connection[Any, Any]") -> None:
    """Send an order in place of a challenge."""
    connection.send_bytes(b'{"do": "end", "failure": "x", "exit_code": 3}')
    connection.recv_bytes()


def pretending(connection: "Connection[Any, Any]") -> None:
    """Accept every response, and send the worker's challenge back as the response."""
    connection.send_bytes(b"#CHALLENGE#" + b"x" * 20)
    connection.recv_bytes()
    connection.send_bytes(b"#WELCOME#")
    connection.send_bytes(connection.recv_bytes())
    connection.recv_bytes()


def closing_at_once(connection: "Connection[Any, Any]") -> None:
    connection.close()


@pytest.mark.parametrize("handshake", [with_another_secret, order_first, pretending, closing_at_once])
def test_worker_rejects_a_first_node_without_the_secret(
    config: RunConfig, tmp_path: Path, handshake: Handshake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("podium.launch.node_group.JOIN_SECONDS", 0.0)
    with (
        new_secret(secret_file(config, tmp_path)),
        false_first_node(config, handshake),
        pytest.raises(
            WorkError, match=r"^launch\.rendezvous: the process that answers at 127\.0\.0\.1:\d+ does not know the"
        ),
    ):
        run_worker_node(config, 1, tmp_path, quiet)


def test_silent_first_node_ends_the_handshake_at_the_deadline(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("podium.launch.node_group.JOIN_SECONDS", 0.0)
    monkeypatch.setattr("podium.launch.node_connection.HANDSHAKE_SECONDS", 0.1)
    with (
        new_secret(secret_file(config, tmp_path)),
        false_first_node(config, lambda connection: call_suppressed(connection.recv_bytes)),
        pytest.raises(WorkError, match=r"the process that answers at .* does not know the secret"),
    ):
        run_worker_node(config, 1, tmp_path, quiet)


def test_missing_secret_file_is_an_error(config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("podium.launch.node_group.JOIN_SECONDS", 0.0)
    with (
        false_first_node(config, closing_at_once),
        pytest.raises(WorkError, match="does not exist here; share one runs/ between all"),
    ):
        run_worker_node(config, 1, tmp_path, quiet)


def test_secret_is_read_at_each_attempt(config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker starts while another process answers; then its node 0 starts."""
    monkeypatch.setattr("podium.launch.node_group.RETRY_SECONDS", 0.02)
    path = secret_file(config, tmp_path)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"s" * SECRET_BYTES)
    with false_first_node(config, closing_at_once):
        worker = WorkerThread(config, tmp_path)
        while not any("does not know the secret" in note for note in worker.notes):
            worker._thread.join(0.01)
    with node_group(config, tmp_path, quiet) as nodes:
        assert len(nodes.others) == 1
        assert not path.exists()  # it has been used
    assert worker.wait() == ""


def listening(port: int) -> set[str]:
    """Addresses at which a process of this machine listens at a port, in the kernel's hexadecimal."""
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(FileNotFoundError):
            for line in Path(table).read_text(encoding="ascii").splitlines()[1:]:
                _, local, _, state, *_ = line.split()
                address, _, number = local.partition(":")
                if state == "0A" and int(number, 16) == port:
                    found.add(address)
    return found


@pytest.mark.parametrize(
    ("host", "address"), [("127.0.0.1", "127.0.0.1"), ("localhost", "127.0.0.1"), ("[::1]", "::1")]
)
def test_node_0_listens_only_at_the_rendezvous(
    config: RunConfig, tmp_path: Path, host: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if address == "::1" and not Path("/proc/net/if_inet6").exists():
        pytest.skip("there is no IPv6 here")
    whole = socket.getaddrinfo
    monkeypatch.setattr(
        socket,
        "getaddrinfo",
        lambda name, *rest, **more: whole("127.0.0.1" if name == "localhost" else name, *rest, **more),
    )
    port = rendezvous_address(config)[1]
    launch = config.launch.model_copy(update={"rendezvous": f"{host}:{port - 1}"})
    config = config.model_copy(update={"launch": launch})
    found: list[set[str]] = []
    with two_nodes(config, tmp_path, lambda _: found.append(listening(port))) as (nodes, worker):
        assert nodes.node == Node(0, address)
        assert nodes.others[0].own_address == address
        assert listening(port) == set()  # all nodes have connected
    assert found == [{"0100007F"} if address == "127.0.0.1" else {"00000000000000000000000001000000"}]
    assert worker.wait() == ""


@pytest.mark.parametrize("name", ["two words", "", "a" * 64, "ä", "no UTF-8: \udcff", "\x1b[2J"])
def test_any_host_name_is_accepted(
    config: RunConfig, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: name)
    with two_nodes(config, tmp_path) as (nodes, worker):
        assert nodes.others[0].name == f"node 1 ({printable(name)})"
    assert worker.wait() == ""


@pytest.mark.parametrize("host", ["node0.invalid", "a" * 64])
def test_unresolvable_rendezvous_is_an_error_on_every_node(config: RunConfig, tmp_path: Path, host: str) -> None:
    launch = config.launch.model_copy(update={"rendezvous": f"{host}:29500"})
    config = config.model_copy(update={"launch": launch})
    for start in (
        lambda: run_worker_node(config, 1, tmp_path, quiet),
        lambda: node_group(config, tmp_path, quiet).__enter__(),
    ):
        with pytest.raises(UsageError, match=f"^launch.rendezvous: the host name {host} does not resolve on this node"):
            start()


@pytest.fixture
def runs(config: RunConfig, tmp_path: Path) -> Path:
    """runs/ with links that lead out of it, and a file next to it."""
    runs = tmp_path / "runs"
    (runs / "laptop" / "run_0").mkdir(parents=True)
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "config.yaml").write_text("password: hunter2\n", encoding="utf-8")
    (runs / "laptop" / "link").symlink_to(tmp_path / "secrets")
    (runs / "laptop" / "circle").symlink_to("circle")
    (runs / "laptop" / "run_0" / "config.yaml").symlink_to(tmp_path / "secrets" / "config.yaml")
    return runs


OUTSIDE = ("", "..", "../secrets", "laptop/../../secrets", "laptop/link", "{root}/secrets", "/")


def test_orders_for_folders_outside_of_runs_are_refused(
    config: RunConfig, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is started, written or read there, and no line of a file is sent back."""
    monkeypatch.setattr("podium.launch.node_group.FILE_SECONDS", 0.0)
    monkeypatch.setattr("podium.launch.launch.subprocess.Popen", lambda *_, **__: pytest.fail("a process is started"))
    before = sorted(tmp_path.rglob("*"))
    with two_nodes(config, runs) as (nodes, worker):
        for folder, do in product(OUTSIDE, ("run", "verify", "clear")):
            nodes.others[0].send(Order.model_validate({"do": do, "folder": folder.format(root=tmp_path)}))
            answer = nodes.others[0].receive(Answer, 20)
            assert answer is not None
            assert f"is not a folder below {runs}, so nothing was done" in answer.failure
        for folder in ("a\0b", "laptop/circle", "laptop/none", "x" * 300):
            nodes.others[0].send(Order(do="run", folder=folder))
            answer = nodes.others[0].receive(Answer, 20)
            assert answer is not None
            assert answer.failure
    assert worker.wait() == ""
    assert sorted(tmp_path.rglob("*")) == before


def test_no_line_of_a_file_is_sent_back(config: RunConfig, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("podium.launch.node_group.FILE_SECONDS", 0.0)
    with two_nodes(config, runs) as (nodes, worker):
        nodes.others[0].send(Order(do="run", folder="laptop/run_0"))
        answer = nodes.others[0].receive(Answer, 20)
    path = runs / "laptop" / "run_0" / "config.yaml"
    assert answer == Answer(failure=f"{path}: cannot be read on this node; the reason is in Podium's output there")
    assert worker.wait() == ""
    assert any("password" in note for note in worker.notes)


@pytest.mark.parametrize("content", [b'{"do": "run", "folder": "laptop/run_0", "entry": "os.system"}', b"7", b"{"])
def test_invalid_order_ends_the_worker(config: RunConfig, runs: Path, content: bytes) -> None:
    with two_nodes(config, runs) as (nodes, worker):
        raw(nodes.others[0]).send_bytes(content)
        with pytest.raises(NodeLostError, match=r"^node 1 \(.*\) was lost \(it closed the connection\)"):
            nodes.others[0].receive(Answer, 20)
        assert worker.wait().startswith("node 0 was lost (it sent an invalid Order: ")


def test_folder_outside_of_runs_is_not_sent(runs: Path, tmp_path: Path) -> None:
    group = NodeGroup(runs)
    with pytest.raises(UsageError, match=r"secrets: not below .*runs, which all nodes share; move the run's"):
        group._relative_name(RunFolder(tmp_path / "secrets"))


def test_node_that_failed_to_start_is_not_waited_for(ends: Ends, tmp_path: Path) -> None:
    node, group = ends[0], NodeGroup(tmp_path)
    group.others.append(ends[1])
    group.start(RunFolder(tmp_path / "run_0"), "train", ["--caches-cleared"])
    order = node.receive(Order, 5)
    assert order == Order(do="run", folder="run_0", entry="train", options=("--caches-cleared",))
    node.send(Answer(failure="the disk is full"))
    assert ends[1]._connection.poll(5)
    with pytest.raises(WorkError, match=r"^node 1 \(b\): the disk is full$"):
        group.watch()
    group.stop()
    assert node.receive(Order, 0) is None  # its processes have ended, and get no stop order


def test_invalid_answer_is_an_error(config: RunConfig, ends: Ends, tmp_path: Path) -> None:
    group = NodeGroup(tmp_path)
    group.others.append(ends[1])
    group.start(RunFolder(tmp_path / "run_0"), "train", [])
    raw(ends[0]).send_bytes(json.dumps({"failed": "x"}).encode())
    assert ends[1]._connection.poll(5)
    with pytest.raises(
        NodeLostError, match=r"^node 1 \(b\) was lost \(it sent an invalid Answer: failed: Extra inputs"
    ):
        group.watch()
