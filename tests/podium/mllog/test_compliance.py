"""The official compliance checker: its output is returned, and it leaves no files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from podium.config.schema import RunConfig
from podium.mllog.compliance import check_compliance


def edit(path: Path, change: Callable[[str], str]) -> Path:
    path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8")
    return path


def drop_line(key: str) -> Callable[[str], str]:
    return lambda text: "".join(line for line in text.splitlines(keepends=True) if f'"key": "{key}"' not in line)


@pytest.mark.parametrize("key", ["run_stop", "eval_accuracy", "submission_benchmark"])
def test_missing_line_fails_and_is_named(open_config: RunConfig, write_log: Any, key: str) -> None:
    verdict = check_compliance(edit(write_log(open_config), drop_line(key)), ("2.0.0", "5.0.0"))
    assert list(verdict) == ["2.0.0", "5.0.0"]
    assert all(f"'{key}'" in output and "FAILED" in output for output in verdict.values())


def test_closed_log_without_tensors_fails_where_they_are_required(closed_config: RunConfig, write_log: Any) -> None:
    text = drop_line("weights_initialization")
    verdict = check_compliance(edit(write_log(closed_config), text), ("2.0.0", "5.0.0"))
    assert "weights_initialization" in verdict["2.0.0"]
    assert verdict["5.0.0"] == ""


def test_closed_run_below_its_target_fails(closed_config: RunConfig, write_log: Any) -> None:
    (output,) = check_compliance(write_log(closed_config, accuracies=(0.719,)), ("5.0.0",)).values()
    assert "eval_accuracy" in output


@pytest.mark.parametrize("text", ["", "not a log\n", ":::MLLOG {broken\n"])
def test_invalid_log_fails_with_output(tmp_path: Path, text: str) -> None:
    (tmp_path / "result.txt").write_text(text, encoding="utf-8")
    (output,) = check_compliance(tmp_path / "result.txt", ("5.0.0",)).values()
    assert len(output) > 10


def test_no_file_is_written_next_to_the_result_or_in_the_current_folder(
    open_config: RunConfig, write_log: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_log(open_config)
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    content = path.read_bytes()
    relative = Path("..") / path.relative_to(tmp_path)
    assert check_compliance(relative, ("5.0.0",)) == {"5.0.0": ""}
    check_compliance(edit(path, drop_line("run_stop")), ("5.0.0",))
    path.write_bytes(content)
    assert list(here.iterdir()) == []
    assert list(path.parent.iterdir()) == [path]
