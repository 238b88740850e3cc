"""The worker of the official tools: it reaches the same verdicts, and executes nothing that a package names."""

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
from podium.submission.official.worker import LastTokenRegex, patch_rcp_checker

TOKEN = ":::MLLOG "


@pytest.fixture
def process() -> Iterator[ToolProcess]:
    made = ToolProcess()
    yield made
    made.close()


@given(
    st.lists(st.sampled_from([TOKEN, TOKEN[:-1], ":::", "a", "\r", "\x0b", "\x85", "\u2028", " ", "{}"])), st.booleans()
)
def test_the_last_token_is_found_as_by_the_official_regular_expression(parts: list[str], ended: bool) -> None:
    line = "".join(parts) + "\n" * ended
    if TOKEN in line:
        assert LastTokenRegex.sub(".*" + TOKEN, TOKEN, line) == re.sub(".*" + TOKEN, TOKEN, line)


def test_other_regular_expressions_are_rejected() -> None:
    with pytest.raises(AssertionError):
        LastTokenRegex.sub(".+" + TOKEN, TOKEN, "x")


def test_rules_outside_of_the_checkers_folder_are_not_executed(
    process: ToolProcess, closed_config: RunConfig, write_log: Any, tmp_path: Path
) -> None:
    """The official checker executes these rules when it is run directly."""
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
    answer = process.run_tool("compliance_checker", log, "5.0.0", 60)
    assert named in answer["refused"]
    assert not proof.exists()


def test_state_left_by_one_log_does_not_affect_the_next(
    process: ToolProcess, closed_config: RunConfig, write_log: Any
) -> None:
    good = write_log(closed_config, name="a/result.txt")
    text = good.read_text()
    unknown = write_log(closed_config, name="b/result.txt")
    unknown.write_text(text.replace('"value": "closed"', '"value": "Closed"'))
    for _ in range(2):
        assert "Closed_common.yaml" in process.run_tool("compliance_checker", unknown, "5.0.0", 60)["crash"]
        answer = process.run_tool("compliance_checker", good, "5.0.0", 60)
        assert answer["valid"] and answer["errors"] == [] and answer["crash"] is None
        unknown.touch()  # so that its verdict is not cached


def test_a_job_is_killed_at_its_time_limit_and_the_next_one_runs(
    process: ToolProcess, open_config: RunConfig, write_log: Any, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    started = time.monotonic()
    answer = process.run_tool("compliance_checker", tmp_path / "pipe", "5.0.0", 1.5)
    assert time.monotonic() - started < 10
    assert answer["timed_out"] and "1.5" not in answer["crash"] and "within 2 s" in answer["crash"]
    assert process.run_tool("compliance_checker", write_log(open_config), "5.0.0", 60)["valid"]


def test_a_tool_that_exceeds_the_memory_limit_is_reported(
    open_config: RunConfig, write_log: Any, tmp_path: Path
) -> None:
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(200 << 20)
    process = ToolProcess(memory_bytes=150 << 20)
    try:
        answer = process.run_tool("compliance_checker", tmp_path / "huge", "5.0.0", 120)
        assert "MemoryError" in answer["crash"] or "ended without an answer" in answer["crash"]
        assert process.run_tool("compliance_checker", write_log(open_config), "5.0.0", 60)["valid"]
    finally:
        process.close()


def test_a_stopped_process_runs_no_further_jobs(process: ToolProcess, tmp_path: Path) -> None:
    assert process.run_tool("compliance_checker", tmp_path / "missing", "5.0.0", 60)["crash"].startswith(
        "FileNotFoundError"
    )
    process.stop()
    process.close()
    with pytest.raises(WorkError, match="interrupted"):
        process.run_tool("compliance_checker", tmp_path / "missing", "5.0.0", 60)


def test_verdicts_by_system_equal_those_on_the_whole_package(write_package: Any, tmp_path: Path) -> None:
    """The worker may have checked other packages before, whose results it caches."""
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
        answer = process.run_tool("package_checker", package, "5.0.0", 60, train_samples=False)
    (verdict,) = [text for _, text in answer["messages"] if text.startswith("PACKAGE CHECKER")]
    assert verdict in done.stderr and "NO ERRORS" in verdict
    (scaling,) = package.rglob("scaling.json")
    (expected,) = alone.rglob("scaling.json")
    assert scaling.read_bytes() == expected.read_bytes()


def test_the_minimum_accepted_mean_is_cached_by_all_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    from mlperf_logging.rcp_checker import rcp_checker

    calls: list[object] = []

    def search(*arguments: object) -> int:
        calls.append(arguments)
        return len(calls)

    monkeypatch.setattr(rcp_checker, "re", re)
    monkeypatch.setattr(rcp_checker, "read_submission_file", rcp_checker.read_submission_file)
    monkeypatch.setattr(rcp_checker.RCP_Checker, "_find_min_acceptable_mean", search)
    patch_rcp_checker()
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
