"""Many logs: in processes or without, from what is kept or anew, always the same."""

from pathlib import Path

import pytest

from benchmarks.files import sha256_of
from podium.comparison import reading
from podium.comparison.cache import RunCache
from podium.comparison.reading import read_one, read_runs
from podium.reading.run_log import Run
from tests.podium.comparison.conftest import log_text


@pytest.fixture
def logs(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"result_{number}.txt" for number in range(30)]
    for number, path in enumerate(paths):
        path.write_text(log_text(100.0 + number), encoding="utf-8")
    return paths


def test_in_processes_and_without(logs: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "processors", lambda: 2)
    many = read_runs(logs, RunCache(None))
    monkeypatch.setattr(reading, "FEW", 100)
    assert read_runs(logs, RunCache(None)) == many
    assert [run.seconds for run in many.values() if isinstance(run, Run)] == [100.0 + number for number in range(30)]
    assert list(many) == logs


def test_a_log_that_is_known_is_not_read(logs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "FEW", 100)
    told: list[int] = []
    first = read_runs(logs, RunCache(tmp_path / "cache"), told.append)
    logs[3].write_text(log_text(777.0), encoding="utf-8")
    read: list[Path] = []
    monkeypatch.setattr(reading, "read_one", lambda log: read.append(log) or read_one(log))
    second = read_runs(logs, RunCache(tmp_path / "cache"), told.append)
    assert read == [logs[3]]
    assert {log: run for log, run in second.items() if log != logs[3]} == {
        log: run for log, run in first.items() if log != logs[3]
    }
    assert sum(told) == 60
    moved = logs[0].rename(tmp_path / "elsewhere.txt")
    assert read_runs([moved], RunCache(tmp_path / "cache"))[moved] == first[logs[0]] and read == [logs[3]]


def test_a_log_that_changes_while_it_is_read_is_not_kept(
    logs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def grown(log: Path) -> Run | str:
        with log.open("a", encoding="utf-8") as file:
            file.write("more\n")
        return read_one(log)

    before = sha256_of(logs[0])
    monkeypatch.setattr(reading, "read_one", grown)
    read_runs(logs[:1], RunCache(tmp_path / "cache"))
    cache = RunCache(tmp_path / "cache")
    assert cache.get([before, sha256_of(logs[0])]) == {}


def test_a_log_that_cannot_be_read_is_told(logs: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    logs[1].unlink()
    found = read_runs(logs[:3], RunCache(None))
    assert "cannot be read" in str(found[logs[1]]) and isinstance(found[logs[2]], Run)
