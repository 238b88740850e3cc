"""Being asked to stop: SIGTERM sets a flag instead of ending the process, which then saves itself and leaves."""

import os
import signal
import threading
from types import TracebackType
from typing import Self

from benchmarks.errors import Saved

GRACE_SECONDS = 50.0
"""So long after SIGTERM a process is ended that has not left by itself: another rank may hang or have died."""


class StopRequest:
    """Whether SIGTERM has come. Use as a context manager, in the main thread.

    The signal is noticed by a thread, so that it is even where the main thread waits for another rank.
    """

    def __init__(self, grace_seconds: float = GRACE_SECONDS) -> None:
        self.asked = False
        self._grace_seconds = grace_seconds
        self._left = threading.Event()

    def __enter__(self) -> Self:
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._handler = signal.signal(signal.SIGTERM, lambda *_: None)
        self._descriptor = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._wait, name="stop request", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.set_wakeup_fd(self._descriptor)
        signal.signal(signal.SIGTERM, self._handler)
        self._left.set()
        os.close(self._write)
        self._thread.join()
        os.close(self._read)

    def _wait(self) -> None:
        """Python writes the number of each signal that it handles into the pipe; closed, it is at its end."""
        while number := os.read(self._read, 1):
            if number[0] == signal.SIGTERM:
                self.asked = True
                if not self._left.wait(self._grace_seconds):
                    os._exit(Saved.exit_code)
                return
