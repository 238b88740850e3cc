"""Authenticated connections between the nodes of a set of runs, with JSON objects as messages.

Before any message both ends prove by HMAC that they have the same secret. Node 0 writes a new one for each set of runs
into the folder that all nodes share, readable by this user only. Later messages are neither encrypted nor signed. A
connection closes when the process at the other end ends; a machine without power or network is detected by TCP's
keep-alive within a minute.
"""

import os
import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import quote

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from podium.config.schema import RunConfig
from podium.core.errors import UsageError, WorkError
from podium.core.files import atomic_file, make_folder, read_bounded
from podium.core.text import printable, truncate
from podium.launch.addresses import host_and_port

HANDSHAKE_SECONDS = 10.0  # for a whole handshake: a peer that sends a byte now and then does not extend it
KEEP_ALIVE = {"TCP_KEEPIDLE": 20, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 4}  # seconds, seconds, and probes
MAX_MESSAGE_BYTES = 1 << 20
SECRET_BYTES = 32


class NodeLostError(WorkError):
    """The other node has closed the connection, died, or sent an invalid message."""


def _printable(value: object) -> object:
    return printable(value, keep="\n") if isinstance(value, str) else value


# Host names and paths may not be UTF-8, and another node must not be able to send escape sequences to this terminal.
Text = Annotated[str, BeforeValidator(_printable)]


class Message(BaseModel):
    """Base of the messages: a JSON object with exactly the fields of its class."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Hello(Message):
    """First message of a node that joins node 0."""

    rank: int
    host: Text


Entry = Literal["train", "doctor"]  # the implementation's entry points that several nodes run together


class Order(Message):
    """Command of node 0 to another node."""

    do: Literal["clear", "verify", "run", "stop", "end"]
    folder: Text = ""  # the run's folder, relative to runs/
    listed: bool = False  # verify: whether data.json in the run's folder lists the expected data
    entry: Entry = "train"  # run: entry point
    options: tuple[str, ...] = ()  # run: options of the entry point
    failure: Text = ""  # end: error message of node 0
    exit_code: int = 0  # end: exit code of node 0


class Answer(Message):
    """Result of an order, or of a Hello."""

    failure: Text = ""  # why the order was not executed
    samples: bool = True  # clear: whether the samples are no longer in memory
    message: Text = ""  # clear: description of what was cleared; run: why the node's processes ended early
    changed: Text = ""  # run: which data was changed during the run


M = TypeVar("M", bound=Message)


class NodeConnection:
    """One end of a connection between two nodes; `name` is the node at the other end."""

    def __init__(self, connected: socket.socket, name: str = "node 0") -> None:
        self._socket, self.name, self._expired = connected, name, False
        connected.setblocking(True)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in KEEP_ALIVE.items():
            if hasattr(socket, option):
                connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        # Only its methods for bytes are used: `recv` would unpickle, and so execute, what the other end sends. It owns
        # a duplicate of the descriptor, because `shut_down` needs the socket.
        self._connection: Connection[Any, Any] = Connection(os.dup(connected.fileno()))

    @property
    def own_address(self) -> str:
        """Address of this end."""
        return str(self._socket.getsockname()[0])

    @contextmanager
    def deadline(self, seconds: float) -> Iterator[None]:
        """Shut the connection down if the block takes longer, which ends every wait in it; NodeLostError then."""
        timer = threading.Timer(seconds, self.shut_down)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()  # or a timer that has just fired could set `_expired` after the check below
        if self._expired:
            raise self._lost("it took too long")

    def shut_down(self) -> None:
        self._expired = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def authenticate(self, secret: bytes, challenges_first: bool) -> None:
        """Prove knowledge of the secret and verify the other end's; NodeLostError if that fails."""
        steps = (deliver_challenge, answer_challenge)
        try:
            for step in steps if challenges_first else reversed(steps):
                step(self._connection, secret)
        # An invalid challenge is an AssertionError up to Python 3.11; from 3.12 on a digest that is not allowed is a
        # ValueError.
        except (AuthenticationError, AssertionError, EOFError, OSError, ValueError) as error:
            raise self._lost(error) from None

    def send(self, message: Message) -> None:
        try:
            self._connection.send_bytes(message.model_dump_json(exclude_defaults=True).encode())
        except OSError as error:
            raise self._lost(error) from None

    def receive(self, message_type: type[M], seconds: float | None = None) -> M | None:
        """Return the next message, or None after `seconds` without one (0: do not wait; None: wait without a limit).

        Raises NodeLostError, also for an invalid message.
        """
        try:
            if not self._connection.poll(seconds):
                return None
            content = self._connection.recv_bytes(MAX_MESSAGE_BYTES)
        except (EOFError, OSError) as error:
            raise self._lost(str(error) or "it closed the connection") from None
        try:
            return message_type.model_validate_json(content)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"])) or "message"
            raise self._lost(
                f"it sent an invalid {message_type.__name__}: {truncate(where, 60)}: {first['msg']}"
            ) from None

    def close(self) -> None:
        self._connection.close()
        self._socket.close()

    def _lost(self, reason: object) -> NodeLostError:
        return NodeLostError(f"{self.name} was lost ({reason}); see Podium's output there")


