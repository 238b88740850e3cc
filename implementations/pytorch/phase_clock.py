"""Host time of a run by phase. A GPU may still compute a phase while the host is in a later one."""

import time
from dataclasses import dataclass, field

PHASES = ("data_wait", "forward", "backward", "synchronisation", "optimizer", "evaluation")


@dataclass
class PhaseClock:
    """Seconds of host time in each phase. `lap` adds the time since the previous lap to a phase."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    laps: int = 0  # number of laps so far, in all phases; the watchdog compares it
    phase: str = "nothing"  # of the last lap
    _last: float = field(default_factory=time.perf_counter)

    def restart(self) -> None:
        """Begin a lap here. The time since the previous lap counts for no phase."""
        self._last = time.perf_counter()

    def lap(self, phase: str, until: float | None = None) -> None:
        """End a lap of `phase`, now or at `until` (time.perf_counter); the rest then counts for the next lap."""
        # A time before the lap began gives a lap of 0 s, not a negative one.
        now = time.perf_counter() if until is None else max(until, self._last)
        self.seconds[phase] += now - self._last
        self.laps, self.phase = self.laps + 1, phase
        self._last = now
