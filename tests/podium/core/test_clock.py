"""Elapsed time does not depend on the wall clock, and steps of the wall clock are detected."""

import time

import pytest

from podium.core import clock
from podium.core.clock import Moment


def test_boot_seconds_include_time_in_suspend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "clock_gettime", {time.CLOCK_BOOTTIME: 7.0, time.CLOCK_REALTIME: 8.0}.__getitem__)
    assert (clock.boot_seconds(), clock.wall_seconds()) == (7.0, 8.0)


@pytest.mark.parametrize("step", [0.0, 3.0, -3.0, 3600.0, -3600.0])
def test_elapsed_time_does_not_depend_on_clock_steps(monkeypatch: pytest.MonkeyPatch, step: float) -> None:
    boot, wall = 100.0, 1e9
    monkeypatch.setattr(clock, "boot_seconds", lambda: boot)
    monkeypatch.setattr(clock, "wall_seconds", lambda: wall)
    moment = Moment(wall, boot)
    boot, wall = boot + 5.0, wall + 5.0 + step
    assert moment.elapsed() == 5.0
    assert moment.clock_step() == step


def test_the_clocks_of_this_machine_agree() -> None:
    moment = Moment.now()
    assert 0 <= moment.elapsed() < 60
    assert abs(moment.clock_step()) < 60
