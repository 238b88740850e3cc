"""An implementation's answer, or the sentence that it ends with."""

from pathlib import Path

import pytest

from podium.core.errors import UsageError, WorkError
from podium.run import implementation
from podium.run.implementation import ask


@pytest.fixture
def entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An implementation of one file, in the place of the project's."""
    package = tmp_path / "implementations" / "other"
    package.mkdir(parents=True)
    monkeypatch.setattr(implementation, "WORKING_FOLDER", tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return package / "answer.py"


def test_the_answer_is_what_it_prints(entry: Path) -> None:
    entry.write_text("import json, sys\nprint(json.dumps({'words': sys.argv[1:]}))")
    assert ask("other", "answer", ["--a", "b c"]) == {"words": ["--a", "b c"]}


@pytest.mark.parametrize(("code", "kind"), [(2, UsageError), (1, WorkError), (-9, WorkError)])
def test_a_failure_is_its_last_line(entry: Path, code: int, kind: type[Exception]) -> None:
    end = f"sys.exit({code})" if code > 0 else "os.kill(os.getpid(), 9)"
    entry.write_text(
        f"import os, sys\nprint('warning', file=sys.stderr)\nprint('no: so', file=sys.stderr, flush=True)\n{end}"
    )
    with pytest.raises(kind, match=r"^no: so$"):
        ask("other", "answer", [])


def test_a_killed_process_is_named_by_its_signal(entry: Path) -> None:
    entry.write_text("import os\nos.kill(os.getpid(), 9)")
    with pytest.raises(WorkError, match=r"answer ended without a word, by signal 9 \(Killed\); see .* enough memory"):
        ask("other", "answer", [])


def test_a_silent_failure_is_named(entry: Path) -> None:
    entry.write_text("import sys\nsys.exit(1)")
    with pytest.raises(WorkError, match="answer ended without a word"):
        ask("other", "answer", [])
