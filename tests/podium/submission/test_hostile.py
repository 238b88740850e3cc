"""Packages made to harm whoever checks them: a sentence each, by the command itself, in bounded memory and time."""

import io
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from podium.core.finding import Finding
from podium.submission.archive import Limits
from podium.submission.check import FileVerdict, Report, print_report

LOG = "results/laptop/bert/result_{}.txt"
SYSTEM = "systems/laptop.json"
MEMORY_BYTES = 2 << 30
SECONDS = 60  # of processor time, of all processes together
EVENT = (
    ':::MLLOG {"namespace": "", "time_ms": 1, "event_type": "POINT_IN_TIME", "key": "x", "value": %s, "metadata": {}}\n'
)


class Told:
    """What the command said of a path."""

    def __init__(self, path: Path, *options: str, most_files: int = Limits().files) -> None:
        self.path = path
        limits = (resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        code = (
            f"import resource; resource.setrlimit(*{limits!r}); from podium.cli.main import main\n"
            "from podium.submission import check as checking\n"
            f"of_all = checking.Limits(files={most_files})\n"
            "checking.Limits = lambda: of_all\n"
            "main()"
        )
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.done = subprocess.run(
            [sys.executable, "-c", code, "submit", "check", str(path), *options],
            capture_output=True,
            check=False,
            env=os.environ | {"COLUMNS": "2000"},
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        self.text = self.done.stdout.decode("utf-8")
        self.errors = self.done.stderr.decode("utf-8")
        assert "Traceback" not in self.text + self.errors, self.errors
        assert self.done.returncode == 1, self.errors
        assert "its process ended" not in self.text
        assert self.seconds < SECONDS
        for byte in self.done.stdout + self.done.stderr:
            assert byte >= 32 or byte == 10

    def says(self, *words: str) -> bool:
        return any(all(word in line for word in words) for line in (self.text + self.errors).splitlines())

    def errors_of(self, path: str) -> list[str]:
        """Of a command with --json: the errors of this path and of what is below it, each with its path and rule."""
        return [
            f"{one['path']}: {one['rule']}: {one['message']}"
            for one in json.loads(self.text)["findings"]
            if one["severity"] == "error" and (one["path"] + "/").startswith(path + "/")
        ]


def append(number: int, content: bytes | str) -> Callable[[Path], None]:
    def change(package: Path) -> None:
        with (package / LOG.format(number)).open("ab") as file:
            file.write(content.encode() if isinstance(content, str) else content)

    return change


VALUES = (
    "[" * 100_000 + "]" * 100_000,
    "[" * 5_000,
    '{"a":' * 2_000 + "1" + "}" * 2_000,
    "9" * 1_000_000,
    "9" * 5_000,
    "1e999999",
    "NaN",
    "-Infinity",
    '"\\ud800"',
    '"\x1b[31m[red]"',
)
LINES = (
    *((EVENT % value).replace('"x", "value"', '"global_batch_size", "value"').encode() for value in VALUES),
    b":::MLLOG \xff\xfe{}\n",
    b':::MLLOG {"key": "seed", "key": "run_stop", "time_ms": 1, "value": 1, "metadata": {}}\n',
    b":::MLLOG []\n",
    b":::MLLOG 1\n",
    b':::MLLOG {"key": ["x"], "time_ms": {}, "value": 1, "metadata": []}\n',
    b"\x00\x1b[2J\x9b31m:::MLLOG {\x1b}\n",
)
"""Values that JSON allows or Python reads, and lines that are no events."""

DESCRIPTIONS = (
    b"[1, 2]",
    b"null",
    b'"text"',
    b"[" * 100_000,
    b"\xff",
    b"",
    b'{"a": NaN}',
    b'{"system_name": {"a": []}}',
)


def long_lines(package: Path) -> None:
    """A GiB without an end, and all that a file may have."""
    append(1, b":::MLLOG {")(package)
    os.truncate(package / LOG.format(1), 1 << 30)
    append(2, b":::MLLOG " + b"[" * (49 << 20))(package)


def lines_that_are_none(lines: Sequence[bytes]) -> Callable[[Path], None]:
    """Each in a log of its own."""

    def change(package: Path) -> None:
        for number, line in enumerate(lines):
            append(number, line)(package)

    return change


def description_that_is_none(content: bytes) -> Callable[[Path], None]:
    """With one log: the tools that read the description are given it whatever the number of logs is."""

    def change(package: Path) -> None:
        (package / SYSTEM).write_bytes(content)
        for number in range(1, 10):
            (package / LOG.format(number)).unlink()

    return change


def everything_that_a_tree_can_hold(package: Path) -> None:
    folder, secret = package / "results/laptop/bert", package.parent.with_name("secret.txt")
    secret.write_text("secret words")
    (folder / "result_10.txt").symlink_to(secret)
    (package / "loop").symlink_to(package)
    os.mkfifo(folder / "result_11.txt")
    (folder / "result_\x1b[31m\n.txt").write_text("x")
    (folder / "[red]result[").write_text("x")
    (package / "systems" / "\udcff.json").write_text("{}")
    (package / "results/laptop/[blink]x").mkdir()


def rules_of_its_own(package: Path) -> None:
    """A log that would have the official checker execute a file, which leaves a proof."""
    proof = package / "proof"
    (package / "evil_common.yaml").write_text(f"- BEGIN:\n    CODE: \"open({str(proof)!r}, 'w').close()\"\n")
    log = package / LOG.format(0)
    named = json.dumps("../" * 30 + str(package)[1:] + "/evil")
    log.write_text(log.read_text().replace('"value": "closed"', f'"value": {named}'))


HARMED: dict[str, Callable[[Path], None]] = {
    "LONG": long_lines,
    "MANY": append(1, (EVENT % '"x"') * 20_000),
    "LINES": lines_that_are_none(LINES[:8]),
    "MORE_LINES": lines_that_are_none(LINES[8:]),
    **{f"DESCRIPTION_{number}": description_that_is_none(content) for number, content in enumerate(DESCRIPTIONS)},
    "TREE": everything_that_a_tree_can_hold,
    "RULES": rules_of_its_own,
}
"""The packages of a round by their names, and what harms them."""


@pytest.fixture(scope="module")
def told_once() -> list[Told]:
    return []


@pytest.fixture
def told(write_package: Any, tmp_path: Path, told_once: list[Told]) -> Told:
    """What one command says of the round of all harmed packages; each test looks at its own."""
    if not told_once:
        (tmp_path / "round").mkdir()
        for name, harm in HARMED.items():
            harm(write_package().rename(tmp_path / "round" / name))
        told_once.append(Told(tmp_path / "round", "--json"))
    return told_once[0]


def test_a_line_of_very_many_bytes(told: Told) -> None:
    assert any("50 MiB" in error for error in told.errors_of("LONG/" + LOG.format(1)))
    assert told.seconds < 30


def test_a_long_line_in_a_file_of_an_allowed_size(told: Told) -> None:
    assert any("1,048,576 bytes" in error for error in told.errors_of("LONG/" + LOG.format(2)))


def test_many_lines_that_are_each_allowed(told: Told) -> None:
    assert told.text.count("MANY/" + LOG.format(1)) < 50


@pytest.mark.exhaustive
def test_even_more_lines_that_are_each_allowed(write_package: Any) -> None:
    package = write_package()
    append(1, (EVENT % '"x"') * 60_000)(package)
    assert Told(package).text.count("result_1.txt") < 50


@pytest.mark.parametrize("name", ["LINES", "MORE_LINES"])
def test_lines_that_are_no_events_and_values_that_are_none(told: Told, name: str) -> None:
    assert [number for number in range(10) if told.errors_of(f"{name}/{LOG.format(number)}")] == list(range(8))


@pytest.mark.parametrize("number", range(len(DESCRIPTIONS)))
def test_descriptions_that_are_none(told: Told, number: int) -> None:
    assert told.errors_of(f"DESCRIPTION_{number}/{SYSTEM}")


def test_everything_that_a_tree_can_hold(told: Told) -> None:
    errors = "\n".join(told.errors_of("TREE"))
    for name, words in (
        ("result_10.txt", "symbolic link to .*, out of the package"),
        ("loop", "symbolic link"),
        ("result_11.txt", "neither a file nor a folder"),
        (r"result_\\x1b\[31m\\n.txt", "control characters"),
        (r"\\udcff.json", "not UTF-8"),
    ):
        assert re.search(f"{name}: .*{words}", errors), errors
    assert "Unknown files" in told.text
    assert "secret words" not in told.text
    verdicts = {one["path"]: one["official"] for one in json.loads(told.text)["files"]}
    assert {verdicts["TREE/" + LOG.format(number)] for number in range(10)} == {"passed"}


def test_all_of_it_is_printed_as_harmless_text(told: Told) -> None:
    whole = json.loads(told.text)
    report = Report(
        whole["path"],
        whole["ruleset"],
        tuple(whole["packages"]),
        tuple(FileVerdict(**one) for one in whole["files"]),
        tuple(Finding(**one) for one in whole["findings"]),
        (),
    )
    console = Console(file=io.StringIO(), width=2000)
    print_report(console, report)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "[red]result[" in text and "result_\\x1b[31m\\n.txt" in text
    assert all(character.isprintable() or character == "\n" for character in text)


def test_a_log_that_would_have_the_official_checker_execute_a_file(told: Told) -> None:
    errors = told.errors_of("RULES/" + LOG.format(0))
    assert any("names rules out of the checker's own folder" in error for error in errors)
    assert not (told.path / "RULES" / "proof").exists()


@pytest.mark.parametrize("most", [1_000, pytest.param(50_000, marks=pytest.mark.exhaustive)])
def test_a_folder_of_very_many_files(write_package: Any, most: int) -> None:
    """50,000 is the limit, whose files take a minute to make, to copy and to remove."""
    assert Limits().files == 50_000
    package = write_package()
    for number in range(most):
        os.close(os.open(package / "results/laptop/bert" / f"result_{number}.txt", os.O_CREAT | os.O_WRONLY))
    told = Told(package, most_files=most)
    assert told.says(f"more than {most:,} files and folders")
    assert len(told.text) < 3000


def test_archives_that_lead_outside(write_package: Any, tmp_path: Path) -> None:
    package = write_package()
    shutil.rmtree(package / "systems")  # the logs are judged, one by one, and that is enough
    with zipfile.ZipFile(tmp_path / "slip.zip", "w") as archive:
        for path in package.rglob("*"):
            archive.write(path, path.relative_to(package.parent))
        archive.writestr("../../../../../../../../tmp/podium_slipped", "x")
    with tarfile.open(tmp_path / "slip.tar.gz", "w:gz") as tar:
        tar.add(package, "ORG")
        info = tarfile.TarInfo("ORG/results/laptop/bert/../../../../../podium_slipped")
        tar.addfile(info)
        info = tarfile.TarInfo("ORG/away")
        info.type, info.linkname = tarfile.SYMTYPE, "/tmp"
        tar.addfile(info)
        tar.addfile(tarfile.TarInfo("ORG/away/podium_slipped"))
    for name in ("slip.zip", "slip.tar.gz"):
        told = Told(tmp_path / name)
        assert told.says("podium_slipped", "outside of the package")
        assert told.says("10 of 10 logs pass"), told.text
    assert not Path("/tmp/podium_slipped").exists()


def test_a_gigabyte_that_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "result_0.txt"
    with path.open("wb") as file:
        file.write(b":::MLLOG {")
        file.truncate(1 << 30)
    started = time.monotonic()
    assert Told(path).says("result_0.txt", "50 MiB")
    assert time.monotonic() - started < 60
