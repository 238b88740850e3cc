"""Monotonic and wall clocks, detection of wall-clock steps, and time during which the process was running."""

import time
from dataclasses import dataclass


def boot_seconds() -> float:
    """Seconds since boot, time in suspend included (CLOCK_BOOTTIME, which no process can set)."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def wall_seconds() -> float:
    """Seconds since 1970 by the machine's clock (CLOCK_REALTIME), which may be set at any time."""
    return time.clock_gettime(time.CLOCK_REALTIME)


@dataclass(frozen=True)
class Moment:
    """One point in time, read from both clocks."""

    wall: float
    boot: float

    @classmethod
    def now(cls) -> "Moment":
        return cls(wall_seconds(), boot_seconds())

    def elapsed(self) -> float:
        """Seconds since this moment, by the boot clock."""
        return boot_seconds() - self.boot

    def clock_step(self) -> float:
        """Seconds by which the machine's clock was set forwards since this moment; negative if backwards.

        NTP slewing changes the rate of both clocks alike (clock_gettime(2)), so it is not detected.
        """
        return wall_seconds() - self.wall - self.elapsed()


MAX_INTERVAL_SECONDS = 1.0


class AwakeClock:
    """Seconds during which this process was running, not stopped; `seconds` must be called at least once a second.

    While a process is stopped (Ctrl-Z, SIGSTOP) others may be stopped too: a timeout must not expire because of that.
    """

    def __init__(self, max_interval: float = MAX_INTERVAL_SECONDS) -> None:
        """Count at most `max_interval` seconds between two calls of `seconds`."""
        self._max_interval = max_interval
        self._seconds, self._last_reading = 0.0, time.monotonic()

    def seconds(self) -> float:
        """Seconds of running time since this clock was made."""
        now = time.monotonic()
        self._seconds += min(now - self._last_reading, self._max_interval)
        self._last_reading = now
        return self._seconds
