"""Findings of the official tools in packages, file by file, with their defects worked around.

Also the screening of logs and descriptions that would hang or crash the tools.
"""

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from podium.core.finding import Finding
from podium.mllog.lines import MAX_LINE
from podium.mllog.results_tree import find_packages
from podium.mllog.rulesets import ruleset
from podium.submission.official import runner
from podium.submission.official.runner import (
    OfficialResults,
    ToolProcess,
    is_deeply_nested,
    run_official_tools,
    screen_description,
    screen_log,
)

FOLDER = "results/laptop/bert"


@pytest.fixture
def check_official(tmp_path: Path) -> Callable[..., OfficialResults]:
    def run_tools(package: Path, rules: str = "5.0.0") -> OfficialResults:
        scratch = tmp_path / "scratch"
        scratch.mkdir(exist_ok=True)
        return run_official_tools(find_packages(package), package, scratch, ruleset(rules))

    return run_tools


def summarize(found: OfficialResults) -> set[tuple[str, str, str]]:
    return {(finding.path, finding.rule, finding.severity) for finding in found.findings}


def one(found: OfficialResults, rule: str) -> Finding:
    (finding,) = {f.rule: f for f in found.findings if f.rule == rule}.values()
    return finding


def change(package: Path, number: int, old: str, new: str) -> None:
    log = package / FOLDER / f"result_{number}.txt"
    text = log.read_text()
    assert old in text
    log.write_text(text.replace(old, new))


