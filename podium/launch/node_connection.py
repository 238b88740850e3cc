"""Authenticated connections between the nodes of a set of runs, with JSON objects as messages.

Before any message both ends prove by HMAC that they know a secret: node 0 writes a new one for each set of runs into
the folder that all nodes share, readable by this user alone. Messages are neither encrypted nor signed after that. When
the other end's process has ended, its connection closes; a machine that lost its power or its network is detected by
TCP's keep-alive within a minute.
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
from podium.core.files import make_folder, read_bounded, whole_file
from podium.core.text import cut, printable
from podium.launch.addresses import host_and_port

GREETING_SECONDS = 10.0  # for a whole greeting, however slow the other end is
KEEP_ALIVE = {"TCP_KEEPIDLE": 20, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 4}  # seconds, seconds, and tries
LONGEST_MESSAGE = 1 << 20
SECRET_BYTES = 32


class LostError(WorkError):
    """The other node has closed the connection, died, or sent what is not a message."""


def _printable(value: object) -> object:
    return printable(value, keep="\n") if isinstance(value, str) else value


# Host names and paths may have what is no UTF-8, and no terminal is to act on what another node sends.
Text = Annotated[str, BeforeValidator(_printable)]


class Message(BaseModel):
    """A JSON object with exactly these fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Hello(Message):
    """First message of a node that joins node 0."""

    rank: int
    host: Text


Entry = Literal["train", "doctor"]  # the implementation's entry points that several nodes run together


class Order(Message):
    """What node 0 has another node do."""

    do: Literal["clear", "verify", "run", "stop", "end"]
    folder: Text = ""  # of the run, relative to runs/
    listed: bool = False  # verify: whether the run's folder lists the data
    entry: Entry = "train"  # run
    options: tuple[str, ...] = ()  # run: of the entry point
    failure: Text = ""  # end: why node 0 failed
    exit_code: int = 0  # end


class Answer(Message):
    """What became of an order, or of a Hello."""

    failure: Text = ""  # why it could not be carried out
    samples: bool = True  # clear: whether the samples are no longer in memory
    message: Text = ""  # clear: what was done. run: why the node's processes ended early
    changed: Text = ""  # run: which data was changed meanwhile


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
        # For bytes alone: its `send` and `recv` are never called, since `recv` unpickles what the other end sends.
        self._connection: Connection[Any, Any] = Connection(os.dup(connected.fileno()))

    @property
    def own_address(self) -> str:
        return str(self._socket.getsockname()[0])

    @contextmanager
    def deadline(self, seconds: float) -> Iterator[None]:
        """Shut the connection down if the block takes longer, which ends whatever waits for it; LostError then."""
        timer = threading.Timer(seconds, self.shut_down)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()
        if self._expired:
            raise self._lost("it took too long")

    def shut_down(self) -> None:
        self._expired = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def authenticate(self, secret: bytes, challenges_first: bool) -> None:
        """Prove to know the secret and have the other end prove it. LostError if it does not."""
        steps = (deliver_challenge, answer_challenge)
        try:
            for step in steps if challenges_first else reversed(steps):
                step(self._connection, secret)
        # Python up to 3.11 asserts the form of a challenge; from 3.12 on ValueError names a digest that is not allowed.
        except (AuthenticationError, AssertionError, EOFError, OSError, ValueError) as error:
            raise self._lost(error) from None

    def send(self, message: Message) -> None:
        try:
            self._connection.send_bytes(message.model_dump_json(exclude_defaults=True).encode())
        except OSError as error:
            raise self._lost(error) from None

    def receive(self, kind: type[M], seconds: float | None = None) -> M | None:
        """The next message; None if none has come after this time (0: is there one?). Waits without a limit for None.

        Raises LostError, also for what is no message of this kind.
        """
        try:
            if not self._connection.poll(seconds):
                return None
            content = self._connection.recv_bytes(LONGEST_MESSAGE)
        except (EOFError, OSError) as error:
            raise self._lost(str(error) or "it closed the connection") from None
        try:
            return kind.model_validate_json(content)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"])) or "its message"
            raise self._lost(f"it sent what is no {kind.__name__}: {cut(where, 60)}: {first['msg']}") from None

    def close(self) -> None:
        self._connection.close()
        self._socket.close()

    def _lost(self, why: object) -> LostError:
        return LostError(f"{self.name} was lost ({why}); see what Podium printed there")


def secret_file(config: RunConfig, runs: Path) -> Path:
    """Where node 0 leaves the secret for the nodes that join it at launch.rendezvous."""
    return runs / config.system / f".nodes_{quote(str(config.launch.rendezvous), safe='')}.secret"


@contextmanager
def new_secret(path: Path) -> Iterator[bytes]:
    """A secret that is in this file, for this user alone, until the block ends."""
    secret = secrets.token_bytes(SECRET_BYTES)
    make_folder(path.parent)
    with whole_file(path) as temporary:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(secret)
    try:
        yield secret
    finally:
        if read_secret(path) == secret:
            with suppress(OSError):
                path.unlink()


def read_secret(path: Path) -> bytes | None:
    """The secret in this file; None where there is none."""
    try:
        content = read_bounded(path, SECRET_BYTES)
    except OSError:
        return None
    return content if len(content) == SECRET_BYTES else None


def greet_caller(caller: NodeConnection, secret: bytes) -> Hello:
    """On node 0: what the node that has called sends, once both ends are authenticated. LostError for a stranger."""
    with caller.deadline(GREETING_SECONDS):
        caller.authenticate(secret, challenges_first=True)
        hello = caller.receive(Hello)
    assert hello is not None
    return hello


def greet_first_node(connected: socket.socket, hello: Hello, file: Path) -> NodeConnection:
    """On another node: the connection once both ends are authenticated and node 0 has admitted this node.

    LostError where that may succeed later, with what to do if it does not. UsageError where node 0 refuses this node.
    """
    first, place = NodeConnection(connected), host_and_port(*connected.getpeername()[:2])
    try:
        with first.deadline(GREETING_SECONDS):
            secret = read_secret(file)  # anew at each attempt: an older one may be seen at first
            if secret is None:
                raise LostError(
                    f"a process answers at {place}, but {file} is not here; have one runs/ for all nodes, and "
                    "start the same system as on node 0"
                )
            try:
                first.authenticate(secret, challenges_first=False)
            except LostError:
                raise LostError(
                    f"what answers at {place} does not know the secret in {file}; another program may be "
                    "listening there, or node 0 has another runs/"
                ) from None
            first.send(hello)
            answer = first.receive(Answer)
        if answer is not None and answer.failure:
            raise UsageError(f"node 0 refused this node: {answer.failure}")
    except BaseException:
        first.close()
        raise
    return first
