"""`podium submit check` on whole packages: what is checked, the report, and temporary files.

The report is short for a good package, and terminal codes in it are escaped.
"""

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from podium.cli.main import app
from podium.core.errors import UsageError
from podium.core.files import sha256_of
from podium.core.finding import Finding
from podium.mllog.rulesets import ruleset
from podium.submission.archive import Limits
from podium.submission.check import FileVerdict, Report, as_json, check, natural_sort_key, print_report, summary
from podium.submission.official import runner
from podium.submission.official.runner import Score, ToolProcess
from tests.podium.submission.conftest import edit, set_value

LOG = "results/laptop/bert/result_{}.txt"


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files, also of the official tools' processes; tests check that none is left."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(runner, "ToolProcess", ToolProcess)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def logs_of(report: Report) -> list[str]:
    return [file.path for file in report.files if not file.path.endswith(".json")]


def rules_of(report: Report) -> set[str]:
    return {finding.rule for finding in report.findings}


def test_a_good_package_is_accepted(write_package: Any, scratch: Path) -> None:
    package = write_package()
    progress: list[int] = []
    report = check(package, ruleset("5.0.0"), on_start=progress.append, on_checked=progress.append)
    assert progress == [10] + [1] * 10
    assert report.accepted, report.findings
    assert report.packages == ("ORG",) and report.ruleset == "5.0.0"
    assert [(file.path, file.official, file.podium) for file in report.files] == [
        (path, "passed", "passed") for path in [*(LOG.format(number) for number in range(10)), "systems/laptop.json"]
    ]
    assert list(scratch.iterdir()) == []