def describe(package: Path, **fields: Any) -> None:
    path = package / "systems" / "laptop.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def hashes(package: Path) -> dict[str, str]:
    files = (path for path in package.rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_a_good_package_is_accepted_scaled_and_unchanged(write_package: Any, check_official: Any) -> None:
    package = write_package()
    before = hashes(package)
    found = check_official(package)
    assert found.findings == []
    assert hashes(package) == before
    logs = [f"{FOLDER}/result_{number}.txt" for number in range(10)]
    assert found.verdicts == {path: "passed" for path in [*logs, "systems/laptop.json"]}
    (score,) = found.scores
    assert score.path == FOLDER and score.samples_from == "epoch_num"
    assert score.scaling == pytest.approx(2_414_421 / 2_400_000, rel=1e-5)
    texts = [(package / log).read_text() for log in logs]
    times = [int(time) for text in texts for time in re.findall(r'"time_ms": (\d+), .*"key": "run_st(?:art|op)"', text)]
    lasted = sorted(stop - start for start, stop in zip(times[::2], times[1::2], strict=True))
    assert score.minutes == pytest.approx(sum(lasted[1:-1]) / 8 / 60_000)


def test_one_failed_run_is_a_warning_and_two_are_an_error(write_package: Any, check_official: Any) -> None:
    package = write_package()
    change(package, 3, '"value": 0.73', '"value": 0.71')
    found = check_official(package)
    assert found.verdicts[f"{FOLDER}/result_3.txt"] == "failed"
    assert (f"{FOLDER}/result_3.txt", "compliance", "warning") in summarize(found)
    assert {severity for _, _, severity in summarize(found)} == {"warning"}
    change(package, 7, '"value": 0.73', '"value": 0.71')
    found = check_official(package)
    assert (f"{FOLDER}/result_7.txt", "compliance", "error") in summarize(found)
    assert (FOLDER, "too_many_failed", "error") in summarize(found)
    assert found.scores[0].minutes is None


def test_a_failed_check_is_reported_with_the_line_in_the_file(write_package: Any, check_official: Any) -> None:
    package = write_package()
    log = package / FOLDER / "result_0.txt"
    lines = ["something before\n", *log.read_text().splitlines(keepends=True)]
    number = next(n for n, line in enumerate(lines, 1) if '"init_stop"' in line)
    lines[number - 1] = re.sub(r'"time_ms": \d+', '"time_ms": 99999999999999', lines[number - 1])
    log.write_text("".join(lines))
    finding = next(f for f in check_official(package).findings if f.rule == "compliance" and f.line is not None)
    assert finding.line == number and "'init_stop'" in finding.message and "\n" not in finding.message


@pytest.mark.parametrize(("rules", "severity"), [("5.0.0", "error"), ("4.0.0", "warning")])
def test_seed_findings_name_the_log_and_follow_the_ruleset(
    write_package: Any, check_official: Any, rules: str, severity: str
) -> None:
    package = write_package()
    change(package, 4, '"value": 1004', '"value": 1002')
    change(package, 6, '"key": "seed"', '"key": "grain"')
    seeds = {f.path: f for f in check_official(package, rules).findings if f.rule == "seed"}
    assert set(seeds) == {f"{FOLDER}/result_{number}.txt" for number in (4, 6)}
    assert {finding.severity for finding in seeds.values()} == {severity}
    assert "logs no seed" in seeds[f"{FOLDER}/result_6.txt"].message


def test_the_open_division_requires_neither_seeds_nor_reference_points(write_package: Any, check_official: Any) -> None:
    package = write_package()
    describe(package, division="open")
    for number in range(10):
        change(package, number, '"value": "closed"', '"value": "open"')
        change(package, number, '"key": "seed"', '"key": "grain"')
    found = check_official(package)
    assert found.findings == []
    assert found.scores[0].samples_from is None and found.scores[0].scaling is None


def test_too_few_samples_are_reported_with_the_reference(write_package: Any, check_official: Any) -> None:
    package = write_package()
    for number in range(10):
        log = package / FOLDER / f"result_{number}.txt"
        log.write_text(re.sub(r'"epoch_num": (\d+)', lambda m: f'"epoch_num": {int(m[1]) * 15 // 16}', log.read_text()))
    message = one(check_official(package), "rcp").message
    assert "2,250,000" in message and "2,414,421" in message and "2,274,732" in message


def test_train_samples_are_used_where_epoch_num_is_not_a_number_of_samples(
    write_package: Any, check_official: Any
) -> None:
    package = write_package()
    for number in range(10):
        log = package / FOLDER / f"result_{number}.txt"
        log.write_text(re.sub(r'"epoch_num": \d+', '"epoch_num": 1', log.read_text()))
    assert "log train_samples before run_stop" in one(check_official(package), "unread").message
    for log in (package / FOLDER).iterdir():
        lines = log.read_text().splitlines(keepends=True)
        lines.sort(key=lambda line: '"run_stop"' in line)  # last
        log.write_text("".join(lines))
    found = check_official(package)
    assert found.scores[0].samples_from == "train_samples"
    assert found.scores[0].scaling == pytest.approx(2_414_421 / 2_400_000, rel=1e-5)
    assert "rcp" not in {finding.rule for finding in found.findings}


def test_missing_results_and_unknown_files_are_reported(write_package: Any, check_official: Any) -> None:
    package = write_package()
    (package / FOLDER / "result_9.txt").rename(package / FOLDER / "results_9.txt")
    (package / FOLDER / ".name with spaces").write_text("x")
    found = check_official(package)
    assert {(FOLDER, "file_count", "error"), (FOLDER, "unknown_files", "warning")} <= summarize(found)
    assert (f"{FOLDER}/.name with spaces", "repository", "error") in summarize(found)


def test_a_broken_system_does_not_hide_the_others(write_package: Any, check_official: Any) -> None:
    package = write_package()
    results = package / "results"
    for name, content in (("listed", "[1]"), ("numbers", json.dumps({"system_name": 5})), ("deep", "[" * 5000)):
        (package / "systems" / f"{name}.json").write_text(content)
        (results / name / "bert").mkdir(parents=True)
        for log in (package / FOLDER).iterdir():
            (results / name / "bert" / log.name).write_bytes(log.read_bytes())
    (results / "laptop").rename(results / "other")
    (package / "systems" / "laptop.json").rename(package / "systems" / "other.json")
    (results / "none" / "bert").mkdir(parents=True)
    (results / "none" / "bert" / "result_0.txt").write_bytes(b"x")
    found = check_official(package)
    verdicts = {name: found.verdicts[f"systems/{name}.json"] for name in ("listed", "numbers", "deep", "other")}
    assert verdicts == {"listed": "failed", "numbers": "unread", "deep": "not run", "other": "passed"}
    assert found.verdicts["results/other/bert/result_0.txt"] == "passed"
    assert {score.path for score in found.scores if score.minutes is not None} == {"results/other/bert"}
    broken = {f.path: f for f in found.findings if f.rule == "unread"}
    assert "could not read this: " in broken["results/numbers/bert"].message
    assert not any("Traceback" in finding.message for finding in found.findings)
    assert ("results/none/bert", "not_run", "error") in summarize(found)
    assert ("results/deep/bert", "not_run", "error") in summarize(found)


def test_no_tool_is_run_on_an_unsafe_log(write_package: Any, check_official: Any) -> None:
    package = write_package()
    change(package, 2, '"value": 1002', f'"value": {"[" * 200}{"]" * 200}')
    change(package, 3, '"value": "closed"', '"value": "../../evil"')
    found = check_official(package)
    assert found.verdicts[f"{FOLDER}/result_2.txt"] == found.verdicts[f"{FOLDER}/result_3.txt"] == "not run"
    assert found.verdicts[f"{FOLDER}/result_4.txt"] == "passed"
    assert {f.rule for f in found.findings} == {"unsafe_log", "foreign_rules", "not_run"}
    assert found.scores == []


def test_no_tool_is_run_after_too_many_timeouts(
    write_package: Any, check_official: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        runner, "ToolProcess", ToolProcess
    )  # a process that has to start first exceeds the time limit for certain
    monkeypatch.setattr(runner, "LOG_TIMEOUT_SECONDS", 0.0)
    found = check_official(write_package())
    timed_out = [f for f in found.findings if "did not end within" in f.message]
    assert (
        runner.MAX_TIMEOUTS <= len(timed_out) <= runner.MAX_TIMEOUTS + 1
    )  # two processes may reach their limit at the same time
    assert {"unread", "not run"} == set(found.verdicts.values())
    assert len(found.findings) >= 11


@pytest.mark.parametrize(
    ("content", "ignored"), [("rcp-bypass\n", [1]), ("rcp-bypass", []), ("x\r\nseed-checker-bypass\n", [2])]
)
def test_flags_that_the_package_checker_ignores_are_reported(
    write_package: Any, check_official: Any, content: str, ignored: list[int]
) -> None:
    package = write_package()
    (package / FOLDER / "package_checker_params").write_bytes(content.encode())
    assert [f.line for f in check_official(package).findings if f.rule == "ignored_flag"] == ignored


@pytest.mark.parametrize(
    "content", ['{"scaling_factor": 0.5}', '{"scaling_factor": 1.0}', "-1", '{"scaling_factor": true}']
)
def test_a_wrong_scaling_file_is_an_error_and_changes_no_score(
    write_package: Any, check_official: Any, content: str
) -> None:
    package = write_package()
    plain = check_official(package).scores
    (package / FOLDER / "scaling.json").write_text(content)
    found = check_official(package)
    assert found.scores == plain and summarize(found) == {(f"{FOLDER}/scaling.json", "scaling", "error")}
    assert "1.006008" in one(found, "scaling").message
    assert (package / FOLDER / "scaling.json").read_text() == content


def test_a_scaling_file_with_the_expected_factor_is_accepted(write_package: Any, check_official: Any) -> None:
    package = write_package()
    (score,) = check_official(package).scores
    (package / FOLDER / "scaling.json").write_text(json.dumps({"scaling_factor": score.scaling}))
    found = check_official(package)
    assert found.findings == [] and found.scores == [score]


def test_a_scaling_file_of_an_unscaled_result_is_an_error(write_package: Any, check_official: Any) -> None:
    """The runs take 3.2 million samples, more than the reference."""
    package = write_package()
    for number in range(10):
        log = package / FOLDER / f"result_{number}.txt"
        log.write_text(
            re.sub(r'"epoch_num": (\d+)', lambda match: f'"epoch_num": {int(match[1]) * 4 // 3}', log.read_text())
        )
    plain = check_official(package)
    assert plain.findings == [] and plain.scores[0].scaling is None
    (package / FOLDER / "scaling.json").write_text('{"scaling_factor": 0.5}')
    found = check_official(package)
    assert found.scores == plain.scores
    assert summarize(found) == {(f"{FOLDER}/scaling.json", "scaling", "error")}


EVENT = b':::MLLOG {"key": "x", "value": '


def line_and_message(path: Path, content: bytes) -> tuple[int | None, str] | None:
    path.write_bytes(content)
    found = screen_log(path, "result_0.txt")
    return None if found is None else (found.line, found.message)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe\r\r\n",
        EVENT + b"1}\n" * 5,
        b"x" * MAX_LINE + b"\n" + EVENT + b"2}",
        b"x" * MAX_LINE,
        b"a line\r" * 300_000,  # lone carriage returns end lines too
        b"a line\r\n" * 300_000,
        EVENT + b"[" * 99 + b"]" * 99,
        (EVENT + b"[],[],[]").ljust(runner.MAX_EVENT_BYTES, b" "),
        b"[" * 5000,  # no event
    ],
)
def test_safe_logs_pass_the_screening(tmp_path: Path, content: bytes) -> None:
    assert line_and_message(tmp_path / "log", content) is None


