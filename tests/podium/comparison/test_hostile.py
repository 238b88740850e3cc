"""Hostile trees of results: each gives results or an error within SECONDS, and nothing in it is executed."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from podium.cli.main import app
from podium.comparison import discover
from podium.core import console
from podium.core.errors import PodiumError
from tests.podium.comparison.conftest import DESCRIPTION, event, log_text, write_system

SECONDS = 20  # limit for each test, on a busy machine too


@pytest.fixture(autouse=True)
def limited(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Raise TimeoutError after SECONDS, and keep caches inside of the test's folder."""

    def late(*_: object) -> None:
        raise TimeoutError(f"took more than {SECONDS} s")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("caches")))
    monkeypatch.setenv("COLUMNS", "160")
    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


class CompareOutput:
    """The output of `podium compare` for paths: an error message, or JSON, table with anomalies, and CSV."""

    def __init__(self, *paths: Path) -> None:
        self.rows: list[dict[str, Any]] = []
        self.text = self._run(*paths, "--json")
        self.refused = not self.text.startswith("[")
        if not self.refused:
            self.rows = json.loads(self.text)
            self.text += self._run(*paths, "--anomalies") + self._run(*paths, "--csv")

    def _run(self, *arguments: object) -> str:
        found = CliRunner().invoke(app, ["compare", *map(str, arguments)])
        if isinstance(found.exception, PodiumError):
            with console.errors.capture() as capture:
                console.print_message(str(found.exception))
            return capture.get()
        if found.exception is not None:
            raise found.exception
        self.notes = found.stderr
        return found.stdout

    def contains(self, *parts: str) -> bool:
        return all(part in self.text + self.notes for part in parts)

    notes = ""


@pytest.fixture
def org(tmp_path: Path) -> Path:
    """The folder of a submitter with one system, in a round."""
    write_system(tmp_path / "training_results_v2.0" / "ORG")
    return tmp_path / "training_results_v2.0" / "ORG"


def logs(org: Path) -> Path:
    return org / "results" / "SYS" / "bert"


def describe(org: Path, **changes: Any) -> None:
    (org / "systems" / "SYS.json").write_text(json.dumps({**DESCRIPTION, **changes}), encoding="utf-8")


def test_links_out_of_the_tree_and_cyclic_links_are_not_followed(org: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    write_system(elsewhere / "SECRET", "HIDDEN")
    (org.parent / "away").symlink_to(elsewhere / "SECRET")
    (org.parent / "around").symlink_to(org.parent)
    (org / "results" / "loop").symlink_to(org / "results")
    (org / "results" / "SYS" / "up").symlink_to("..")
    (org / "systems" / "self.json").symlink_to("self.json")
    (logs(org) / "result_0.txt").unlink()
    (logs(org) / "result_0.txt").symlink_to(elsewhere / "SECRET" / "results" / "HIDDEN" / "bert" / "result_0.txt")
    output = CompareOutput(org.parent)
    assert [(row["system"], len(row["runs_seconds"])) for row in output.rows] == [("SYS", 9)]
    assert "HIDDEN" not in output.text and output.contains("has 9 run(s); a score needs 10")


def test_fifos_and_folders_in_place_of_files_are_not_read(org: Path) -> None:
    os.mkfifo(logs(org) / "result_10.txt")
    os.mkfifo(logs(org) / "scaling.json")
    os.mkfifo(org / "systems" / "SYS2.json")
    (logs(org) / "result_11.txt").mkdir()
    (logs(org) / "result_9.txt").unlink()
    (logs(org) / "result_9.txt").mkdir()
    output = CompareOutput(org.parent)
    assert len(output.rows[0]["runs_seconds"]) == 9
    assert output.contains("scaling.json is not used: it is not a regular file")


def test_files_in_place_of_folders_are_not_entered(org: Path, tmp_path: Path) -> None:
    (org / "results" / "FILE").write_text("x")
    (org / "results" / "SYS" / "file").write_text("x")
    (org.parent / "OTHER").mkdir()
    (org.parent / "OTHER" / "results").write_text("x")
    (org.parent / "OTHER" / "systems").write_text("x")
    assert [row["system"] for row in CompareOutput(org.parent).rows] == ["SYS"]
    assert CompareOutput(org.parent / "OTHER").contains("OTHER", "contains no results")


def test_a_description_that_is_a_fifo_is_missing(org: Path) -> None:
    (org / "systems" / "SYS.json").rename(org / "systems" / "OTHER.json")
    os.mkfifo(org / "systems" / "SYS.json")
    output = CompareOutput(org.parent)
    assert output.rows[0]["accelerators_count"] is None and output.contains("systems/SYS.json is missing")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe{\x00}\x00",
        b"\xef\xbb\xbf{}",
        b"[" * 100_000,
        b'{"a":' * 3000 + b"1" + b"}" * 3000,
        b'{"hw_notes": "' + b"x" * (1 << 20) + b'"}',
        b'{"number_of_nodes": ' + b"9" * 5000 + b"}",
        b'{"number_of_nodes": 1e999, "accelerators_per_node": -4, "submitter": ["A"], "division": {}}',
        b'{"number_of_nodes": "1e300", "accelerators_per_node": "NaN", "submitter": "", "division": true}',
    ],
)
def test_invalid_descriptions_leave_the_size_unknown(org: Path, content: bytes) -> None:
    (org / "systems" / "SYS.json").write_bytes(content)
    output = CompareOutput(org.parent)
    assert output.rows[0]["accelerators_count"] is None and output.rows[0]["score_minutes"] is not None
    assert len(output.text) < 30_000


