"""What was read is kept by content, and nothing that is wrong with what is kept matters.

From trees to results.

Many logs: in processes or without, from what is kept or anew, always the same.
"""

import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks.bert import rules
from podium.comparison import load
from podium.comparison import load as cache_module
from podium.comparison.load import NAME, Comparison, RunCache, gather, read_one, read_runs
from podium.config.load import load_system, write_resolved
from podium.core import text
from podium.core.errors import UsageError, WorkError
from podium.core.files import sha256_of, user_cache_folder
from podium.core.paths import CODE_FOLDER
from podium.mllog import lines
from podium.mllog.run import Run
from tests.podium.comparison.conftest import DESCRIPTION, log_text, make_run, write_system

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
    assert user_cache_folder() == Path("/caches/podium")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert user_cache_folder() == Path.home() / ".cache" / "podium"


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the code, to be edited."""
    folder = tmp_path_factory.mktemp("sources")
    for name in ("benchmarks", "podium"):
        shutil.copytree(CODE_FOLDER / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
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
    script = READ.format(reading=load.__name__, cache=cache_module.__name__)
    command = [sys.executable, "-B", "-c", script, *map(str, paths)]
    return subprocess.run(command, cwd=sources, check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.parametrize(
    ("callee", "old", "new", "expected"),
    [
        (text, '" ".join(readable.split())', '"-".join(readable.split())', "A-B 1792000.0 prefix"),
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
    edited = sources / Path(callee.__file__ or "").relative_to(CODE_FOLDER)
    source = edited.read_text(encoding="utf-8")
    assert source.count(old) == 1
    edited.write_text(source.replace(old, new), encoding="utf-8")
    try:
        assert read_with(sources, log, tmp_path / "cache") == expected
    finally:
        edited.write_text(source, encoding="utf-8")


def gathered(*paths: Path) -> Comparison:
    return gather(paths, RunCache(None))


def test_two_rounds(rounds: Path) -> None:
    found = gathered(rounds)
    assert [one.name for one in found.results] == ["v2.0 Org Inc. SYS", "v2.1 Org Inc. FAST", "v2.1 Org Inc. SYS"]
    one = found.results[0]
    assert (one.division, one.nodes, one.accelerators, one.family) == ("closed", 2, 8, "NVIDIA A100 SXM")
    assert one.score_minutes == pytest.approx(1004.5 / 60) and one.global_batch_size == 448
    assert one.evaluation_share == pytest.approx(0.4 / 1004.5) and one.oddities == ()
    assert [one.repeats for one in found.results] == [None, None, "v2.0 Org Inc. SYS"]
    assert found.notes == ()


def test_the_same_folder_twice_is_there_once(rounds: Path) -> None:
    assert gathered(rounds, rounds / "training_results_v2.0", rounds) == gathered(rounds)


def test_logs_of_one_folder_are_one_result(rounds: Path) -> None:
    folder = rounds / "training_results_v2.0" / "ORG" / "results" / "SYS" / "bert"
    (folder / "scaling.json").write_text('{"scaling_factor": 1.5}', encoding="utf-8")
    whole = gathered(rounds / "training_results_v2.0").results
    logs = sorted(folder.glob("result_*.txt"), reverse=True)
    assert [run.seconds for run in gathered(*logs).results[0].runs] == [run.seconds for run in whole[0].runs]
    for paths in ((logs[3], folder.parents[2]), (folder, logs[3]), (rounds / "training_results_v2.0", logs[0])):
        assert gathered(*paths).results == whole
    assert [len(one.runs) for one in gathered(*logs[:2]).results] == [2]


def test_an_archive_is_as_good_as_its_tree(rounds: Path, tmp_path: Path) -> None:
    name = "training_results_v2.0"
    subprocess.run(["tar", "-C", rounds, "-cJf", tmp_path / f"{name}.tar.xz", name], check=True)
    shutil.make_archive(str(tmp_path / name), "zip", rounds / name)
    plain = gathered(rounds / name).results
    for archive, inside in ((f"{name}.tar.xz", f"{name}/ORG"), (f"{name}.zip", "ORG")):
        found = gathered(tmp_path / archive).results
        assert [(one.name, one.runs) for one in found] == [(one.name, one.runs) for one in plain]
        assert [one.source for one in found] == [f"{tmp_path / archive}/{inside}/results/SYS/bert"]
    (tmp_path / "broken.tar.xz").write_bytes(b"no archive")
    with pytest.raises(WorkError, match=r"broken\.tar\.xz"):
        gathered(tmp_path / "broken.tar.xz")


def test_a_round_by_its_dates_is_told(tmp_path: Path) -> None:
    write_system(tmp_path / "some" / "ORG")
    found = gathered(tmp_path / "some")
    assert found.results[0].round == "v2.0" and "no folder names the round" in found.notes[0]


def test_other_benchmarks_are_told(rounds: Path) -> None:
    write_system(rounds / "training_results_v2.0" / "ORG", "PICTURES", benchmark="resnet")
    folder = write_system(rounds / "training_results_v2.0" / "ORG", "MISLABELLED")
    for log in folder.iterdir():
        log.write_text(log_text(submission_benchmark="resnet"), encoding="utf-8")
    found = gathered(rounds)
    assert len(found.results) == 3
    assert "1 result(s) of other benchmarks are left out" in found.notes[0]
    assert "MISLABELLED" in found.notes[1] and "its logs are of resnet" in found.notes[1]


def test_own_results(tmp_path: Path) -> None:
    folder = tmp_path / "results" / "laptop" / "bert"
    folder.mkdir(parents=True)
    late = log_text().replace('"time_ms": 16', '"time_ms": 18')
    (folder / "result_0.txt").write_text(late, encoding="utf-8")
    (one,) = gathered(tmp_path / "results").results
    assert (one.own, one.submitter, one.system, one.accelerators) == (True, "Podium", "laptop", 0)
    assert not one.full_size, "the laptop's file says that its BERT is tiny"
    assert one.minutes == pytest.approx(1000 / 60) and one.score_minutes is None


def test_own_results_of_a_system_that_is_not_known(tmp_path: Path) -> None:
    folder = tmp_path / "results" / "nowhere" / "bert"
    folder.mkdir(parents=True)
    (folder / "result_0.txt").write_text(log_text().replace('"time_ms": 16', '"time_ms": 18'), encoding="utf-8")
    (one,) = gathered(tmp_path / "results").results
    assert one.accelerators is None and "how it was configured is not known" in one.oddities[0]


def test_own_results_were_made_as_their_runs_were_configured(tmp_path: Path) -> None:
    """Not as the system's file says now."""
    kept = tmp_path / "runs" / "laptop" / "2026-01-01" / "run_0" / "config.yaml"
    kept.parent.mkdir(parents=True)
    write_resolved(
        load_system(
            "laptop", settings=["size=large", "optimizer.algorithm=lamb", "hyperparameters=lamb_448", "seed=1000000"]
        ),
        kept,
    )
    folder = tmp_path / "results" / "laptop" / "bert"
    folder.mkdir(parents=True)
    (folder / "result_0.txt").write_text(log_text().replace('"time_ms": 16', '"time_ms": 18'), encoding="utf-8")
    (one,) = gathered(tmp_path / "results").results
    assert one.full_size


