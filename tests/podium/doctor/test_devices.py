"""Measurements of load, memory and disk speed, with loads and files that the tests make."""

import os
from pathlib import Path

import pytest

from podium.core import machine
from podium.core.errors import WorkError
from podium.doctor import devices
from podium.doctor.filesystem import Speed, drop_pages, is_cached, read_speed, write_speed


def test_available_memory_is_at_most_the_containers_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    memory, limit = tmp_path / "memory", tmp_path / "limit"
    memory.write_text("MemTotal: 4000 kB\nMemAvailable:    2000 kB\n", encoding="ascii")
    monkeypatch.setattr(devices, "MEMORY", memory)
    monkeypatch.setattr(devices, "CGROUP_MEMORY", limit)
    for text, expected in ((None, 2000 * 1024), ("max\n", 2000 * 1024), ("1000\n", 1000), ("9999999\n", 2000 * 1024)):
        if text is not None:
            limit.write_text(text, encoding="ascii")
        assert devices.measure_machine()["memory"] == expected


def test_unknown_measurements_are_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "STAT", tmp_path / "no")
    monkeypatch.setattr(devices, "MEMORY", tmp_path / "no")
    assert set(devices.measure_machine()) == {"processors", "limit"}


def test_read_speed_drops_the_page_cache_first(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in "ab"]
    for path in paths:
        path.write_bytes(bytes(3_000_000))
    for _ in range(3):  # pages that the kernel is using stay in memory
        speed = read_speed(paths)
        assert speed.bytes == 6_000_000
        assert speed.seconds > 0
        descriptor = os.open(paths[0], os.O_RDONLY)
        try:
            os.read(descriptor, 10)
            before = is_cached(descriptor)
            drop_pages(descriptor)
            after = is_cached(descriptor)
        finally:
            os.close(descriptor)
        if before is None or speed.from_disk is (not after):
            break
    if before is not None:
        assert before is True
        assert speed.from_disk is (not after)
    else:
        assert speed.from_disk is None


def test_read_speed_stops_at_the_maximum_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("podium.doctor.filesystem.MAX_BYTES", 2**21)
    (tmp_path / "a").write_bytes(bytes(2**23))
    assert read_speed([tmp_path / "a"] * 3).bytes == 2**21


def test_write_speed_leaves_no_file(tmp_path: Path) -> None:
    speed = write_speed(tmp_path, 2**21)
    assert (speed.bytes, list(tmp_path.iterdir())) == (2**21, [])
    assert Speed(10, 2.0).rate == 5.0
    with pytest.raises(WorkError, match="cannot be written"):
        write_speed(tmp_path / "no")
