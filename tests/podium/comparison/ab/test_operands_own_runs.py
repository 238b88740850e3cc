"""Local runs and their logs, in both layouts of runs/."""

from pathlib import Path

import pytest

from podium.comparison.ab.operands import find_logs, find_runs, folders_of_run, known_code, match_by_seed, runs_of_code
from podium.mllog.run import Run
from podium.run.source import Source
from tests.podium.comparison.own import RunFactory, read

CODES = (Source("ab" * 32, "12" * 20), Source("cd" * 32, None))


@pytest.fixture
def run_factory(tmp_path: Path) -> RunFactory:
    return RunFactory(tmp_path)


def seconds_of(run_factory: RunFactory, folder: Path) -> list[float | None]:
    own = find_runs(folder)
    return [run.seconds for run in find_logs(own, folders_of_run(own[0].folder.path), read).runs]


@pytest.mark.parametrize("previous_layout", [False, True])
def test_the_logs_of_every_set_are_found(run_factory: RunFactory, previous_layout: bool) -> None:
    """In the previous layout, the logs of the last set but one are in the last set's folder."""
    run_factory.previous_layout = previous_layout
    times = ([100.0, 101.0, 102.0], [110.0, 111.0], [120.0 + n for n in range(11)])
    for one in times:
        run_factory.make(one)
    assert [seconds_of(run_factory, folder) for folder in run_factory.sets] == list(times)


def test_runs_with_equal_seeds_are_distinguished_by_their_totals(run_factory: RunFactory) -> None:
    run_factory.make([100.0], seed=7)
    run_factory.make([130.0], seed=7)
    assert [seconds_of(run_factory, folder) for folder in run_factory.sets] == [[100.0], [130.0]]
    logs = [
        run for run in read([run_factory.folders.results / "mine/bert/result_0.txt"]).values() if isinstance(run, Run)
    ]
    assert [run.folder.path for run in match_by_seed(logs, "mine", run_factory.folders)] == [
        run_factory.sets[1] / "run_0"
    ]
    for folder in run_factory.sets:
        (folder / "run_0" / "summary.json").unlink()
    found = find_logs(find_runs(run_factory.sets[0] / "run_0"), run_factory.folders, read)
    assert found.runs == () and "run_0 is left out: 2 logs have its seed 7" in found.notes[0]
    assert match_by_seed(logs, "mine", run_factory.folders) == []


def test_runs_without_a_log_have_a_reason(run_factory: RunFactory) -> None:
    folder = run_factory.make([100.0, 101.0, 102.0, 103.0])
    results = run_factory.folders.results / "mine" / "bert"
    (results / "result_0.txt").rename(folder / "run_0" / "result.restarted.txt")
    (results / "result_1.txt").rename(folder / "run_1" / "result.partial.txt")
    (results / "result_2.txt").unlink()
    found = find_logs(find_runs(folder), run_factory.folders, read)
    assert [run.seconds for run in found.runs] == [103.0] and found.records[0].name.endswith("/run_3")
    reasons = [note.partition("is left out: ")[2] for note in found.notes]
    assert reasons[0] == "it was restarted, and a restarted run is not a result"
    assert reasons[1] == "its log is not complete yet"
    assert reasons[2].startswith("no log in ") and "102000" in reasons[2]


def test_runs_are_found_by_commit_or_code_hash(run_factory: RunFactory) -> None:
    for n, source in enumerate((CODES[0], CODES[1], None, CODES[0])):
        run_factory.make([100.0 + n], source)
    commit = CODES[0].commit
    assert [run.folder.path.parent for run in runs_of_code("", commit, run_factory.folders)] == [
        run_factory.sets[0],
        run_factory.sets[3],
    ]
    assert runs_of_code("abab", None, run_factory.folders) == runs_of_code("1212", None, run_factory.folders)
    assert [run.name for run in runs_of_code("cdcdcd", None, run_factory.folders)] == [
        "/".join((run_factory.sets[1] / "run_0").parts[-3:])
    ]
    assert runs_of_code("ef", None, run_factory.folders) == [] == runs_of_code("", "34" * 20, run_factory.folders)
    assert known_code(run_factory.folders) == ["121212121212", "cdcdcdcdcdcd"]


def test_run_folders_are_found_by_the_seeds_of_logs(run_factory: RunFactory) -> None:
    for n in range(3):
        run_factory.make([100.0 + n, 200.0 + n])
    logs = read([run_factory.folders.results / "mine/bert/result_1.txt"])
    own = match_by_seed([run for run in logs.values() if not isinstance(run, str)], "mine", run_factory.folders)
    assert [run.folder.path for run in own] == [run_factory.sets[2] / "run_1"]
