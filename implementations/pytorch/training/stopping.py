"""Being asked to stop: SIGTERM sets a flag instead of ending the process, which then saves itself and leaves."""

import os
import signal
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

from benchmarks.errors import Saved
from podium.config.patience import saving_seconds


class StopRequest:
    """Whether SIGTERM has come. Use as a context manager, in the main thread.

    A process that has not left by itself after `grace_seconds` is ended, with a word about it: another rank may hang or
    have died. Without them they are as long as the installed torchrun's patience allows (podium/config/patience.py).

    The signal is noticed by a thread, so that it is even where the main thread waits for another rank.
    """

    def __init__(self, grace_seconds: float | None = None) -> None:
        self.asked = False
        self._grace_seconds = saving_seconds() if grace_seconds is None else grace_seconds
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

    @property
    def _words(self) -> str:
        return f"asked to stop, and not saved within {self._grace_seconds:g} seconds: gives up"

    def _wait(self) -> None:
        """Python writes the number of each signal that it handles into the pipe; closed, it is at its end."""
        while number := os.read(self._read, 1):
            if number[0] == signal.SIGTERM:
                self.asked = True
                if not self._left.wait(self._grace_seconds):
                    with suppress(OSError):
                        os.write(2, f"process {os.getpid()}: {self._words}\n".encode())
                    os._exit(Saved.exit_code)
                return
