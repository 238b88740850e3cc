"""Trees that nobody would submit: each ends in a sentence or in results, soon, and nothing of it is obeyed."""

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

SECONDS = 20
"""In which each must end, on a busy machine too."""


@pytest.fixture(autouse=True)
def limited(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing takes longer than SECONDS, and nothing is kept outside of the test."""

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
    """What `podium compare` says of a path: its JSON, its table and CSV are asked for too where there are results."""

    def __init__(self, *paths: Path) -> None:
        self.rows: list[dict[str, Any]] = []
        self.text = self._run(*paths, "--json")
        self.refused = not self.text.startswith("[")
        if not self.refused:
            self.rows = json.loads(self.text)
            self.text += self._run(*paths, "--oddities") + self._run(*paths, "--csv")

    def _run(self, *arguments: object) -> str:
        found = CliRunner().invoke(app, ["compare", *map(str, arguments)])
        if isinstance(found.exception, PodiumError):
            with console.errors.capture() as capture:
                console.tell(str(found.exception))
            return capture.get()
        if found.exception is not None:
            raise found.exception
        self.notes = found.stderr
        return found.stdout

    def says(self, *words: str) -> bool:
        return all(word in self.text + self.notes for word in words)

    notes = ""


@pytest.fixture
def org(tmp_path: Path) -> Path:
    """A round with one submitter of one system."""
    write_system(tmp_path / "training_results_v2.0" / "ORG")
    return tmp_path / "training_results_v2.0" / "ORG"


def logs(org: Path) -> Path:
    return org / "results" / "SYS" / "bert"


def describe(org: Path, **changes: Any) -> None:
    (org / "systems" / "SYS.json").write_text(json.dumps({**DESCRIPTION, **changes}), encoding="utf-8")


def test_links_out_of_the_tree_and_in_circles(org: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    write_system(elsewhere / "SECRET", "HIDDEN")
    (org.parent / "away").symlink_to(elsewhere / "SECRET")
    (org.parent / "around").symlink_to(org.parent)
    (org / "results" / "loop").symlink_to(org / "results")
    (org / "results" / "SYS" / "up").symlink_to("..")
    (org / "systems" / "self.json").symlink_to("self.json")
    (logs(org) / "result_0.txt").unlink()
    (logs(org) / "result_0.txt").symlink_to(elsewhere / "SECRET" / "results" / "HIDDEN" / "bert" / "result_0.txt")
    told = CompareOutput(org.parent)
    assert [(row["system"], len(row["runs_seconds"])) for row in told.rows] == [("SYS", 9)]
    assert "HIDDEN" not in told.text and told.says("has 9 run(s); a score is of 10")


def test_what_is_no_file(org: Path) -> None:
    os.mkfifo(logs(org) / "result_10.txt")
    os.mkfifo(logs(org) / "scaling.json")
    os.mkfifo(org / "systems" / "SYS2.json")
    (logs(org) / "result_11.txt").mkdir()
    (logs(org) / "result_9.txt").unlink()
    (logs(org) / "result_9.txt").mkdir()
    told = CompareOutput(org.parent)
    assert len(told.rows[0]["runs_seconds"]) == 9
    assert told.says("scaling.json is not used: it is no plain file")


def test_a_file_where_a_folder_should_be(org: Path, tmp_path: Path) -> None:
    (org / "results" / "FILE").write_text("x")
    (org / "results" / "SYS" / "file").write_text("x")
    (org.parent / "OTHER").mkdir()
    (org.parent / "OTHER" / "results").write_text("x")
    (org.parent / "OTHER" / "systems").write_text("x")
    assert [row["system"] for row in CompareOutput(org.parent).rows] == ["SYS"]
    assert CompareOutput(org.parent / "OTHER").says("OTHER", "holds no results of BERT")


def test_a_description_that_is_no_file(org: Path) -> None:
    (org / "systems" / "SYS.json").rename(org / "systems" / "OTHER.json")
    os.mkfifo(org / "systems" / "SYS.json")
    told = CompareOutput(org.parent)
    assert told.rows[0]["accelerators"] is None and told.says("systems/SYS.json is missing")


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
def test_descriptions_of_every_kind(org: Path, content: bytes) -> None:
    (org / "systems" / "SYS.json").write_bytes(content)
    told = CompareOutput(org.parent)
    assert told.rows[0]["accelerators"] is None and told.rows[0]["score_minutes"] is not None
    assert len(told.text) < 30_000


FORBIDDEN_CHARACTERS = ("\x1b", "\x07", "\r", "\u202e", "\u2028", "\x9b", "\ud800")
NAME = "<script>alert(1)</script>\x1b]0;x\x07\x1b[31m\u202e\u2028\r\n[red]=1+1"


def test_names_that_steer_what_shows_them(org: Path) -> None:
    describe(org, submitter=NAME, accelerator_model_name=NAME, framework="=cmd()\n" + NAME, division=NAME)
    for path in logs(org).iterdir():
        names: dict[str, Any] = dict.fromkeys(("submission_org", "submission_platform", "submission_division"), NAME)
        path.write_text(log_text(float(1000 + int(path.stem[-1])), opt_name=NAME, **names))
    logs(org).rename(org / "results" / "SYS" / "bert\x1b[2J")
    (org / "results" / "SYS").rename(org / "results" / "S\x1b[31m\u202e\nYS")
    told = CompareOutput(org.parent)
    assert len(told.rows) == 1 and told.rows[0]["submitter"].startswith("<script>alert(1)</script>")
    assert not [mark for mark in FORBIDDEN_CHARACTERS if mark in told.text + told.notes]


def _page(tree: Path, file: Path) -> str:
    found = CliRunner().invoke(app, ["compare", str(tree), "--html", str(file)])
    if found.exception is not None:
        raise found.exception
    return file.read_text(encoding="utf-8")


def test_names_in_a_page(org: Path, tmp_path: Path) -> None:
    describe(org, submitter=NAME, accelerator_model_name=NAME, framework=NAME)
    (org / "results" / "SYS").rename(org / "results" / "<script>alert(1)<")
    (org / "systems" / "SYS.json").rename(org / "systems" / "<script>alert(1)<.json")
    page = _page(org.parent, tmp_path / "page.html")
    assert "&lt;script&gt;alert(1)" in page and "<script>alert(1)" not in page and "\x1b" not in page


def test_absurd_figures_in_a_page(org: Path, tmp_path: Path) -> None:
    _absurd(org)
    assert "SYS" in _page(org.parent, tmp_path / "page.html")


def test_names_that_are_no_text(org: Path) -> None:
    (org / "results" / "SYS").rename(org / "results" / os.fsdecode(b"S\xff"))
    org.rename(org.parent / os.fsdecode(b"\xff\xfe"))
    assert len(CompareOutput(org.parent).rows) == 1


def test_a_tree_of_git_is_not_walked(org: Path) -> None:
    git = org.parent / ".git" / "objects"
    for number in range(300):
        (git / f"{number:03}" / "bert").mkdir(parents=True)
        (git / f"{number:03}" / "bert" / "result_0.txt").write_text(log_text())
    (git.parent / "config").write_text("[remote]\n url = x\n" * 100_000)
    write_system(org.parent / ".git" / "HIDDEN")
    assert [row["submitter"] for row in CompareOutput(org.parent).rows] == ["Org Inc."]


def test_a_tree_too_deep(tmp_path: Path) -> None:
    deep = tmp_path / "deep"
    deep.mkdir()
    here = os.open(deep, os.O_RDONLY)
    for _ in range(300):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    assert CompareOutput(deep).says("holds no results of BERT")


def test_a_tree_too_wide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discover, "MAX_FOLDERS", 400)
    for number in range(500):
        (tmp_path / "wide" / f"{number}").mkdir(parents=True)
    assert CompareOutput(tmp_path / "wide").says("more than 400 folders")


@pytest.mark.parametrize("make", [lambda path: path.touch(), lambda path: path.mkdir()])
def test_very_many_files(org: Path, make: Callable[[Path], None]) -> None:
    """They are listed, and the logs among them are read."""
    for number in range(3_000):
        make(logs(org) / f"other_{number}.txt")
    told = CompareOutput(org.parent)
    assert len(told.rows) == 1 and len(told.text) < 30_000


def test_many_empty_logs(org: Path) -> None:
    for number in range(10, 400):
        (logs(org) / f"result_{number}.txt").touch()
    told = CompareOutput(org.parent)
    assert told.says("a score is of 10") and len(told.rows[0]["runs_seconds"]) == 400


def test_a_log_that_begins_with_megabytes_of_zeros(org: Path) -> None:
    """Sparse, so that it takes no disk: a line of zeros, which is skipped, and then a run."""
    with (logs(org) / "result_0.txt").open("r+b") as file:
        text = file.read()
        file.truncate(0)
        file.seek(1 << 25)
        file.write(b"\n" + text)
    assert CompareOutput(org.parent).rows[0]["score_minutes"] is not None


def test_logs_that_cannot_be_opened(org: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may open all, so that the refusal is made up."""
    real = Path.open

    def refuse(path: Path, *arguments: Any, **more: Any) -> Any:
        if path.name == "result_3.txt":
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *arguments, **more)

    monkeypatch.setattr(Path, "open", refuse)
    told = CompareOutput(org.parent)
    assert len(told.rows[0]["runs_seconds"]) == 9 and told.says("result_3.txt", "Permission denied")