@pytest.mark.parametrize(
    ("content", "line", "text"),
    [
        (b"a\nb\r\nc\r" + b"x" * (MAX_LINE + 1), 4, "1,048,576 bytes"),
        (b"x" * (MAX_LINE + 1) + b"\n", 1, "1,048,576 bytes"),
        (b"a\n" + EVENT.ljust(runner.MAX_EVENT_BYTES + 1, b"x"), 2, "16,385 bytes"),
        (b"a\n" + EVENT + b"[" * 101 + b"\n" + b"x\n", 2, "100 brackets"),
        (b"\n" * (1 << 20) + EVENT + b'{"a":[' * 51, (1 << 20) + 1, "100 brackets"),
    ],
)
def test_unsafe_logs_are_reported_with_the_line(tmp_path: Path, content: bytes, line: int, text: str) -> None:
    found = line_and_message(tmp_path / "log", content)
    assert found is not None
    assert found[0] == line and text in found[1] and "were not run" in found[1]


def test_a_long_line_is_not_read_to_its_end(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        file.truncate(1 << 40)
    found = screen_log(tmp_path / "log", "log")
    assert found is not None and found.line == 1


@pytest.mark.parametrize(
    ("text", "deep"),
    [
        (b"[" * 100, False),
        (b"[" * 101, True),
        (b"[]" * 5000, False),
        (b"]" * 1000 + b"[" * 100, False),
        (b"]" * 1000 + b"[" * 101, True),
        (b"{[" * 50 + b"]}" * 50 + b"{" * 100, False),
        (b"{[" * 50 + b"]" + b"{" * 2, True),
    ],
)
def test_nesting_is_counted_by_open_brackets(text: bytes, deep: bool) -> None:
    assert is_deeply_nested(text) is deep


def test_unsafe_descriptions_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "S.json"
    for content, text in (
        (b'{"a": [[]]}', None),
        (b"[" * 5000, "100 brackets"),
        (b" " * (1 << 20) + b"{}", "1,048,578"),
    ):
        path.write_bytes(content)
        found = screen_description(path, "systems/S.json")
        assert (found is None) if text is None else (found is not None and text in found.message)
