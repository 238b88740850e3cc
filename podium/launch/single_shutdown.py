"""Run a module so that only the first shutdown signal reaches its handlers: `-m …single_shutdown MODULE …`.

torchrun shuts down at each SIGTERM, and a second one would interrupt its wait for ranks that save a checkpoint after
the first. That happens under Slurm: it sends SIGTERM to every process of a job's step, torchrun among them, which then
gets another from `podium run`.

torchrun also looks up this machine's fully qualified name, only to record it. This must not fail for an unusual name.
"""

import runpy
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

SHUTDOWN = (signal.SIGTERM, signal.SIGINT)

set_handler = signal.signal


def set_handler_once(number: int, handler: Any) -> Any:
    """Replacement of `signal.signal` whose handlers are called only for the first of all shutdown signals."""
    return set_handler(number, _first_signal_only(handler) if number in SHUTDOWN and callable(handler) else handler)


def _first_signal_only(handler: Callable[[int, Any], Any]) -> Callable[[int, Any], None]:
    def first(received: int, frame: Any) -> None:
        # Ignore all of them before the handler runs: it may take as long as the shutdown.
        for number in SHUTDOWN:
            set_handler(number, signal.SIG_IGN)
        handler(received, frame)

    return first


getfqdn = socket.getfqdn


def getfqdn_or_name(name: str = "") -> str:
    """Replacement of `socket.getfqdn` that returns every name without a fully qualified one unchanged.

    The original raises UnicodeError for a name of 64 characters without a dot, which Linux allows and DNS does not.
    """
    try:
        return getfqdn(name)
    except UnicodeError:
        return name


def main() -> None:
    signal.signal = set_handler_once  # type: ignore[assignment]
    socket.getfqdn = getfqdn_or_name
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
