"""PhaseClock: each lap counts for one phase."""

from types import SimpleNamespace

import pytest

from implementations.pytorch import phase_clock
from implementations.pytorch.phase_clock import PHASES, PhaseClock


class Time:
    """A clock that tests set."""

    now = 100.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    clock = Time()
    monkeypatch.setattr(phase_clock, "time", SimpleNamespace(perf_counter=clock.perf_counter))
    return clock


def test_each_lap_counts_for_its_phase(time: Time) -> None:
    clock = PhaseClock()
    time.now = 110.0
    clock.restart()  # the time before counts for no phase
    for phase, seconds in (("forward", 1.0), ("backward", 2.0), ("forward", 4.0)):
        time.now += seconds
        clock.lap(phase)
    assert clock.seconds == {**dict.fromkeys(PHASES, 0.0), "forward": 5.0, "backward": 2.0}


def test_the_time_after_until_counts_for_the_next_lap(time: Time) -> None:
    clock = PhaseClock()
    clock.restart()
    time.now += 10.0
    clock.lap("backward", until=107.0)
    clock.lap("synchronisation")
    assert (clock.seconds["backward"], clock.seconds["synchronisation"]) == (7.0, 3.0)


def test_until_before_the_lap_gives_no_negative_time(time: Time) -> None:
    clock = PhaseClock()
    clock.restart()
    time.now += 1.0
    clock.lap("backward", until=50.0)
    clock.lap("synchronisation")
    assert (clock.seconds["backward"], clock.seconds["synchronisation"]) == (0.0, 1.0)
