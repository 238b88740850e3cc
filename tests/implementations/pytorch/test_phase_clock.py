"""The clock that shares time out to phases."""

from types import SimpleNamespace

import pytest

from implementations.pytorch import phase_clock
from implementations.pytorch.phase_clock import PHASES, PhaseClock


class Time:
    """A clock that goes on when it is told to."""

    now = 100.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    clock = Time()
    monkeypatch.setattr(phase_clock, "time", SimpleNamespace(perf_counter=clock.perf_counter))
    return clock


def test_each_lap_goes_to_its_phase(time: Time) -> None:
    clock = PhaseClock()
    time.now = 110.0
    clock.restart()  # what was before goes to none
    for phase, seconds in (("forward", 1.0), ("backward", 2.0), ("forward", 4.0)):
        time.now += seconds
        clock.lap(phase)
    assert clock.seconds == {**dict.fromkeys(PHASES, 0.0), "forward": 5.0, "backward": 2.0}


def test_a_lap_until_a_time_leaves_the_rest_to_the_next(time: Time) -> None:
    clock = PhaseClock()
    clock.restart()
    time.now += 10.0
    clock.lap("backward", until=107.0)
    clock.lap("synchronisation")
    assert (clock.seconds["backward"], clock.seconds["synchronisation"]) == (7.0, 3.0)


def test_a_time_before_the_lap_is_no_negative_lap(time: Time) -> None:
    clock = PhaseClock()
    clock.restart()
    time.now += 1.0
    clock.lap("backward", until=50.0)
    clock.lap("synchronisation")
    assert (clock.seconds["backward"], clock.seconds["synchronisation"]) == (0.0, 1.0)
