"""The official checker's verdict, in words, and nothing left behind where it ran."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from podium.config.schema import RunConfig
from podium.mllog.compliance import check_compliance


def broken(path: Path, change: Callable[[str], str]) -> Path:
    path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8")
    return path


def without(key: str) -> Callable[[str], str]:
    return lambda text: "".join(line for line in text.splitlines(keepends=True) if f'"key": "{key}"' not in line)


@pytest.mark.parametrize("key", ["run_stop", "eval_accuracy", "submission_benchmark"])
def test_a_log_that_lacks_a_line_fails_and_the_line_is_named(open_config: RunConfig, write_log: Any, key: str) -> None:
    verdict = check_compliance(broken(write_log(open_config), without(key)), ("2.0.0", "5.0.0"))
    assert list(verdict) == ["2.0.0", "5.0.0"]
    assert all(f"'{key}'" in words and "FAILED" in words for words in verdict.values())


def test_a_closed_log_without_a_tensor_fails_where_tensors_are_asked_for(
    closed_config: RunConfig, write_log: Any
) -> None:
    text = without("weights_initialization")
    verdict = check_compliance(broken(write_log(closed_config), text), ("2.0.0", "5.0.0"))
    assert "weights_initialization" in verdict["2.0.0"]
    assert verdict["5.0.0"] == ""


def test_a_closed_run_that_missed_its_target_fails(closed_config: RunConfig, write_log: Any) -> None:
    (words,) = check_compliance(write_log(closed_config, accuracies=(0.719,)), ("5.0.0",)).values()
    assert "eval_accuracy" in words


@pytest.mark.parametrize("text", ["", "nothing of a log\n", ":::MLLOG {broken\n"])
def test_what_is_no_log_fails_in_words(tmp_path: Path, text: str) -> None:
    (tmp_path / "result.txt").write_text(text, encoding="utf-8")
    (words,) = check_compliance(tmp_path / "result.txt", ("5.0.0",)).values()
    assert len(words) > 10


def test_nothing_is_written_beside_the_result_or_into_the_current_folder(
    open_config: RunConfig, write_log: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_log(open_config)
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    content = path.read_bytes()
    relative = Path("..") / path.relative_to(tmp_path)
    assert check_compliance(relative, ("5.0.0",)) == {"5.0.0": ""}
    check_compliance(broken(path, without("run_stop")), ("5.0.0",))
    path.write_bytes(content)
    assert list(here.iterdir()) == []
    assert list(path.parent.iterdir()) == [path]
