"""The cache of parsed logs, loading of trees of results, and reading of logs in processes."""

import os
import shutil
import sqlite3
import subprocess
import sys
import tarfile
from pathlib import Path
from types import ModuleType

import pytest

from podium.comparison import load
from podium.comparison.load import DATABASE_NAME, Comparison, RunCache, load_results, read_runs, try_read_log
from podium.comparison.table import describe_own_results, rows
from podium.config.load import load_system, write_resolved
from podium.core import text
from podium.core.errors import UsageError, WorkError
from podium.core.files import sha256_of, user_cache_folder
from podium.core.paths import CODE_FOLDER
from podium.mllog import lines
from podium.mllog.benchmarks import TABLE
from podium.mllog.run import Run
from tests.podium.comparison.conftest import DESCRIPTION, log_text, make_run, write_system

RUNS = [make_run(1000.0 + n, digest=f"digest{n}") for n in range(3)]


def test_cached_runs_are_returned(tmp_path: Path) -> None:
    RunCache(tmp_path / "deep" / "folder").put(RUNS)
    cache = RunCache(tmp_path / "deep" / "folder")
    assert cache.get(["digest0", "digest2", "other"]) == {"digest0": RUNS[0], "digest2": RUNS[2]}
    assert cache.problem is None
    cache.put(RUNS[:1])
    assert cache.get([f"digest{n}" for n in range(2000)]) == {run.digest: run for run in RUNS}


def test_a_disabled_cache_writes_nothing(tmp_path: Path) -> None:
    cache = RunCache(None)
    cache.put(RUNS)
    assert cache.get(["digest0"]) == {} and RunCache(tmp_path).get(["digest0"]) == {}
    RunCache(tmp_path).put([])
    assert list(tmp_path.iterdir()) == []


def test_another_version_of_the_reader_has_an_empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    RunCache(tmp_path).put(RUNS)
    monkeypatch.setattr(load, "reader_version", lambda: "another")
    assert RunCache(tmp_path).get(["digest0"]) == {}
    RunCache(tmp_path).put(RUNS[1:2])
    monkeypatch.undo()
    assert RunCache(tmp_path).get(["digest0", "digest1"]) == {}, "runs of other versions are removed"


def test_a_damaged_row_is_ignored(tmp_path: Path) -> None:
    RunCache(tmp_path).put(RUNS)
    with sqlite3.connect(tmp_path / DATABASE_NAME) as database:
        for digest, text in (("digest0", "{"), ("digest1", '{"digest": "digest1"}'), ("digest2", None)):
            database.execute("UPDATE runs SET run = ? WHERE digest = ?", [text, digest])
    cache = RunCache(tmp_path)
    assert cache.get([run.digest for run in RUNS]) == {} and cache.problem is None


def test_a_row_with_the_run_of_another_log_is_ignored(tmp_path: Path) -> None:
    RunCache(tmp_path).put(RUNS)
    with sqlite3.connect(tmp_path / DATABASE_NAME) as database:
        other = "(SELECT run FROM runs WHERE digest = 'digest1')"
        database.execute(f"UPDATE runs SET run = {other} WHERE digest = 'digest0'")
    assert set(RunCache(tmp_path).get([run.digest for run in RUNS])) == {"digest1", "digest2"}


def test_a_damaged_database_is_not_used(tmp_path: Path) -> None:
    (tmp_path / DATABASE_NAME).write_bytes(b"no database" * 1000)
    cache = RunCache(tmp_path)
    assert cache.get(["digest0"]) == {}
    assert cache.problem is not None and "the cache is not used" in cache.problem
    cache.put(RUNS)
    assert (tmp_path / DATABASE_NAME).read_bytes() == b"no database" * 1000


def test_a_cache_folder_that_cannot_be_created_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cache = RunCache(tmp_path / "file" / "folder")
    cache.put(RUNS)
    assert cache.problem is not None and cache.get(["digest0"]) == {}


