"""What was read is kept by content, and nothing that is wrong with what is kept matters."""

import sqlite3
from pathlib import Path

import pytest

from podium.comparison import cache as cache_module
from podium.comparison.cache import NAME, RunCache, default_folder
from tests.podium.comparison.conftest import make_run

RUNS = [make_run(1000.0 + n, digest=f"digest{n}") for n in range(3)]


def test_what_is_kept_is_found(tmp_path: Path) -> None:
    RunCache(tmp_path / "deep" / "folder").put(RUNS)
    cache = RunCache(tmp_path / "deep" / "folder")
    assert cache.get(["digest0", "digest2", "other"]) == {"digest0": RUNS[0], "digest2": RUNS[2]}
    assert cache.problem is None
    cache.put(RUNS[:1])
    assert cache.get([f"digest{n}" for n in range(2000)]) == {run.digest: run for run in RUNS}


def test_nothing_is_kept_where_nothing_shall_be(tmp_path: Path) -> None:
    cache = RunCache(None)
    cache.put(RUNS)
    assert cache.get(["digest0"]) == {} and RunCache(tmp_path).get(["digest0"]) == {}
    RunCache(tmp_path).put([])
    assert list(tmp_path.iterdir()) == []


def test_another_reader_reads_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    RunCache(tmp_path).put(RUNS)
    monkeypatch.setattr(cache_module, "reader", lambda: "another")
    assert RunCache(tmp_path).get(["digest0"]) == {}
    RunCache(tmp_path).put(RUNS[1:2])
    monkeypatch.undo()
    assert RunCache(tmp_path).get(["digest0", "digest1"]) == {}, "what others kept is removed"


def test_a_damaged_row_is_not_there(tmp_path: Path) -> None:
    RunCache(tmp_path).put(RUNS)
    with sqlite3.connect(tmp_path / NAME) as database:
        for digest, text in (("digest0", "{"), ("digest1", '{"digest": "digest1"}'), ("digest2", None)):
            database.execute("UPDATE runs SET run = ? WHERE digest = ?", [text, digest])
    cache = RunCache(tmp_path)
    assert cache.get([run.digest for run in RUNS]) == {} and cache.problem is None


def test_a_row_of_another_log_is_not_there(tmp_path: Path) -> None:
    RunCache(tmp_path).put(RUNS)
    with sqlite3.connect(tmp_path / NAME) as database:
        other = "(SELECT run FROM runs WHERE digest = 'digest1')"
        database.execute(f"UPDATE runs SET run = {other} WHERE digest = 'digest0'")
    assert set(RunCache(tmp_path).get([run.digest for run in RUNS])) == {"digest1", "digest2"}


def test_no_database_at_all(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(b"no database" * 1000)
    cache = RunCache(tmp_path)
    assert cache.get(["digest0"]) == {}
    assert cache.problem is not None and "is not kept" in cache.problem
    cache.put(RUNS)
    assert (tmp_path / NAME).read_bytes() == b"no database" * 1000


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cache = RunCache(tmp_path / "file" / "folder")
    cache.put(RUNS)
    assert cache.problem is not None and cache.get(["digest0"]) == {}


def test_where_caches_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert default_folder() == Path("/caches/podium")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert default_folder() == Path.home() / ".cache" / "podium"
