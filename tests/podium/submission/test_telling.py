"""What a check says to people and to programs: short where all is well, and nothing that a terminal acts on."""

import io
import json

from rich.console import Console

from benchmarks.finding import Finding
from podium.submission.checking import FileVerdict, Report
from podium.submission.official.asking import Score
from podium.submission.telling import as_json, print_report, summary

FOLDER = "results/S/bert"


def report(
    findings: list[Finding], files: list[FileVerdict] | None = None, scores: list[Score] | None = None
) -> Report:
    passed = [FileVerdict(f"{FOLDER}/result_{number}.txt", "passed", "passed") for number in range(10)]
    return Report(
        "ORG", "5.0.0", ("ORG",), tuple(passed if files is None else files), tuple(findings), tuple(scores or [])
    )


def told(one: Report, width: int = 200) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    print_report(console, one)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_a_good_package_is_a_few_lines() -> None:
    files = [*report([]).files, FileVerdict("systems/S.json", "passed", "passed")]
    text = told(report([], files, [Score(FOLDER, 12.3456, 1.0059, "train_samples")]))
    assert len(text.splitlines()) == 5
    assert f"{FOLDER}/ (10 files)" in text and "systems/S.json" in text
    assert "official score 12.346 min, scaled by 1.0059 for the RCP (samples by train_samples)" in text
    assert text.splitlines()[-1] == "10 of 10 logs pass the official checker of 5.0.0; nothing found"


def test_what_is_alike_is_told_once_with_some_of_the_files() -> None:
    findings = [Finding.warning(f"{FOLDER}/result_{n}.txt", "r", "The same.", line=7) for n in range(6)]
    text = told(report([*findings, Finding.error(FOLDER, "x", "Another.", source="package_checker")]))
    assert text.count("The same.") == 1
    assert "result_0.txt:7, result_1.txt:7, result_2.txt:7 and 3 more" in text
    assert "! podium: The same." in text
    assert "all of it" in text and "✗ package_checker: Another." in text
    assert "1 error, 6 warnings" in text


def test_files_of_other_verdicts_have_lines_of_their_own() -> None:
    files = [*report([]).files[:8], FileVerdict(f"{FOLDER}/result_8.txt", "unread", "failed")]
    text = told(report([], files))
    assert f"{FOLDER}/ (8 files)" in text
    (line,) = [line for line in text.splitlines() if "result_8.txt" in line]
    assert "unread" in line and "failed" in line
    assert summary(report([], files)).startswith("8 of 9 logs pass")


def test_nothing_that_a_terminal_or_rich_acts_on_reaches_it() -> None:
    evil = "\x1b]0;owned\x07\x1b[2J[red]x[/red][link=file:///]\u202e\x9b31m"
    findings = [Finding.error(f"results/{evil}/bert/result_0.txt", "r", f"{evil} [/] [bold", source="podium", line=1)]
    files = [FileVerdict(f"results/{evil}/bert/result_0.txt", "failed", "failed")]
    text = told(report(findings, files, [Score(f"results/{evil}/bert", 1.0, None, None)]), width=4000)
    assert not any((ord(character) < 32 and character != "\n") or character in "\x9b\u202e\x7f" for character in text)
    assert text.count("\\x1b]0;owned\\x07\\x1b[2J[red]x[/red][link=file:///]\\u202e\\x9b31m") == 4
    assert "\x1b" not in json.dumps(as_json(report(findings)))


def test_the_object_for_programs_holds_all_of_it() -> None:
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
