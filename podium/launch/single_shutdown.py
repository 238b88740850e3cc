"""Runs a module whose shutdown is begun by one signal and not broken off by the next: `-m …single_shutdown MODULE …`.

torchrun ends itself upon each SIGTERM, and a second one interrupts its wait for ranks that save themselves after the
first. Slurm sends SIGTERM to every process of a job's step, torchrun among them, which then gets another from
`podium run`.
"""

import runpy
import signal
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


def main() -> None:
    signal.signal = install_once  # type: ignore[assignment]
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
