"""podium submit check on whole packages: what belongs to a check, one report, and nothing left behind."""

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
from typer.testing import CliRunner

from benchmarks.errors import UsageError
from podium.cli import app
from podium.submission.checking import Report, check, natural
from podium.submission.copying import Limits
from podium.submission.official import asking
from podium.submission.official.process import ToolProcess
from podium.submission.rulesets import ruleset

LOG = "results/laptop/bert/result_{}.txt"


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files go, those of the official tools' processes too; the tests see that none stays."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(asking, "ToolProcess", ToolProcess)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def logs_of(report: Report) -> list[str]:
    return [file.path for file in report.files if not file.path.endswith(".json")]


def rules_of(report: Report) -> set[str]:
    return {finding.rule for finding in report.findings}


def test_a_good_package_is_accepted_from_a_folder_and_an_archive(
    write_package: Any, tmp_path: Path, scratch: Path
) -> None:
    package = write_package(tensors=None)
    heard: list[int] = []
    report = check(package, ruleset("5.0.0"), starting=heard.append, told=heard.append)
    assert heard == [10] + [1] * 10
    assert report.accepted, report.findings
    assert report.packages == ("ORG",) and report.ruleset == "5.0.0"
    assert [(file.path, file.official, file.podium) for file in report.files] == [
        (path, "passed", "passed") for path in [*(LOG.format(number) for number in range(10)), "systems/laptop.json"]
    ]
    with tarfile.open(tmp_path / "ORG.tar.xz", "w:xz") as tar:
        tar.add(package, "ORG")
    archived = check(tmp_path / "ORG.tar.xz", ruleset("5.0.0"))
    assert archived.accepted and logs_of(archived) == [f"ORG/{path}" for path in logs_of(report)]
    assert archived.scores[0].minutes == report.scores[0].minutes
    assert list(scratch.iterdir()) == []


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


def test_results_without_a_description_are_checked_log_by_log(write_package: Any, tmp_path: Path) -> None:
    package = write_package()
    (package / "results" / "laptop").rename(tmp_path / "laptop")
    report = check(tmp_path / "laptop", ruleset("5.0.0"))
    assert logs_of(report) == [f"bert/result_{number}.txt" for number in range(10)]
    assert {file.official for file in report.files} == {"passed"}


def test_a_folder_of_packages(write_package: Any, tmp_path: Path) -> None:
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
def test_what_holds_no_results_is_wrong_use(tmp_path: Path, scratch: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=str(tmp_path / name)) as raised:
        check(tmp_path / name, ruleset("5.0.0"))
    assert str(scratch) not in str(raised.value)
    assert list(scratch.iterdir()) == []


def test_links_in_the_place_of_systems_are_not_followed(write_package: Any, tmp_path: Path) -> None:
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


def test_podium_finds_what_the_official_checkers_let_through(write_package: Any) -> None:
    package = write_package()
    log = package / LOG.format(5)
    log.write_text(log.read_text().replace('"status": "success"', '"status": "aborted"'))
    report = check(package, ruleset("5.0.0"))
    (found,) = [file for file in report.files if file.path == LOG.format(5)]
    assert found.official == "passed" and found.podium == "failed"


def test_files_are_sorted_as_people_count() -> None:
    names = ["b/result_10.txt", "b/result_9.txt", "a", "b", "b/result_²", "B"]
    assert sorted(names, key=natural) == ["B", "a", "b", "b/result_9.txt", "b/result_10.txt", "b/result_²"]


def test_the_command_tells_in_json_and_by_its_exit_code(write_package: Any, tmp_path: Path) -> None:
    package = write_package()
    good = CliRunner().invoke(app, ["submit", "check", str(package), "--json"])
    assert good.exit_code == 0
    told = json.loads(good.stdout)
    assert told["accepted"] is True and len(told["files"]) == 11
    assert told["summary"].startswith("10 of 10 logs pass the official checker of 5.0.0")
    (package / LOG.format(0)).unlink()
    bad = CliRunner().invoke(app, ["submit", "check", str(package)], env={"COLUMNS": "200"})
    assert bad.exit_code == 1
    assert "found 9, expected 10" in bad.stdout
    for arguments in (["--ruleset", "5.1.0"], ["--runs", str(tmp_path / "none")]):
        wrong = CliRunner().invoke(app, ["submit", "check", str(package), *arguments])
        assert isinstance(wrong.exception, UsageError) and wrong.exception.exit_code == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_check_leaves_nothing(write_package: Any, tmp_path: Path, number: int) -> None:
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    package = write_package()
    # a log that takes its time: many events in it
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
    time.sleep(0.5)  # an interruption while Python starts a thread has it print a traceback of its own
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1 and "interrupted" in errors and "Traceback" not in errors
    assert list(scratch.iterdir()) == []
