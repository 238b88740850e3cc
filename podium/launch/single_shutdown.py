"""Runs a module whose shutdown is begun by one signal and not broken off by the next: `-m …single_shutdown MODULE …`.

torchrun ends itself upon each SIGTERM, and a second one interrupts its wait for ranks that save themselves after the
first. Slurm sends SIGTERM to every process of a job's step, torchrun among them, which then gets another from
`podium run`.

torchrun also looks up this machine's full name for its own records, which must not fail for an unusual name.
"""

import runpy
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

SHUTDOWN = (signal.SIGTERM, signal.SIGINT)

install = signal.signal


def install_once(number: int, handler: Any) -> Any:
    """As `signal.signal`, with a handler that is called for the first of all shutdown signals alone."""
    return install(number, _first_only(handler) if number in SHUTDOWN and callable(handler) else handler)


def _first_only(handler: Callable[[int, Any], Any]) -> Callable[[int, Any], None]:
    def first(received: int, frame: Any) -> None:
        for number in SHUTDOWN:
            install(number, signal.SIG_IGN)
        handler(received, frame)

    return first


full_name = socket.getfqdn


def full_name_or_name(name: str = "") -> str:
    """As `socket.getfqdn`, which returns a name that does not resolve as it is, but raises UnicodeError for one of 64
    characters without a dot: the kernel allows it, DNS does not."""
    try:
        return full_name(name)
    except UnicodeError:
        return name


def main() -> None:
    signal.signal = install_once  # type: ignore[assignment]
    socket.getfqdn = full_name_or_name
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
