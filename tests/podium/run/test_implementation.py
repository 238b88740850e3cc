"""Entry points of an implementation: the JSON that they print, and errors of failed processes."""

from pathlib import Path

import pytest

from podium.core.errors import UsageError, WorkError
from podium.run import implementation
from podium.run.implementation import call_entry_point, format_process_error, process_error


@pytest.fixture
def entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the only entry point of an implementation `other`."""
    package = tmp_path / "implementations" / "other"
    package.mkdir(parents=True)
    monkeypatch.setattr(implementation, "WORKING_FOLDER", tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return package / "answer.py"


def test_printed_json_is_returned(entry: Path) -> None:
    entry.write_text("import json, sys\nprint(json.dumps({'argv': sys.argv[1:]}))")
    assert call_entry_point("other", "answer", ["--a", "b c"]) == {"argv": ["--a", "b c"]}


@pytest.mark.parametrize(("code", "kind"), [(2, UsageError), (1, WorkError), (-9, WorkError)])
def test_last_line_of_a_failed_process_is_raised(entry: Path, code: int, kind: type[Exception]) -> None:
    end = f"sys.exit({code})" if code > 0 else "os.kill(os.getpid(), 9)"
    entry.write_text(
        f"import os, sys\nprint('warning', file=sys.stderr)\nprint('no: so', file=sys.stderr, flush=True)\n{end}"
    )
    with pytest.raises(kind, match=r"^no: so$"):
        call_entry_point("other", "answer", [])


def test_error_of_a_killed_process_names_the_signal(entry: Path) -> None:
    entry.write_text("import os\nos.kill(os.getpid(), 9)")
    with pytest.raises(
        WorkError, match=r"answer ended without an error message, by signal 9 \(Killed\); check .* enough memory"
    ):
        call_entry_point("other", "answer", [])


def test_error_of_a_process_without_output(entry: Path) -> None:
    entry.write_text("import sys\nsys.exit(1)")
    with pytest.raises(WorkError, match="answer ended without an error message"):
        call_entry_point("other", "answer", [])


def test_cause_of_a_failed_process_is_found_before_what_libraries_print_at_its_end() -> None:
    """A warning at the end of a process, such as the resource tracker's, was reported as the error."""
    late = "resource_tracker: There appear to be 1 leaked semaphore objects to clean up at shutdown\n"
    own = format_process_error(UsageError("launch.device: found cuda\nuse cpu"))
    error = process_error(2, f"step 1\n{own}\n{late}", "ended")
    assert (type(error), str(error)) == (UsageError, "launch.device: found cuda\nuse cpu")
    traceback = "Traceback (most recent call last):\n  File \"a.py\", line 1, in <module>\nKeyError: 'x'\n"
    assert str(process_error(1, traceback + late, "ended")) == "KeyError: 'x'"
    assert str(process_error(1, "one\ntwo\n", "ended")) == "two"
    assert str(process_error(1, "\n", "ended")) == "ended"
