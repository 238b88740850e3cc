"""What was read is kept by content, and nothing that is wrong with what is kept matters."""

import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks.bert import rules
from podium.comparison import cache as cache_module
from podium.comparison import reading, stated
from podium.comparison.cache import NAME, RunCache, default_folder
from podium.config.loading import ROOT
from podium.reading import lines
from tests.podium.comparison.conftest import log_text, make_run

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


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the code, to be edited."""
    folder = tmp_path_factory.mktemp("sources")
    for name in ("benchmarks", "podium"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


READ = """
import sys
from pathlib import Path
from {reading} import read_runs
from {cache} import RunCache
(run,) = read_runs([Path(sys.argv[1])], RunCache(Path(sys.argv[2]))).values()
print(run.org, run.samples, *(oddity.kind for oddity in run.oddities))
"""


def read_with(sources: Path, *paths: Path) -> str:
    script = READ.format(reading=reading.__name__, cache=cache_module.__name__)
    command = [sys.executable, "-B", "-c", script, *map(str, paths)]
    return subprocess.run(command, cwd=sources, check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.parametrize(
    ("callee", "old", "new", "expected"),
    [
        (stated, '" ".join(shown.split())', '"-".join(shown.split())', "A-B 1792000.0 prefix"),
        (rules, "TARGET_ACCURACY = 0.72", "TARGET_ACCURACY = 0.74", "A B None prefix"),
        (lines, "TOKEN in before", "True", "A B 1792000.0 two_events"),
    ],
)
def test_a_change_of_any_code_that_reads_logs_reads_them_anew(
    sources: Path, tmp_path: Path, callee: ModuleType, old: str, new: str, expected: str
) -> None:
    log = tmp_path / "result_0.txt"
    log.write_text("#" + log_text(submission_org="A B"), encoding="utf-8")
    assert read_with(sources, log, tmp_path / "cache") == "A B 1792000.0 prefix"
    edited = sources / Path(callee.__file__ or "").relative_to(ROOT)
    source = edited.read_text(encoding="utf-8")
    assert source.count(old) == 1
    edited.write_text(source.replace(old, new), encoding="utf-8")
    try:
        assert read_with(sources, log, tmp_path / "cache") == expected
    finally:
        edited.write_text(source, encoding="utf-8")
