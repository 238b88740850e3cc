"""The process of the official tools: the same verdicts as theirs, and nothing that a package names is executed."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podium.config.schema import RunConfig
from podium.core.errors import WorkError
from podium.submission.official import runner
from podium.submission.official.runner import ToolProcess
from podium.submission.official.worker import LastToken, adapt_rcp

TOKEN = ":::MLLOG "


@pytest.fixture
def process() -> Iterator[ToolProcess]:
    made = ToolProcess()
    yield made
    made.close()


@given(
    st.lists(st.sampled_from([TOKEN, TOKEN[:-1], ":::", "a", "\r", "\x0b", "\x85", "\u2028", " ", "{}"])), st.booleans()
)
def test_the_last_token_is_found_as_their_regular_expression_finds_it(parts: list[str], ended: bool) -> None:
    line = "".join(parts) + "\n" * ended
    if TOKEN in line:
        assert LastToken.sub(".*" + TOKEN, TOKEN, line) == re.sub(".*" + TOKEN, TOKEN, line)


def test_only_that_regular_expression_is_replaced() -> None:
    with pytest.raises(AssertionError):
        LastToken.sub(".+" + TOKEN, TOKEN, "x")


def test_a_log_that_names_rules_of_its_own_is_stopped_before_they_run(
    process: ToolProcess, closed_config: RunConfig, write_log: Any, tmp_path: Path
) -> None:
    """The official checker, asked itself, executes them: that is what must not happen."""
    proof = tmp_path / "proof"
    rules = f"- BEGIN:\n    CODE: \"open({str(proof)!r}, 'w').close()\"\n"
    (tmp_path / "evil_common.yaml").write_text(rules, encoding="utf-8")
    log = write_log(closed_config)
    up = "../" * 30
    named = f"{up.rstrip('/')}{tmp_path}/evil"
    log.write_text(log.read_text().replace('"value": "closed"', json.dumps({"value": named})[1:-1]))
    arguments = ["--usage", "training", "--ruleset", "5.0.0", str(log)]
    module = [sys.executable, "-m", "mlperf_logging.compliance_checker"]
    subprocess.run([*module, *arguments], cwd=tmp_path, capture_output=True, check=False)
    assert proof.exists()
    proof.unlink()
    answer = process.ask("compliance_checker", log, "5.0.0", 60)
    assert named in answer["refused"]
    assert not proof.exists()


def test_what_one_log_leaves_behind_does_not_judge_the_next(
    process: ToolProcess, closed_config: RunConfig, write_log: Any
) -> None:
    good = write_log(closed_config, name="a/result.txt")
    text = good.read_text()
    unknown = write_log(closed_config, name="b/result.txt")
    unknown.write_text(text.replace('"value": "closed"', '"value": "Closed"'))
    for _ in range(2):
        assert "Closed_common.yaml" in process.ask("compliance_checker", unknown, "5.0.0", 60)["crash"]
        answer = process.ask("compliance_checker", good, "5.0.0", 60)
        assert answer["valid"] and answer["errors"] == [] and answer["crash"] is None
        unknown.touch()  # asked again


def test_a_job_that_does_not_end_is_ended_and_the_next_one_is_answered(
    process: ToolProcess, open_config: RunConfig, write_log: Any, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    started = time.monotonic()
    answer = process.ask("compliance_checker", tmp_path / "pipe", "5.0.0", 1.5)
    assert time.monotonic() - started < 10
    assert answer["late"] and "1.5" not in answer["crash"] and "within 2 s" in answer["crash"]
    assert process.ask("compliance_checker", write_log(open_config), "5.0.0", 60)["valid"]


def test_memory_is_bounded_and_a_tool_that_wants_more_is_told(
    open_config: RunConfig, write_log: Any, tmp_path: Path
) -> None:
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(200 << 20)
    process = ToolProcess(memory_bytes=150 << 20)
    try:
        answer = process.ask("compliance_checker", tmp_path / "huge", "5.0.0", 120)
        assert "MemoryError" in answer["crash"] or "ended without an answer" in answer["crash"]
        assert process.ask("compliance_checker", write_log(open_config), "5.0.0", 60)["valid"]
    finally:
        process.close()


def test_the_process_is_gone_when_it_is_stopped(process: ToolProcess, tmp_path: Path) -> None:
    assert process.ask("compliance_checker", tmp_path / "missing", "5.0.0", 60)["crash"].startswith("FileNotFoundError")
    process.stop()
    process.close()
    with pytest.raises(WorkError, match="interrupted"):
        process.ask("compliance_checker", tmp_path / "missing", "5.0.0", 60)


def test_asked_system_by_system_they_say_what_they_say_of_the_package(write_package: Any, tmp_path: Path) -> None:
    """Of a process that has judged other packages before, perhaps, and keeps what it has found out."""
    package = write_package()
    alone = shutil.copytree(package, tmp_path / "alone" / package.name)
    done = subprocess.run(
        [sys.executable, "-m", "mlperf_logging.package_checker", str(alone), "training", "5.0.0"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    with closing(runner.ToolProcess(scratch=tmp_path)) as process:
        answer = process.ask("package_checker", package, "5.0.0", 60, train_samples=False)
    (verdict,) = [words for _, words in answer["words"] if words.startswith("PACKAGE CHECKER")]
    assert verdict in done.stderr and "NO ERRORS" in verdict
    (scaling,) = package.rglob("scaling.json")
    (expected,) = alone.rglob("scaling.json")
    assert scaling.read_bytes() == expected.read_bytes()


def test_a_least_accepted_mean_is_remembered_for_the_very_same_question(monkeypatch: pytest.MonkeyPatch) -> None:
    from mlperf_logging.rcp_checker import rcp_checker

    asked: list[object] = []

    def search(*question: object) -> int:
        asked.append(question)
        return len(asked)

    monkeypatch.setattr(rcp_checker, "re", re)
    monkeypatch.setattr(rcp_checker, "read_submission_file", rcp_checker.read_submission_file)
    monkeypatch.setattr(rcp_checker.RCP_Checker, "_find_min_acceptable_mean", search)
    adapt_rcp()
    usual = {"submission_runs": 10, "tolerance": 0.0001, "alpha": 0.05, "mean": 1.0, "stdev": 0.1, "samples": 5}
    changes = [
        {},
        {"stdev": 0.2},
        {"samples": 6},
        {"mean": 2.0},
        {"submission_runs": 5},
        {"tolerance": 1},
        {"alpha": 1},
    ]

    def answer(change: dict[str, float]) -> int:
        given = {**usual, **change}
        numbers = [given.pop(name) for name in ("mean", "stdev", "samples")]
        found: int = rcp_checker.RCP_Checker._find_min_acceptable_mean(SimpleNamespace(**given), *numbers)
        return found

    assert [answer(change) for change in changes * 2] == [1, 2, 3, 4, 5, 6, 7] * 2