def secret_file(config: RunConfig, runs: Path) -> Path:
    """File with the secret that the nodes share that meet at launch.rendezvous."""
    return runs / config.system / f".nodes_{quote(str(config.launch.rendezvous), safe='')}.secret"


@contextmanager
def new_secret(path: Path) -> Iterator[bytes]:
    """Write a new secret into this file, readable by this user only; remove it at the end of the block."""
    secret = secrets.token_bytes(SECRET_BYTES)
    make_folder(path.parent)
    with atomic_file(path) as temporary:
        # O_EXCL and the mode at creation: no other user can have opened the file before.
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(secret)
    try:
        yield secret
    finally:
        if read_secret(path) == secret:  # another set of runs may have replaced it
            with suppress(OSError):
                path.unlink()


def read_secret(path: Path) -> bytes | None:
    """Read the secret from this file; None if the file is missing or has another length."""
    try:
        content = read_bounded(path, SECRET_BYTES)
    except OSError:
        return None
    return content if len(content) == SECRET_BYTES else None


def handshake_with_worker(connection: NodeConnection, secret: bytes) -> Hello:
    """Node 0's side of the handshake: authenticate both ends and return the worker's Hello. Raises NodeLostError."""
    with connection.deadline(HANDSHAKE_SECONDS):
        connection.authenticate(secret, challenges_first=True)
        hello = connection.receive(Hello)
    assert hello is not None
    return hello


def handshake_with_first_node(connected: socket.socket, hello: Hello, file: Path) -> NodeConnection:
    """A worker's side of the handshake: the connection, once both ends are authenticated and node 0 has accepted.

    Raises NodeLostError if another attempt may succeed, and UsageError if node 0 refuses this node.
    """
    connection, address = NodeConnection(connected), host_and_port(*connected.getpeername()[:2])
    try:
        with connection.deadline(HANDSHAKE_SECONDS):
            # Read at each attempt: a network file system may at first show an older secret, or none.
            secret = read_secret(file)
            if secret is None:
                raise NodeLostError(
                    f"a process answers at {address}, but {file} does not exist here; share one runs/ between all "
                    "nodes, and start the same system as on node 0"
                )
            try:
                connection.authenticate(secret, challenges_first=False)
            except NodeLostError:
                raise NodeLostError(
                    f"the process that answers at {address} does not know the secret in {file}; another program may "
                    "be listening there, or node 0 has another runs/"
                ) from None
            connection.send(hello)
            answer = connection.receive(Answer)
        if answer is not None and answer.failure:
            raise UsageError(f"node 0 refused this node: {answer.failure}")
    except BaseException:
        connection.close()
        raise
    return connection