FORBIDDEN_CHARACTERS = ("\x1b", "\x07", "\r", "\u202e", "\u2028", "\x9b", "\ud800")
NAME = "<script>alert(1)</script>\x1b]0;x\x07\x1b[31m\u202e\u2028\r\n[red]=1+1"


def test_control_characters_in_names_are_not_printed(org: Path) -> None:
    describe(org, submitter=NAME, accelerator_model_name=NAME, framework="=cmd()\n" + NAME, division=NAME)
    for path in logs(org).iterdir():
        names: dict[str, Any] = dict.fromkeys(("submission_org", "submission_platform", "submission_division"), NAME)
        path.write_text(log_text(float(1000 + int(path.stem[-1])), opt_name=NAME, **names))
    logs(org).rename(org / "results" / "SYS" / "bert\x1b[2J")
    (org / "results" / "SYS").rename(org / "results" / "S\x1b[31m\u202e\nYS")
    output = CompareOutput(org.parent)
    assert len(output.rows) == 1 and output.rows[0]["submitter"].startswith("<script>alert(1)</script>")
    assert not [mark for mark in FORBIDDEN_CHARACTERS if mark in output.text + output.notes]


def _page(tree: Path, file: Path) -> str:
    found = CliRunner().invoke(app, ["compare", str(tree), "--html", str(file)])
    if found.exception is not None:
        raise found.exception
    return file.read_text(encoding="utf-8")


def test_markup_in_names_is_escaped_in_the_page(org: Path, tmp_path: Path) -> None:
    describe(org, submitter=NAME, accelerator_model_name=NAME, framework=NAME)
    (org / "results" / "SYS").rename(org / "results" / "<script>alert(1)<")
    (org / "systems" / "SYS.json").rename(org / "systems" / "<script>alert(1)<.json")
    page = _page(org.parent, tmp_path / "page.html")
    assert "&lt;script&gt;alert(1)" in page and "<script>alert(1)" not in page and "\x1b" not in page


def test_a_page_of_absurd_values_is_written(org: Path, tmp_path: Path) -> None:
    _write_absurd_logs(org)
    assert "SYS" in _page(org.parent, tmp_path / "page.html")


def test_names_that_are_not_utf_8_are_read(org: Path) -> None:
    (org / "results" / "SYS").rename(org / "results" / os.fsdecode(b"S\xff"))
    org.rename(org.parent / os.fsdecode(b"\xff\xfe"))
    assert len(CompareOutput(org.parent).rows) == 1


def test_git_folders_are_not_searched(org: Path) -> None:
    git = org.parent / ".git" / "objects"
    for number in range(300):
        (git / f"{number:03}" / "bert").mkdir(parents=True)
        (git / f"{number:03}" / "bert" / "result_0.txt").write_text(log_text())
    (git.parent / "config").write_text("[remote]\n url = x\n" * 100_000)
    write_system(org.parent / ".git" / "HIDDEN")
    assert [row["submitter"] for row in CompareOutput(org.parent).rows] == ["Org Inc."]