def test_a_folder_named_as_a_log(org: Path) -> None:
    for path in logs(org).iterdir():
        path.unlink()
        path.mkdir()
    assert CompareOutput(org.parent).says("holds no results of BERT")
    assert CompareOutput(logs(org) / "result_0.txt").says("holds no results of BERT")


@pytest.mark.parametrize("content", [b"", b"\0" * 5000, b":::MLLOG " * 3000, b"\xff" * 5000, "\u202e".encode() * 99])
def test_files_that_are_no_logs(org: Path, content: bytes) -> None:
    for path in logs(org).iterdir():
        path.write_bytes(content)
    told = CompareOutput(org.parent)
    assert told.rows[0]["score_minutes"] is None and told.rows[0]["runs_seconds"] == [None] * 10


def _absurd(org: Path) -> None:
    for number, path in enumerate(sorted(logs(org).iterdir())):
        values: dict[str, Any] = {
            "train_samples": 1e300,
            "eval_samples": -1,
            "opt_base_learning_rate": 1e308,
            "seed": 10**19,
        }
        text = log_text(1e-3 + number * 1e9, batch=10**15, **values)
        path.write_text(text + event("eval_accuracy", 1e308, 1e14, epoch_num=1e308))


def test_runs_with_absurd_figures(org: Path) -> None:
    _absurd(org)
    (told,) = CompareOutput(org.parent).rows
    assert told["mfu"] is None or told["mfu"] < 1e30


def test_paths_that_are_nothing(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path / ("x" * 300), tmp_path / "\x1b[31m\n", Path("/dev/null")):
        told = CompareOutput(path)
        assert told.refused and told.says("podium:", path.name[:5].replace("\x1b", "\\x1b")) and "\x1b" not in told.text
