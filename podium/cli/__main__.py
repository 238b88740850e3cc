"""Entry point of the `podium` command and of `python -m podium.cli`; installs signal handlers before other imports."""

import os
import signal
from types import FrameType


def main() -> None:
    """Run the command. A signal during the imports exits with code 130 or 143, as a later one does."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
        signal.signal(number, _exit_interrupted)
    from podium.cli.main import main as run

    run()


def _exit_interrupted(number: int, frame: FrameType | None) -> None:
    # An exception would print a traceback, or be lost in a library that ignores whatever an optional import raises.
    # os.write and os._exit are safe here: print and sys.exit could meet a half-imported module or a held buffer lock.
    os.write(2, b"podium: interrupted\n")
    os._exit(143 if number == signal.SIGTERM else 130)


if __name__ == "__main__":
    main()
