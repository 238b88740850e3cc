"""The `podium` command, also as `python -m podium.cli`. Signals are handled before all else is imported."""

import os
import signal
from types import FrameType


def main() -> None:
    """Run the command; a signal that arrives while it is imported ends it as one that arrives later does."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end)
    from podium.cli.main import main as run

    run()


def _end(number: int, frame: FrameType | None) -> None:
    # An exception would print a traceback, or be lost in a library that ignores whatever an optional import raises.
    os.write(2, b"podium: interrupted\n")
    os._exit(130)


if __name__ == "__main__":
    main()