def test_the_cache_folder_follows_xdg_cache_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert user_cache_folder() == Path("/caches/podium")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert user_cache_folder() == Path.home() / ".cache" / "podium"


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the code that tests edit."""
    folder = tmp_path_factory.mktemp("sources")
    for name in ("benchmarks", "podium"):
        shutil.copytree(CODE_FOLDER / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


READ = """
import sys
from pathlib import Path
from {module} import RunCache, read_runs
(run,) = read_runs([Path(sys.argv[1])], RunCache(Path(sys.argv[2]))).values()
print(run.org, run.samples, *(anomaly.kind for anomaly in run.anomalies))
"""


def read_with(sources: Path, *paths: Path) -> str:
    script = READ.format(module=load.__name__)
    command = [sys.executable, "-B", "-c", script, *map(str, paths)]
    return subprocess.run(command, cwd=sources, check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.parametrize(
    ("callee", "old", "new", "expected"),
    [
        (text, '" ".join(readable.split())', '"-".join(readable.split())', "A-B 1792000.0 prefix"),
        (
            TABLE,
            "metric: masked-LM accuracy, at_least: 0.720",
            "metric: masked-LM accuracy, at_least: 0.74",
            "A B None prefix",
        ),
        (lines, "TOKEN in before", "True", "A B 1792000.0 two_events"),
    ],
)
def test_a_change_of_any_code_that_reads_logs_invalidates_the_cache(
    sources: Path, tmp_path: Path, callee: ModuleType | Path, old: str, new: str, expected: str
) -> None:
    log = tmp_path / "result_0.txt"
    log.write_text("#" + log_text(submission_org="A B"), encoding="utf-8")
    assert read_with(sources, log, tmp_path / "cache") == "A B 1792000.0 prefix"
    path = callee if isinstance(callee, Path) else Path(callee.__file__ or "")
    edited = sources / path.relative_to(CODE_FOLDER)
    source = edited.read_text(encoding="utf-8")
    assert source.count(old) == 1
    edited.write_text(source.replace(old, new), encoding="utf-8")
    try:
        assert read_with(sources, log, tmp_path / "cache") == expected
    finally:
        edited.write_text(source, encoding="utf-8")


def results_in(*paths: Path) -> Comparison:
    return load_results(paths, RunCache(None))


def test_results_of_two_rounds(rounds: Path) -> None:
    found = results_in(rounds)
    assert [one.name for one in found.results] == ["v2.0 Org Inc. SYS", "v2.1 Org Inc. FAST", "v2.1 Org Inc. SYS"]
    one = found.results[0]
    assert (one.division, one.nodes, one.accelerators, one.family) == ("closed", 2, 8, "NVIDIA A100 SXM")
    assert one.score_minutes == pytest.approx(1004.5 / 60) and one.global_batch_size == 448
    assert one.evaluation_share == pytest.approx(0.4 / 1004.5) and one.anomalies == ()
    assert [one.repeats for one in found.results] == [None, None, "v2.0 Org Inc. SYS"]
    assert found.notes == ()


def test_a_folder_in_several_paths_is_one_result(rounds: Path) -> None:
    assert results_in(rounds, rounds / "training_results_v2.0", rounds) == results_in(rounds)


def test_logs_of_one_folder_are_one_result(rounds: Path) -> None:
    folder = rounds / "training_results_v2.0" / "ORG" / "results" / "SYS" / "bert"
    (folder / "scaling.json").write_text('{"scaling_factor": 1.5}', encoding="utf-8")
    whole = results_in(rounds / "training_results_v2.0").results
    logs = sorted(folder.glob("result_*.txt"), reverse=True)
    assert [run.seconds for run in results_in(*logs).results[0].runs] == [run.seconds for run in whole[0].runs]
    for paths in ((logs[3], folder.parents[2]), (folder, logs[3]), (rounds / "training_results_v2.0", logs[0])):
        assert results_in(*paths).results == whole
    assert [len(one.runs) for one in results_in(*logs[:2]).results] == [2]


def test_archives_have_the_results_of_their_tree(rounds: Path, tmp_path: Path) -> None:
    name = "training_results_v2.0"
    subprocess.run(["tar", "-C", rounds, "-cJf", tmp_path / f"{name}.tar.xz", name], check=True)
    shutil.make_archive(str(tmp_path / name), "zip", rounds / name)
    plain = results_in(rounds / name).results
    for archive, inside in ((f"{name}.tar.xz", f"{name}/ORG"), (f"{name}.zip", "ORG")):
        found = results_in(tmp_path / archive).results
        assert [(one.name, one.runs) for one in found] == [(one.name, one.runs) for one in plain]
        assert [one.source for one in found] == [f"{tmp_path / archive}/{inside}/results/SYS/bert"]
    (tmp_path / "broken.tar.xz").write_bytes(b"no archive")
    with pytest.raises(WorkError, match=r"broken\.tar\.xz"):
        results_in(tmp_path / "broken.tar.xz")


def test_a_round_from_dates_is_noted(tmp_path: Path) -> None:
    write_system(tmp_path / "some" / "ORG")
    found = results_in(tmp_path / "some")
    assert found.results[0].round == "v2.0" and "no folder names the round" in found.notes[0]


def test_the_benchmark_is_the_one_that_most_logs_name(rounds: Path) -> None:
    org = rounds / "training_results_v2.0" / "ORG"
    write_system(org, "PICTURES", benchmark="resnet")  # its logs name bert
    logs = sorted(write_system(org, "MIXED").iterdir())
    for log in logs[:6]:
        log.write_text(log_text(submission_benchmark="resnet"), encoding="utf-8")
    found = {one.system: one for one in results_in(rounds / "training_results_v2.0").results}
    assert {name: one.benchmark for name, one in found.items()} == {
        "SYS": "bert",
        "PICTURES": "bert",
        "MIXED": "resnet",
    }
    assert "its logs are of bert, its folder is named resnet" in found["PICTURES"].anomalies
    assert "its logs are of bert, resnet, its folder is named bert" in found["MIXED"].anomalies
    assert not any("its folder is named" in anomaly for anomaly in found["SYS"].anomalies)


def test_results_after_the_last_round_are_own_results(tmp_path: Path) -> None:
    folder = tmp_path / "results" / "laptop" / "bert"
    folder.mkdir(parents=True)
    late = log_text().replace('"time_ms": 16', '"time_ms": 18')
    (folder / "result_0.txt").write_text(late, encoding="utf-8")
    (one,) = results_in(tmp_path / "results").results
    assert (one.own, one.submitter, one.system, one.accelerators) == (True, "Podium", "laptop", 0)
    assert not one.full_size, "systems/laptop.yaml has a tiny BERT"
    assert one.minutes == pytest.approx(1000 / 60) and one.score_minutes is None


def test_own_results_of_an_unknown_system_have_no_size(tmp_path: Path) -> None:
    folder = tmp_path / "results" / "nowhere" / "bert"
    folder.mkdir(parents=True)
    (folder / "result_0.txt").write_text(log_text().replace('"time_ms": 16', '"time_ms": 18'), encoding="utf-8")
    (one,) = results_in(tmp_path / "results").results
    assert one.accelerators is None and "its configuration is unknown" in one.anomalies[0]


@pytest.mark.parametrize("target", ["0.5", "null", "0.72"])
def test_own_runs_to_another_target_are_marked_and_not_compared(tmp_path: Path, target: str) -> None:
    """Runs to 0.5 stood beside runs to 0.72 as converged, with a wrong reason for missing samples."""
    folder = tmp_path / "results" / "laptop" / "bert"
    folder.mkdir(parents=True)
    text = log_text(submission_division="open").replace('"time_ms": 16', '"time_ms": 18')
    text = text.replace('"value": 0.73', '"value": 0.61') if target != "0.72" else text
    large = ["size=large", "optimizer.algorithm=lamb", "hyperparameters=lamb_448"]
    configuration = tmp_path / "runs" / "laptop" / "2026-01-01" / "run_0" / "config.yaml"
    configuration.parent.mkdir(parents=True)
    settings = [*large, "seed=1000000", f"target_accuracy={target}"]
    write_resolved(load_system("laptop", settings=settings), configuration)
    (folder / "result_0.txt").write_text(text, encoding="utf-8")
    (one,) = results_in(tmp_path / "results").results
    official = target == "0.72"
    assert one.full_size and one.comparable == official and not any("how many samples" in a for a in one.anomalies)
    found = "0.5" if target == "0.5" else "none"
    marked = f"1 of 1 run(s) were trained to another target accuracy ({found}) than MLPerf's 0.72"
    assert any(anomaly.startswith(marked) for anomaly in one.anomalies) != official
    assert rows([one])[0]["other_targets"] == {"0.5": [0.5], "null": [None], "0.72": []}[target]
    if not official:
        assert "was not trained to MLPerf's target" in describe_own_results([one])[0]
    if target == "0.5":  # a log without its folder of runs
        configuration.unlink()
        (alone,) = results_in(tmp_path / "results").results
        assert alone.other_targets == (0.61,)


def test_own_results_use_the_configuration_of_their_runs(tmp_path: Path) -> None:
    """It takes precedence over the system's current file."""
    config_path = tmp_path / "runs" / "laptop" / "2026-01-01" / "run_0" / "config.yaml"
    config_path.parent.mkdir(parents=True)
    write_resolved(
        load_system(
            "laptop", settings=["size=large", "optimizer.algorithm=lamb", "hyperparameters=lamb_448", "seed=1000000"]
        ),
        config_path,
    )
    folder = tmp_path / "results" / "laptop" / "bert"
    folder.mkdir(parents=True)
    (folder / "result_0.txt").write_text(log_text().replace('"time_ms": 16', '"time_ms": 18'), encoding="utf-8")
    (one,) = results_in(tmp_path / "results").results
    assert one.full_size


