"""The folder of a run, as harness and implementation share it."""

import json

import pytest

from benchmarks.errors import PodiumError, UsageError, WorkError
from podium.config import RunFolder


@pytest.mark.parametrize("error", [WorkError("rank 3 has no memory left"), UsageError("zwölf")])
def test_a_failure_that_is_told_is_heard_as_the_same(run_folder: RunFolder, error: PodiumError) -> None:
    assert run_folder.told_failure() is None
    run_folder.tell_failure(error)
    told = run_folder.told_failure()
    assert (type(told), str(told)) == (type(error), str(error))


@pytest.mark.parametrize("text", ["", '{"exit_code": 1, "mess', "\0"])
def test_a_failure_that_was_told_by_half_is_none(run_folder: RunFolder, text: str) -> None:
    run_folder.tell_failure(WorkError("x"))
    (told,) = run_folder.path.iterdir()
    told.write_text(text, encoding="utf-8")
    assert run_folder.told_failure() is None


@pytest.mark.parametrize("text", ["{}", "[]", "3", '{"exit_code": 1}'])
def test_a_failure_of_another_form_is_none(run_folder: RunFolder, text: str) -> None:
    run_folder.tell_failure(WorkError("x"))
    (told,) = run_folder.path.iterdir()
    told.write_text(text, encoding="utf-8")
    assert run_folder.told_failure() is None


def test_the_summary_is_there_when_the_run_came_to_its_end(run_folder: RunFolder) -> None:
    assert run_folder.read_summary() is None
    run_folder.summary.write_text(json.dumps({"seconds": 1.5}), encoding="utf-8")
    assert run_folder.read_summary() == {"seconds": 1.5}


def test_a_run_s_files_have_names_of_their_own(run_folder: RunFolder) -> None:
    paths = [run_folder.config, run_folder.log, run_folder.metrics, run_folder.summary, run_folder.output]
    assert len(set(paths)) == 5
    assert all(path.parent == run_folder.path for path in paths)
    assert not run_folder.log.match("result_*.txt")
