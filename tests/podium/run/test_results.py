"""Finalized logs of a set, and the publication of its copies in results/."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from podium.config.run_folder import RunFolder
from podium.config.schema import RunConfig
from podium.core.errors import Interrupted, UsageError, WorkError
from podium.core.files import sha256_of, write_atomically
from podium.core.locks import shared_lock
from podium.mllog.read import read_log
from podium.run import results as results_module
from podium.run.results import (
    close_orphaned_runs,
    finalize_log,
    publish,
    published_folder,
    read_published_set,
    record_saved,
    require_writable_results,
)
from podium.run.set_record import EndedRun, SetRecord, read_set, write_set

SYSTEM = "laptop"


@pytest.fixture(autouse=True)
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("podium.run.results.RESULTS", tmp_path / "results")
    return tmp_path / "results" / SYSTEM


@pytest.fixture
def ended(tmp_path: Path, write_log: Any, open_config: RunConfig) -> Any:
    """Makes an ended run of the set `name`, with the names of set and run as the submitter in its log."""

    def make(name: str, number: int = 0, recorded: bool = True) -> RunFolder:
        description = open_config.description.model_copy(update={"submitter": f"{name}{number}"})
        log_name = f"runs/{SYSTEM}/{name}/run_{number}/result.partial.txt"
        path = write_log(open_config.model_copy(update={"description": description}), name=log_name)
        folder = path.parents[1]
        if recorded and read_set(folder) is None:
            write_set(folder, SetRecord(SYSTEM, 2))
        return RunFolder(path.parent)

    return make


def submitter(path: Path) -> str:
    return str(next(event.value for event in read_log(path).events if event.key == "submission_org"))


def tree(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): submitter(p) for p in sorted(folder.rglob("*.txt"))} if folder.is_dir() else {}


def entries(run: RunFolder) -> tuple[EndedRun, ...]:
    record = read_set(run.path.parent)
    assert record is not None
    return record.ended


def make_set(ended: Any, name: str, count: int = 2) -> Path:
    runs = [ended(name, number) for number in range(count)]
    for run in runs:
        finalize_log(run)
    return Path(runs[0].path.parent)


def test_log_is_named_by_run_number_and_its_hash_is_recorded(ended: Any) -> None:
    for number in (0, 1, 10):
        run = ended("one", number)
        assert finalize_log(run) == run.path.parent / f"result_{number}.txt"
        assert not run.log.exists()
        log = f"result_{number}.txt"
        assert entries(run)[-1] == EndedRun(number, "success", log, sha256_of(run.path.parent / log))


def test_published_copies_are_replaced_by_those_of_the_next_set(tmp_path: Path, results: Path, ended: Any) -> None:
    one = make_set(ended, "one", 3)
    publish(one)
    first = {f"bert/result_{n}.txt": f"one{n}" for n in range(3)}
    assert tree(results) == first and published_folder(one) == results / "bert"
    two = make_set(ended, "two")
    publish(two)
    assert tree(results) == {f"bert/result_{n}.txt": f"two{n}" for n in range(2)}
    assert sorted(path.name for path in results.iterdir()) == ["bert", "set.json"]
    published = read_published_set(results)
    assert published is not None and published.folder == str(two)
    assert published.logs["result_1.txt"] == sha256_of(two / "result_1.txt")
    assert published_folder(one) is None and published_folder(two) == results / "bert"
    assert tree(tmp_path / "runs") == {
        f"laptop/{name}/result_{n}.txt": f"{name}{n}" for name, count in (("one", 3), ("two", 2)) for n in range(count)
    }
    publish(one)  # an older set can be published again
    assert tree(results) == first


@pytest.mark.parametrize("state", ["other file", "edited", "set is gone", "layout before", "link"])
def test_files_in_results_that_are_not_copies_are_kept(tmp_path: Path, results: Path, ended: Any, state: str) -> None:
    one, two = make_set(ended, "one"), make_set(ended, "two")
    publish(one)
    log = results / "bert" / "result_1.txt"
    if state == "other file":
        (results / "bert" / "scaling.json").touch()
    elif state == "edited":
        log.write_text(log.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    elif state == "set is gone":
        (one / "result_1.txt").unlink()
    elif state == "layout before":
        (results / "set.json").unlink()
    else:
        (results / "bert").rename(tmp_path / "elsewhere")
        (results / "bert").symlink_to(tmp_path / "elsewhere")
    before = {path.name: path.read_bytes() for path in (results / "bert").iterdir()}
    publish(two)
    assert {path.name: path.read_bytes() for path in (two / "replaced_results").iterdir()} == before
    assert tree(results) == {f"bert/result_{n}.txt": f"two{n}" for n in range(2)}


@pytest.mark.parametrize("renames", [1, 2])
def test_interrupted_publication_leaves_the_results_unchanged(
    results: Path, ended: Any, monkeypatch: pytest.MonkeyPatch, renames: int
) -> None:
    """An interrupted command restores the previous copies; after a kill the next command does."""
    one, two, three = (make_set(ended, name) for name in ("one", "two", "three"))
    publish(one)
    rename, remaining = Path.rename, [renames]

    def broken(path: Path, target: Path) -> Path:
        remaining[0] -= path.parent == results
        if not remaining[0]:
            raise Interrupted("interrupted")
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", broken)
        with pytest.raises(Interrupted):
            publish(two)
    assert tree(results / "bert") == {f"result_{n}.txt": f"one{n}" for n in range(2)}
    assert published_folder(one)
    (results / "bert").rename(results / ".bert.replaced")
    publish(three)
    assert tree(results) == {f"bert/result_{n}.txt": f"three{n}" for n in range(2)}
    assert [path.name for path in results.glob(".*")] == []


def test_run_without_run_start_has_no_log(tmp_path: Path, ended: Any) -> None:
    run = ended("one")
    text = run.log.read_text(encoding="utf-8")
    run.log.write_text(text[: text.index('"key": "run_start"')], encoding="utf-8")
    assert finalize_log(run) is None and run.log.is_file()
    assert entries(run) == (EndedRun(0, None, None, None),)
    assert finalize_log(RunFolder(tmp_path / "nothing")) is None


def test_log_without_run_stop_is_closed_as_aborted(ended: Any) -> None:
    run = ended("one")
    text = run.log.read_text(encoding="utf-8")
    run.log.write_text(text[: text.rindex('"key": "run_stop"')], encoding="utf-8")
    path = finalize_log(run)
    assert path is not None
    assert [e.metadata["status"] for e in read_log(path).events if e.key == "run_stop"] == ["aborted"]
    assert entries(run)[0].status == "aborted" and entries(run)[0].is_result


@pytest.mark.parametrize("marked", ["restarted", "resumed"])
def test_restarted_or_resumed_run_is_not_a_result(ended: Any, marked: str) -> None:
    """Even if the run was killed before that was in its log."""
    run = ended("one")
    content = run.log.read_text(encoding="utf-8")
    run.reset_for_restart(None) if marked == "restarted" else run.mark_resumed()
    run.log.write_text(content, encoding="utf-8")
    assert finalize_log(run) == run.restarted_result == run.path / "result.restarted.txt"
    assert submitter(run.restarted_result) == "one0" and not run.log.exists()
    assert [(entry.log, entry.is_result) for entry in entries(run)] == [("run_0/result.restarted.txt", False)]
    assert not (run.path.parent / "result_0.txt").exists()


def test_profiled_run_is_not_a_result(ended: Any) -> None:
    run = ended("one")
    run.mark_profiled()
    assert finalize_log(run) == run.profiled_result == run.path / "result.profiled.txt"
    (entry,) = entries(run)
    assert (entry.log, entry.is_result) == ("run_0/result.profiled.txt", False)
    assert entry.fault == "steps of it were profiled, which slows it"
    assert not (run.path.parent / "result_0.txt").exists()


def test_log_that_cannot_be_moved_is_kept(ended: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run = ended("one")

    def full(*_: object) -> None:
        raise WorkError("no space")

    monkeypatch.setattr("podium.run.results.write_atomically", full)
    with pytest.raises(WorkError, match=f"no space; the run's log is kept: {run.log}"):
        finalize_log(run)
    assert run.log.is_file() and entries(run) == ()


def test_record_that_cannot_be_written_is_written_by_the_next_command(
    ended: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, notes = ended("one"), list[str]()
    moved = run.path.parent / "result_0.txt"

    def full(*_: object) -> None:
        raise WorkError("no space")

    with monkeypatch.context() as patch:
        patch.setattr("podium.run.results.add_ended", full)
        with pytest.raises(WorkError, match=f"no space; the run's log is kept: {moved}"):
            finalize_log(run)
    close_orphaned_runs(run.path.parents[1], notes.append)
    assert entries(run)[0].sha256 == sha256_of(moved) and not entries(run)[0].is_result
    assert notes == [
        f"{run.path}: was left open when its `podium run` was killed; the status in its log is success: {moved}"
    ]


def test_running_and_saved_runs_are_not_closed(ended: Any) -> None:
    running, saved, notes = ended("one"), ended("two"), list[str]()
    record_saved(saved)
    (running.path.parents[1] / "three").mkdir()
    (running.path.parents[1] / "three" / "set.json").write_text("{", encoding="utf-8")
    with shared_lock(running.lock):
        close_orphaned_runs(running.path.parents[1], notes.append)
    assert entries(running) == () and running.log.is_file() and saved.log.is_file()
    assert "its processes are still running" in notes[0] and "three/set.json: cannot be used" in notes[1]
    shutil.rmtree(running.path.parents[1] / "three")
    close_orphaned_runs(running.path.parents[1], notes.append, excluded=running)
    assert entries(running) == () and len(notes) == 2
    close_orphaned_runs(running.path.parents[1], notes.append)
    assert entries(running)[0].status == "success"
    assert entries(saved) == (EndedRun(0, None, None, None, fault="it was stopped before its end, to be resumed"),)


def test_run_with_an_unknown_lock_state_is_not_closed(ended: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run, notes = ended("one"), list[str]()
    run.lock.touch()
    monkeypatch.setattr("podium.run.results.is_locked", lambda path: None)
    close_orphaned_runs(run.path.parents[1], notes.append)
    assert entries(run) == () and run.log.is_file() and "still running is not known; it is not closed" in notes[0]


def test_results_folder_that_is_a_file_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "results").touch()
    with pytest.raises(UsageError, match="a file exists at this path"):
        require_writable_results(SYSTEM)


def test_aborted_log_has_the_samples_of_the_last_step(ended: Any) -> None:
    run = ended("one")
    whole = run.log.read_text(encoding="utf-8").splitlines(keepends=True)
    stop = next(number for number, line in enumerate(whole) if '"run_stop"' in line)
    run.log.write_text("".join(whole[:stop]), encoding="utf-8")
    run.metrics.write_text('{"event": "step", "samples": 77777777}\n{"event": "st', encoding="utf-8")
    path = finalize_log(run)
    assert path is not None
    samples = [event.value for event in read_log(path).events if event.key == "train_samples"]
    assert samples == [77777777]


def test_error_of_unwritable_results_names_the_sets_logs(
    results: Path, ended: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = make_set(ended, "one"), make_set(ended, "two")
    publish(one)

    def refuse(path: Path, content: bytes | str) -> None:
        if path.is_relative_to(results):
            raise WorkError(f"{path}: cannot be written (Read-only file system)")
        write_atomically(path, content)

    monkeypatch.setattr(results_module, "write_atomically", refuse)
    with pytest.raises(
        WorkError, match=rf"Read-only.*: the set is complete, and can be packaged from its logs {two}/result_\*\.txt"
    ):
        publish(two)
    assert tree(results / "bert") == {f"result_{n}.txt": f"one{n}" for n in range(2)}
    assert json.loads((results / "set.json").read_text(encoding="utf-8"))["set"] == str(one)