def test_descriptions_that_are_missing_or_differ_in_case(tmp_path: Path) -> None:
    org = tmp_path / "v2.0" / "ORG"
    write_system(org, "Lost")
    write_system(org, "Cased")
    (org / "systems" / "Lost.json").unlink()
    (org / "systems" / "Cased.json").rename(org / "systems" / "cased.json")
    lost, cased = results_in(org).results
    assert cased.accelerators == 8 and "differ in case" in cased.cosmetic[0].message
    assert (lost.accelerators, lost.submitter, lost.division) == (None, "ORG", "closed")
    assert "Lost.json is missing" in lost.anomalies[0]


def test_a_description_that_is_not_json_is_an_anomaly(tmp_path: Path) -> None:
    org = tmp_path / "v2.0" / "ORG"
    write_system(org)
    (org / "systems" / "SYS.json").write_text('{"a": 1,}', encoding="utf-8")
    (one,) = results_in(org).results
    assert one.accelerators is None and "SYS.json is not valid JSON" in one.anomalies[0]


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
def test_number_of_accelerators_from_descriptions(
    tmp_path: Path, fields: dict[str, object], accelerators: int | None
) -> None:
    write_system(tmp_path / "v2.0" / "ORG", description={**DESCRIPTION, **fields})
    (one,) = results_in(tmp_path / "v2.0").results
    assert one.accelerators == accelerators
    assert any("the number of accelerators is not known" in anomaly for anomaly in one.anomalies) == (
        accelerators is None
    )