def test_an_archive_is_checked_as_the_folder_in_it(
    write_package: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = write_package()
    with tarfile.open(tmp_path / "ORG.tar.xz", "w:xz") as tar:
        tar.add(package, "ORG")
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    archived, report = (check(path, ruleset("5.0.0")) for path in (tmp_path / "ORG.tar.xz", package))
    assert archived.accepted and logs_of(archived) == [f"ORG/{path}" for path in logs_of(report)]
    assert archived.scores[0].minutes == report.scores[0].minutes
    assert list((tmp_path / "scratch").iterdir()) == []


def test_one_system_is_checked_with_its_description_and_no_other_system(write_package: Any) -> None:
    package = write_package()
    (package / "systems" / "other.json").write_text("no JSON")
    for path in ("results/laptop", "results/laptop/bert"):
        report = check(package / path, ruleset("5.0.0"))
        assert [file.path for file in report.files] == [*map(LOG.format, range(10)), "systems/laptop.json"]
        assert report.scores[0].minutes is not None
    assert len(check(package / "results", ruleset("5.0.0")).files) == 12


def test_one_log_is_checked_alone(write_package: Any) -> None:
    log = write_package() / LOG.format(3)
    report = check(log, ruleset("5.0.0"))
    assert logs_of(report) == ["result_3.txt"] and report.files[0].official == "passed"
    assert report.scores == ()


def test_a_set_of_podiums_runs_is_checked_by_its_folder(make_set: Any) -> None:
    made = make_set([60.5 + 3 * number for number in range(10)])
    report = check(made.set_folder, ruleset("5.0.0"), runs=made.runs / "mine")
    assert logs_of(report) == [f"result_{number}.txt" for number in range(10)]
    assert report.accepted and not [finding for finding in report.findings if finding.rule == "unknown_file"]
    edit(made.set_folder / "result_3.txt", set_value("train_samples", 16))
    report = check(made.set_folder, ruleset("5.0.0"))
    (finding,) = [finding for finding in report.findings if finding.rule == "as_recorded"]
    assert finding.path == "result_3.txt" and not report.accepted
    (made.set_folder / "set.json").write_text("{", encoding="utf-8")
    report = check(made.set_folder, ruleset("5.0.0"))
    assert [f.message for f in report.findings if "set.json: cannot be used" in f.message]


def test_copies_in_results_are_compared_with_the_sets_record(make_set: Any) -> None:
    made = make_set([60.5 + 3 * number for number in range(10)])
    published = {"set": "runs/mine/set", "logs": {log.name: sha256_of(log) for log in made.logs}}
    (made.results / "mine" / "set.json").write_text(json.dumps(published), encoding="utf-8")
    for folder in (made.results / "mine", made.results / "mine" / "bert"):
        report = check(folder, ruleset("5.0.0"))
        assert report.accepted and not [one for one in report.findings if one.rule in ("as_recorded", "unknown_file")]
    edit(made.logs[3], set_value("train_samples", 16))
    report = check(made.results / "mine", ruleset("5.0.0"))
    assert [one.path for one in report.findings if one.rule == "as_recorded"] == ["bert/result_3.txt"]


def test_results_without_a_description_are_checked_log_by_log(write_package: Any, tmp_path: Path) -> None:
    package = write_package()
    (package / "results" / "laptop").rename(tmp_path / "laptop")
    report = check(tmp_path / "laptop", ruleset("5.0.0"))
    assert logs_of(report) == [f"bert/result_{number}.txt" for number in range(10)]
    assert {file.official for file in report.files} == {"passed"}


def test_results_beside_yaml_systems_are_checked_log_by_log(write_package: Any, tmp_path: Path) -> None:
    """As after a run in a working folder, with or without its systems/NAME.yaml."""
    package = write_package()
    (package / "results").rename(tmp_path / "results")
    for name in (None, "systems"):
        if name is not None:
            (tmp_path / name).mkdir()
            (tmp_path / name / "mine.yaml").write_text("launch: {}\n", encoding="utf-8")
        report = check(tmp_path / "results", ruleset("5.0.0"))
        assert logs_of(report) == [f"laptop/bert/result_{number}.txt" for number in range(10)]
        assert report.accepted


def test_results_beside_an_empty_systems_folder_are_a_package_without_descriptions(write_package: Any) -> None:
    package = write_package()
    (package / "systems" / "laptop.json").unlink()
    assert not check(package / "results", ruleset("5.0.0")).accepted


def test_a_folder_of_packages_is_checked(write_package: Any, tmp_path: Path) -> None:
    package = write_package()
    round_ = tmp_path / "round"
    round_.mkdir()
    package.rename(round_ / "ORG")
    (round_ / "EMPTY" / "systems").mkdir(parents=True)
    (round_ / ".git").mkdir()
    report = check(round_, ruleset("5.0.0"))
    assert set(report.packages) == {"ORG", "EMPTY"}
    assert logs_of(report) == ["ORG/" + LOG.format(number) for number in range(10)]


@pytest.mark.parametrize("name", ["nowhere", "empty"])
def test_a_path_without_results_is_a_usage_error(tmp_path: Path, scratch: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=str(tmp_path / name)) as raised:
        check(tmp_path / name, ruleset("5.0.0"))
    assert str(scratch) not in str(raised.value)
    assert list(scratch.iterdir()) == []


def test_a_systems_folder_that_is_a_link_is_not_followed(write_package: Any, tmp_path: Path) -> None:
    package = write_package()
    (package / "systems").rename(tmp_path / "systems")
    (package / "systems").symlink_to(tmp_path / "systems")
    for path in (package, package / "results" / "laptop"):
        report = check(path, ruleset("5.0.0"))
        assert not any(file.path.endswith(".json") for file in report.files)
        assert len(logs_of(report)) == 10


def test_beyond_the_limits_nothing_is_checked(write_package: Any) -> None:
    report = check(write_package(), ruleset("5.0.0"), limits=Limits(files=10))
    assert report.files == () and rules_of(report) == {"too_many_files"} and not report.accepted


def test_podium_finds_what_the_official_checkers_accept(write_package: Any) -> None:
    package = write_package()
    log = package / LOG.format(5)
    log.write_text(log.read_text().replace('"status": "success"', '"status": "aborted"'))
    report = check(package, ruleset("5.0.0"))
    (found,) = [file for file in report.files if file.path == LOG.format(5)]
    assert found.official == "passed" and found.podium == "failed"


def test_files_are_sorted_by_number() -> None:
    names = ["b/result_10.txt", "b/result_9.txt", "a", "b", "b/result_²", "B"]
    assert sorted(names, key=natural_sort_key) == ["B", "a", "b", "b/result_9.txt", "b/result_10.txt", "b/result_²"]


def test_the_command_reports_as_json_and_by_exit_code(write_package: Any, tmp_path: Path) -> None:
    package = write_package()
    good = CliRunner().invoke(app, ["submit", "check", str(package), "--json"])
    assert good.exit_code == 0
    document = json.loads(good.stdout)
    assert document["accepted"] is True and len(document["files"]) == 11
    assert document["summary"].startswith("10 of 10 logs pass the official checker of 5.0.0")
    (package / LOG.format(0)).unlink()
    bad = CliRunner().invoke(app, ["submit", "check", str(package)], env={"COLUMNS": "200"})
    assert bad.exit_code == 1
    assert "found 9, expected 10" in bad.stdout
    for arguments in (["--ruleset", "7.0.0"], ["--runs", str(tmp_path / "none")]):
        wrong = CliRunner().invoke(app, ["submit", "check", str(package), *arguments])
        assert isinstance(wrong.exception, UsageError) and wrong.exception.exit_code == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_check_leaves_no_files(write_package: Any, tmp_path: Path, number: int) -> None:
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    package = write_package()
    # many events, so that its check takes a while
    log = package / LOG.format(0)
    log.write_text(log.read_text() * 150)
    process = subprocess.Popen(
        [sys.executable, "-m", "podium.cli", "submit", "check", str(package)],
        env=os.environ | {"TMPDIR": str(scratch)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    end = time.monotonic() + 60
    while not list(scratch.glob("podium-check-*/scratch/podium-tools-*")) and time.monotonic() < end:
        time.sleep(0.02)
    time.sleep(0.5)  # a signal while Python starts a thread makes Python itself print a traceback
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    code = 130 if number == signal.SIGINT else 143
    assert process.returncode == code and "interrupted" in errors and "Traceback" not in errors
    assert list(scratch.iterdir()) == []


FOLDER = "results/S/bert"


def report(
    findings: list[Finding], files: list[FileVerdict] | None = None, scores: list[Score] | None = None
) -> Report:
    passed = [FileVerdict(f"{FOLDER}/result_{number}.txt", "passed", "passed") for number in range(10)]
    return Report(
        "ORG", "5.0.0", ("ORG",), tuple(passed if files is None else files), tuple(findings), tuple(scores or [])
    )


def render(one: Report, width: int = 200) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    print_report(console, one)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_a_good_package_is_reported_in_a_few_lines() -> None:
    files = [*report([]).files, FileVerdict("systems/S.json", "passed", "passed")]
    text = render(report([], files, [Score(FOLDER, 12.3456, 1.0059, "train_samples")]))
    assert len(text.splitlines()) == 5
    assert f"{FOLDER}/ (10 files)" in text and "systems/S.json" in text
    assert "official score 12.418 min (12.346 × 1.0059 for the RCP) (samples by train_samples)" in text
    assert text.splitlines()[-1] == "10 of 10 logs pass the official checker of 5.0.0; nothing found"


def test_equal_findings_are_printed_once_with_some_of_the_files() -> None:
    findings = [Finding.warning(f"{FOLDER}/result_{n}.txt", "r", "The same.", line=7) for n in range(6)]
    text = render(report([*findings, Finding.error(FOLDER, "x", "Another.", source="package_checker")]))
    assert text.count("The same.") == 1
    assert "result_0.txt:7, result_1.txt:7, result_2.txt:7 and 3 more" in text
    assert "! podium: The same." in text
    assert "the whole folder" in text and "✗ package_checker: Another." in text
    assert "1 error, 6 warnings" in text


def test_warnings_that_differ_in_their_numbers_are_one_row_and_errors_are_not() -> None:
    paths = [f"{FOLDER}/result_{n}.txt" for n in range(6)]
    warned = [Finding.warning(path, "t", f"train_samples is {n:,}, not 7.") for n, path in enumerate(paths, 2_400_000)]
    text = " ".join(render(report(warned)).split())
    assert text.count("train_samples is") == 1 and "result_2.txt and 3 more" in text
    assert "train_samples is 2,400,000, not 7. (and 5 with other numbers; --json has all)" in text
    failed = [Finding.error(one.path, one.rule, one.message) for one in warned]
    assert render(report(failed)).count("train_samples is") == 6


@pytest.mark.parametrize(("errors", "count"), [(5, 1), (30, 2)])
def test_a_long_list_has_the_summary_before_it_too(errors: int, count: int) -> None:
    text = render(report([Finding.error(f"{FOLDER}/result_{n}.txt", "x", f"It is {n}.") for n in range(errors)]))
    summary_line = f"10 of 10 logs pass the official checker of 5.0.0; {errors} errors"
    assert text.count(summary_line) == count and text.splitlines()[-1] == summary_line
    assert (text.splitlines()[0] == summary_line) is (count == 2)


def test_files_with_different_verdicts_have_separate_rows() -> None:
    files = [*report([]).files[:8], FileVerdict(f"{FOLDER}/result_8.txt", "unread", "failed")]
    text = render(report([], files))
    assert f"{FOLDER}/ (8 files)" in text
    (line,) = [line for line in text.splitlines() if "result_8.txt" in line]
    assert "unread" in line and "failed" in line
    assert summary(report([], files)).startswith("8 of 9 logs pass")


def test_terminal_codes_and_rich_markup_are_escaped() -> None:
    evil = "\x1b]0;owned\x07\x1b[2J[red]x[/red][link=file:///]\u202e\x9b31m"
    findings = [Finding.error(f"results/{evil}/bert/result_0.txt", "r", f"{evil} [/] [bold", source="podium", line=1)]
    files = [FileVerdict(f"results/{evil}/bert/result_0.txt", "failed", "failed")]
    text = render(report(findings, files, [Score(f"results/{evil}/bert", 1.0, None, None)]), width=4000)
    assert not any((ord(character) < 32 and character != "\n") or character in "\x9b\u202e\x7f" for character in text)
    assert text.count("\\x1b]0;owned\\x07\\x1b[2J[red]x[/red][link=file:///]\\u202e\\x9b31m") == 4
    assert "\x1b" not in json.dumps(as_json(report(findings)))


def test_the_json_report_is_complete() -> None:
    findings = [Finding.error(FOLDER, "x", "Another.", source="package_checker")]
    whole = json.loads(json.dumps(as_json(report(findings, scores=[Score(FOLDER, None, None, None)]))))
    assert whole["accepted"] is False
    assert whole["findings"][0] == {
        "path": FOLDER,
        "rule": "x",
        "severity": "error",
        "message": "Another.",
        "source": "package_checker",
        "line": None,
    }
    assert whole["files"][0] == {"path": f"{FOLDER}/result_0.txt", "official": "passed", "podium": "passed"}
    assert whole["scores"][0]["minutes"] is None
    assert as_json(report([]))["accepted"] is True
