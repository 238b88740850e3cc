"""Results in MLPerf's layout, one set of runs at a time, and no result is ever lost."""

from pathlib import Path
from typing import Any

import pytest

from podium.config.run_folder import RunFolder
from podium.config.schema import RunConfig
from podium.core.errors import UsageError, WorkError
from podium.mllog.read import read_log
from podium.run.results import ResultSet


@pytest.fixture
def set_of(tmp_path: Path) -> Any:
    def make(name: str) -> ResultSet:
        return ResultSet("laptop", replaced=tmp_path / "runs" / name / "replaced", root=tmp_path / "results")

    return make


@pytest.fixture
def ended(tmp_path: Path, write_log: Any, open_config: RunConfig) -> Any:
    """The folder of a run whose log holds `name` as its submitter."""

    def make(name: str) -> RunFolder:
        named = open_config.description.model_copy(update={"submitter": name})
        path = write_log(open_config.model_copy(update={"description": named}), name=f"{name}/result.partial.txt")
        return RunFolder(path.parent)

    return make


def submitter(path: Path) -> str:
    return str(next(event.value for event in read_log(path).events if event.key == "submission_org"))


def tree(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): submitter(p) for p in sorted(folder.rglob("*.txt"))} if folder.is_dir() else {}


def test_results_are_numbered_in_mlperf_s_layout(tmp_path: Path, set_of: Any, ended: Any) -> None:
    results = set_of("one")
    for number in range(11):
        run = ended(f"a{number}")
        assert results.add(run) == tmp_path / "results" / "laptop" / "bert" / f"result_{number}.txt"
        assert not run.log.exists()
    assert tree(tmp_path / "results") == {f"laptop/bert/result_{n}.txt": f"a{n}" for n in range(11)}
    assert not (tmp_path / "runs").exists()


def test_the_first_result_of_a_set_moves_the_earlier_set_away(tmp_path: Path, set_of: Any, ended: Any) -> None:
    one, two, three = set_of("one"), set_of("two"), set_of("three")
    for number in range(3):
        one.add(ended(f"a{number}"))
    for number in range(2):
        two.add(ended(f"b{number}"))
    assert tree(tmp_path / "results") == {"laptop/bert/result_0.txt": "b0", "laptop/bert/result_1.txt": "b1"}
    assert tree(tmp_path / "runs") == {f"two/replaced/result_{n}.txt": f"a{n}" for n in range(3)}
    three.add(ended("c0"))
    assert tree(tmp_path / "results") == {"laptop/bert/result_0.txt": "c0"}
    assert len(tree(tmp_path / "runs")) == 5


def test_a_run_that_had_not_begun_is_no_result_and_moves_nothing(tmp_path: Path, set_of: Any, ended: Any) -> None:
    set_of("one").add(ended("a0"))
    results, run = set_of("two"), ended("b0")
    text = run.log.read_text(encoding="utf-8")
    run.log.write_text(text[: text.index('"key": "run_start"')], encoding="utf-8")
    assert results.add(run) is None
    assert results.add(RunFolder(tmp_path / "nothing")) is None
    assert results.files == []
    assert tree(tmp_path / "results") == {"laptop/bert/result_0.txt": "a0"}
    assert run.log.is_file()
    assert results.add(ended("b1")) == tmp_path / "results" / "laptop" / "bert" / "result_0.txt"


def test_a_run_that_broke_off_is_a_result_that_says_aborted(set_of: Any, ended: Any) -> None:
    run = ended("a0")
    text = run.log.read_text(encoding="utf-8")
    run.log.write_text(text[: text.rindex('"key": "run_stop"')], encoding="utf-8")
    path = set_of("one").add(run)
    assert [e.metadata["status"] for e in read_log(path).events if e.key == "run_stop"] == ["aborted"]


def test_a_run_that_was_restarted_is_no_result_and_moves_nothing(tmp_path: Path, set_of: Any, ended: Any) -> None:
    set_of("one").add(ended("a0"))
    results, run = set_of("two"), ended("b0")
    content = run.log.read_text(encoding="utf-8")
    run.begin_again(None)
    run.log.write_text(content, encoding="utf-8")
    assert results.add(run) == run.restarted_result == run.path / "result.restarted.txt"
    assert submitter(run.restarted_result) == "b0" and not run.log.exists()
    assert results.files == []
    assert tree(tmp_path / "results") == {"laptop/bert/result_0.txt": "a0"}
    assert results.add(ended("b1")) == tmp_path / "results" / "laptop" / "bert" / "result_0.txt"


def test_other_systems_and_other_files_stay_where_they_are(tmp_path: Path, set_of: Any, ended: Any) -> None:
    folder = tmp_path / "results" / "laptop" / "bert"
    folder.mkdir(parents=True)
    (folder / "package_checker_params").touch()
    (tmp_path / "results" / "other").mkdir()
    (tmp_path / "results" / "other" / "result_0.txt").touch()
    set_of("one").add(ended("a0"))
    set_of("two").add(ended("b0"))
    assert sorted(path.name for path in folder.iterdir()) == ["package_checker_params", "result_0.txt"]
    assert (tmp_path / "results" / "other" / "result_0.txt").exists()


def test_a_result_that_finds_no_place_is_a_sentence_and_the_log_is_kept(
    tmp_path: Path, write_log: Any, open_config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    write_log(open_config, name="sample.txt").rename(run.log)
    results = ResultSet("mine", replaced=tmp_path / "replaced", root=tmp_path / "results")
    results.check_place()

    def full(*_: object) -> None:
        raise WorkError("no space")

    monkeypatch.setattr("podium.run.results.write_whole", full)
    with pytest.raises(WorkError, match=f"no space; the run's log is kept: {run.log}"):
        results.add(run)
    assert run.log.is_file() and not list(results.folder.iterdir())


def test_a_file_in_the_way_of_results_is_said_before_a_run(tmp_path: Path) -> None:
    (tmp_path / "results").touch()
    with pytest.raises(UsageError, match="a file is in the way"):
        ResultSet("mine", replaced=tmp_path / "replaced", root=tmp_path / "results").check_place()


def test_samples_of_an_aborted_run_are_those_of_its_last_step(
    tmp_path: Path, write_log: Any, open_config: RunConfig
) -> None:
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    whole = write_log(open_config, name="sample.txt").read_text(encoding="utf-8").splitlines(keepends=True)
    stop = next(number for number, line in enumerate(whole) if '"run_stop"' in line)
    run.log.write_text("".join(whole[:stop]), encoding="utf-8")
    run.metrics.write_text('{"event": "step", "samples": 77777777}\n{"event": "st', encoding="utf-8")
    path = ResultSet("mine", replaced=tmp_path / "replaced", root=tmp_path / "results").add(run)
    assert path is not None
    samples = [event.value for event in read_log(path).events if event.key == "train_samples"]
    assert samples == [77777777]


def test_the_log_of_a_resumed_run_is_no_result_even_if_it_died_before_it_could_say_so(
    tmp_path: Path, set_of: Any, ended: Any
) -> None:
    set_of("one").add(ended("a"))
    run = ended("b")
    run.mark_resumed()
    assert not run.restarts
    assert set_of("two").add(run) == run.restarted_result == tmp_path / "b" / "result.restarted.txt"
    assert tree(tmp_path / "results") == {"laptop/bert/result_0.txt": "a"}
    assert not (tmp_path / "runs").exists()
