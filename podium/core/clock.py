"""Clocks: time that passes whatever the machine's clock is set to, and by how much it was set meanwhile."""

import time
from dataclasses import dataclass


def boot_seconds() -> float:
    """Seconds since the machine was started, those that it slept included: CLOCK_BOOTTIME is never set."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def wall_seconds() -> float:
    """Seconds since 1970 by the machine's clock, which may be set forwards and backwards at any time."""
    return time.clock_gettime(time.CLOCK_REALTIME)


@dataclass(frozen=True)
class Moment:
    """A moment by both clocks."""

    wall: float
    boot: float

    @classmethod
    def now(cls) -> "Moment":
        return cls(wall_seconds(), boot_seconds())

    def elapsed(self) -> float:
        """Seconds since then."""
        return boot_seconds() - self.boot

    def stepped(self) -> float:
        """Seconds by which the machine's clock was set forwards since then, or backwards where negative.

        NTP's slewing speeds both clocks up or slows both down (clock_gettime(2)), so that it is not seen.
        """
        return wall_seconds() - self.wall - self.elapsed()


LONGEST_LOOK = 1.0


class AwakeClock:
    """Seconds in which this process itself was running, as far as it looks at the clock once a second or more often.

    While a process is stopped (Ctrl-Z, SIGSTOP) others may be so too: what it waits for must not seem late after that.
    """

    def __init__(self, longest_look: float = LONGEST_LOOK) -> None:
        """Of the time between two looks at most `longest_look` counts."""
        self._longest = longest_look
        self._seconds, self._looked = 0.0, time.monotonic()

    def seconds(self) -> float:
        now = time.monotonic()
        self._seconds += min(now - self._looked, self._longest)
        self._looked = now
        return self._seconds