def test_progress_is_reported(rounds: Path) -> None:
    started: list[int] = []
    read: list[int] = []
    load_results([rounds], RunCache(None), started.append, read.append)
    assert started == [30] and sum(read) == 30


def test_unprintable_names_are_made_printable(tmp_path: Path) -> None:
    name = "a\x1b[31m\u202eb"
    write_system(tmp_path / "v2.0" / "ORG", name, description={**DESCRIPTION, "submitter": "<b>\n\x07x"})
    (one,) = results_in(tmp_path / "v2.0").results
    assert (one.system, one.submitter) == ("a [31m b", "<b> x")
    assert one.source.endswith(r"results/a\x1b[31m\u202eb/bert")
    assert one.description["submitter"] == "<b> x"


def test_a_folder_without_results_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="contains no results"):
        results_in(tmp_path)


@pytest.fixture
def logs(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"result_{number}.txt" for number in range(30)]
    for number, path in enumerate(paths):
        path.write_text(log_text(100.0 + number), encoding="utf-8")
    return paths


def test_logs_are_read_equally_with_and_without_processes(logs: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "processors", lambda: 2)
    many = read_runs(logs, RunCache(None))
    monkeypatch.setattr(load, "MIN_LOGS_FOR_PROCESSES", 100)
    assert read_runs(logs, RunCache(None)) == many
    assert [run.seconds for run in many.values() if isinstance(run, Run)] == [100.0 + number for number in range(30)]
    assert list(many) == logs


def test_a_cached_log_is_not_read(logs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "MIN_LOGS_FOR_PROCESSES", 100)
    progress: list[int] = []
    first = read_runs(logs, RunCache(tmp_path / "cache"), progress.append)
    logs[3].write_text(log_text(777.0), encoding="utf-8")
    read: list[Path] = []
    monkeypatch.setattr(load, "try_read_log", lambda log: read.append(log) or try_read_log(log))
    second = read_runs(logs, RunCache(tmp_path / "cache"), progress.append)
    assert read == [logs[3]]
    assert {log: run for log, run in second.items() if log != logs[3]} == {
        log: run for log, run in first.items() if log != logs[3]
    }
    assert sum(progress) == 60
    moved = logs[0].rename(tmp_path / "elsewhere.txt")
    assert read_runs([moved], RunCache(tmp_path / "cache"))[moved] == first[logs[0]] and read == [logs[3]]