def test_deep_trees_are_not_searched_to_the_end(tmp_path: Path) -> None:
    deep = tmp_path / "deep"
    deep.mkdir()
    here = os.open(deep, os.O_RDONLY)
    for _ in range(300):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    assert CompareOutput(deep).contains("contains no results")


def test_trees_of_too_many_folders_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discover, "MAX_FOLDERS", 400)
    for number in range(500):
        (tmp_path / "wide" / f"{number}").mkdir(parents=True)
    assert CompareOutput(tmp_path / "wide").contains("more than 400 folders")


@pytest.mark.parametrize("make", [lambda path: path.touch(), lambda path: path.mkdir()])
def test_a_folder_of_thousands_of_files_is_read(org: Path, make: Callable[[Path], None]) -> None:
    """The folder is listed, and only the logs in it are read."""
    for number in range(3_000):
        make(logs(org) / f"other_{number}.txt")
    output = CompareOutput(org.parent)
    assert len(output.rows) == 1 and len(output.text) < 30_000


def test_hundreds_of_empty_logs_are_read(org: Path) -> None:
    for number in range(10, 400):
        (logs(org) / f"result_{number}.txt").touch()
    output = CompareOutput(org.parent)
    assert output.contains("a score needs 10") and len(output.rows[0]["runs_seconds"]) == 400


def test_a_log_that_starts_with_megabytes_of_zeros_is_read(org: Path) -> None:
    """A line of zeros, which is skipped, and then a run. The file is sparse and needs no disk space."""
    with (logs(org) / "result_0.txt").open("r+b") as file:
        text = file.read()
        file.truncate(0)
        file.seek(1 << 25)
        file.write(b"\n" + text)
    assert CompareOutput(org.parent).rows[0]["score_minutes"] is not None


def test_logs_that_cannot_be_opened_are_reported(org: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may open every file, so the error is simulated."""
    real = Path.open

    def refuse(path: Path, *arguments: Any, **options: Any) -> Any:
        if path.name == "result_3.txt":
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", refuse)
    output = CompareOutput(org.parent)
    assert len(output.rows[0]["runs_seconds"]) == 9 and output.contains("result_3.txt", "Permission denied")


def test_folders_named_like_logs_are_not_logs(org: Path) -> None:
    for path in logs(org).iterdir():
        path.unlink()
        path.mkdir()
    assert CompareOutput(org.parent).contains("contains no results")
    assert CompareOutput(logs(org) / "result_0.txt").contains("contains no results")


@pytest.mark.parametrize("content", [b"", b"\0" * 5000, b":::MLLOG " * 3000, b"\xff" * 5000, "\u202e".encode() * 99])
def test_logs_without_events_have_no_times(org: Path, content: bytes) -> None:
    for path in logs(org).iterdir():
        path.write_bytes(content)
    output = CompareOutput(org.parent)
    assert output.rows[0]["score_minutes"] is None and output.rows[0]["runs_seconds"] == [None] * 10


def _write_absurd_logs(org: Path) -> None:
    for number, path in enumerate(sorted(logs(org).iterdir())):
        values: dict[str, Any] = {
            "train_samples": 1e300,
            "eval_samples": -1,
            "opt_base_learning_rate": 1e308,
            "seed": 10**19,
        }
        text = log_text(1e-3 + number * 1e9, batch=10**15, **values)
        path.write_text(text + event("eval_accuracy", 1e308, 1e14, epoch_num=1e308))


def test_runs_with_absurd_values_give_finite_results(org: Path) -> None:
    _write_absurd_logs(org)
    (row,) = CompareOutput(org.parent).rows
    assert row["mfu"] is None or row["mfu"] < 1e30


def test_paths_without_results_are_errors(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path / ("x" * 300), tmp_path / "\x1b[31m\n", Path("/dev/null")):
        output = CompareOutput(path)
        assert (
            output.refused
            and output.contains("podium:", path.name[:5].replace("\x1b", "\\x1b"))
            and "\x1b" not in output.text
        )
