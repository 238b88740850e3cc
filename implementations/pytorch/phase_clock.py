"""Host time of a run by phase; a GPU may still compute while the host is in a later phase."""

import time
from dataclasses import dataclass, field

PHASES = ("data_wait", "forward", "backward", "synchronisation", "optimizer", "evaluation")


@dataclass
class PhaseClock:
    """Seconds spent in each phase. `lap` gives the time since the last lap to a phase."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    laps: int = 0  # ended so far, in all phases
    phase: str = "nothing"  # ended last
    _last: float = field(default_factory=time.perf_counter)

    def restart(self) -> None:
        """Begin a lap without giving the time before it to any phase."""
        self._last = time.perf_counter()

    def lap(self, phase: str, until: float | None = None) -> None:
        now = time.perf_counter() if until is None else max(until, self._last)
        self.seconds[phase] += now - self._last
        self.laps, self.phase = self.laps + 1, phase
        self._last = now