def test_a_log_that_changes_while_it_is_read_is_not_cached(
    logs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def grown(log: Path) -> Run | str:
        with log.open("a", encoding="utf-8") as file:
            file.write("more\n")
        return try_read_log(log)

    before = sha256_of(logs[0])
    monkeypatch.setattr(load, "try_read_log", grown)
    read_runs(logs[:1], RunCache(tmp_path / "cache"))
    cache = RunCache(tmp_path / "cache")
    assert cache.get([before, sha256_of(logs[0])]) == {}


def test_a_log_that_cannot_be_read_has_a_reason(logs: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    logs[1].unlink()
    found = read_runs(logs[:3], RunCache(None))
    assert "cannot be read" in str(found[logs[1]]) and isinstance(found[logs[2]], Run)


def test_a_log_that_names_no_benchmark_is_read_again_in_another_folder(tmp_path: Path) -> None:
    """Its benchmark is that of the folder, which the digest of its content does not cover."""
    text = "".join(line for line in log_text().splitlines(True) if "submission_benchmark" not in line)
    cache = RunCache(tmp_path / "cache")
    names = []
    for folder in ("bert", "unknown", "retinanet", "bert"):
        log = tmp_path / folder / "result_0.txt"
        log.parent.mkdir(exist_ok=True)
        log.write_text(text, encoding="utf-8")
        names += [run.benchmark for run in read_runs([log], cache).values() if isinstance(run, Run)]
    assert names == ["bert", None, "retinanet", "bert"]


def test_logs_outside_of_folders_of_benchmarks_are_noted(tmp_path: Path) -> None:
    root = tmp_path / "training_results_v2.0"
    write_system(root / "ORG")
    for org in ("ORG", "OTHER"):
        stray = root / org / "results" / "v100-8" / "result_0.txt"
        stray.parent.mkdir(parents=True)
        stray.write_text(log_text(), encoding="utf-8")
    found = load_results([root], RunCache(None))
    assert len(found.results) == 1
    assert [note.partition(": ")[2] for note in found.notes] == [
        f"logs of v100-8 of {org} are left out: they are in no folder of a benchmark" for org in ("ORG", "OTHER")
    ]


def pack(folder: Path, archive: Path, inside: str) -> Path:
    """A .tar.xz with `folder` under the name `inside`."""
    with tarfile.open(archive, "w:xz") as tar:
        tar.add(folder, inside)
    return archive


@pytest.mark.parametrize("part", [".", "results", "results/SYS", "results/SYS/bert"])
@pytest.mark.parametrize("inside", ["results", "SYS", "a/b/c/d/ORG", "."])
def test_archives_of_any_part_are_read(tmp_path: Path, part: str, inside: str) -> None:
    write_system(tmp_path / "v2.0" / "ORG")
    for name in ("results.tar.xz", "mine.tar.xz"):
        archive = pack(tmp_path / "v2.0" / "ORG" / part, tmp_path / name, inside)
        (one,) = results_in(archive).results
        assert len(one.runs) == 10 and one.benchmark == "bert" and one.source.startswith(str(archive))


def test_a_folder_of_archives_is_read(tmp_path: Path) -> None:
    write_system(tmp_path / "v2.0" / "ORG")
    write_system(tmp_path / "v2.1" / "ORG", "NEW", 300.0)
    folder = tmp_path / "archives"
    folder.mkdir()
    for name in ("v2.0", "v2.1"):
        pack(tmp_path / name, folder / f"{name}.tar.xz", name)
    assert [one.system for one in results_in(folder).results] == ["SYS", "NEW"]


def test_links_and_pipes_are_noted(tmp_path: Path) -> None:
    org = tmp_path / "v2.0" / "ORG"
    write_system(org)
    (tmp_path / "v2.0" / "elsewhere").symlink_to(tmp_path)
    os.mkfifo(org / "results" / "SYS" / "bert" / "result_10.txt")
    (note,) = results_in(tmp_path / "v2.0").notes
    assert "ORG/results/SYS/bert/result_10.txt, elsewhere not read" in note
    archive = pack(tmp_path / "v2.0", tmp_path / "v2.0.tar.xz", "v2.0")
    (note,) = results_in(archive).notes
    assert "2 of its entries are not read; the first: " in note
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "round").symlink_to(org)
    with pytest.raises(UsageError, match=r"no results besides links, pipes or devices.* \(round\)"):
        results_in(tmp_path / "links")