def test_a_missing_description_and_one_in_other_letters(tmp_path: Path) -> None:
    org = tmp_path / "v2.0" / "ORG"
    write_system(org, "Lost")
    write_system(org, "Cased")
    (org / "systems" / "Lost.json").unlink()
    (org / "systems" / "Cased.json").rename(org / "systems" / "cased.json")
    lost, cased = gathered(org).results
    assert cased.accelerators == 8 and "differ in case" in cased.oddities[0]
    assert (lost.accelerators, lost.submitter, lost.division) == (None, "ORG", "closed")
    assert "Lost.json is missing" in lost.oddities[0]


def test_a_description_that_is_no_json(tmp_path: Path) -> None:
    org = tmp_path / "v2.0" / "ORG"
    write_system(org)
    (org / "systems" / "SYS.json").write_text('{"a": 1,}', encoding="utf-8")
    (one,) = gathered(org).results
    assert one.accelerators is None and "SYS.json is not valid JSON" in one.oddities[0]


@pytest.mark.parametrize(
    ("fields", "accelerators"),
    [
        ({"number_of_nodes": 2, "accelerators_per_node": 4.0}, 8),
        ({"number_of_nodes": "1.0", "accelerators_per_node": "0", "accelerator_model_name": "N/A"}, 0),
        ({"number_of_nodes": "16", "accelerators_per_node": "N/A", "accelerator_model_name": "-"}, 0),
        ({"number_of_nodes": "two"}, None),
        ({"number_of_nodes": None}, None),
    ],
)
def test_sizes(tmp_path: Path, fields: dict[str, object], accelerators: int | None) -> None:
    write_system(tmp_path / "v2.0" / "ORG", description={**DESCRIPTION, **fields})
    (one,) = gathered(tmp_path / "v2.0").results
    assert one.accelerators == accelerators
    assert any("do not tell how many" in odd for odd in one.oddities) == (accelerators is None)


def test_progress(rounds: Path) -> None:
    starting: list[int] = []
    told: list[int] = []
    gather([rounds], RunCache(None), starting.append, told.append)
    assert starting == [30] and sum(told) == 30


def test_names_from_strangers_are_made_readable(tmp_path: Path) -> None:
    name = "a\x1b[31m\u202eb"
    write_system(tmp_path / "v2.0" / "ORG", name, description={**DESCRIPTION, "submitter": "<b>\n\x07x"})
    (one,) = gathered(tmp_path / "v2.0").results
    assert (one.system, one.submitter) == ("a [31m b", "<b> x")
    assert one.source.endswith(r"results/a\x1b[31m\u202eb/bert")
    assert one.description["submitter"] == "<b> x"


def test_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no results"):
        gathered(tmp_path)


@pytest.fixture
def logs(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"result_{number}.txt" for number in range(30)]
    for number, path in enumerate(paths):
        path.write_text(log_text(100.0 + number), encoding="utf-8")
    return paths


def test_in_processes_and_without(logs: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "processors", lambda: 2)
    many = read_runs(logs, RunCache(None))
    monkeypatch.setattr(load, "FEW", 100)
    assert read_runs(logs, RunCache(None)) == many
    assert [run.seconds for run in many.values() if isinstance(run, Run)] == [100.0 + number for number in range(30)]
    assert list(many) == logs


def test_a_log_that_is_known_is_not_read(logs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "FEW", 100)
    told: list[int] = []
    first = read_runs(logs, RunCache(tmp_path / "cache"), told.append)
    logs[3].write_text(log_text(777.0), encoding="utf-8")
    read: list[Path] = []
    monkeypatch.setattr(load, "read_one", lambda log: read.append(log) or read_one(log))
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
    monkeypatch.setattr(load, "read_one", grown)
    read_runs(logs[:1], RunCache(tmp_path / "cache"))
    cache = RunCache(tmp_path / "cache")
    assert cache.get([before, sha256_of(logs[0])]) == {}


def test_a_log_that_cannot_be_read_is_told(logs: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    logs[1].unlink()
    found = read_runs(logs[:3], RunCache(None))
    assert "cannot be read" in str(found[logs[1]]) and isinstance(found[logs[2]], Run)
