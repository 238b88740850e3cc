"""Hostile packages: `podium submit check` reports each in bounded memory and time, and is not harmed."""

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


class CheckCommand:
    """One `podium submit check` of a path: its output, its time, and checks that it ended properly."""

    def __init__(self, path: Path, *options: str, max_files: int = Limits().files) -> None:
        self.path = path
        limits = (resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        code = (
            f"import resource; resource.setrlimit(*{limits!r}); from podium.cli.main import main\n"
            "from podium.submission import check as checking\n"
            f"of_all = checking.Limits(files={max_files})\n"
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

    def printed(self, *texts: str) -> bool:
        return any(all(text in line for text in texts) for line in (self.text + self.errors).splitlines())

    def errors_of(self, path: str) -> list[str]:
        """Return the errors of a path and of paths below it, from the output of a command with --json."""
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
# Values that JSON allows or Python reads, and lines that are not events.
LINES = (
    *((EVENT % value).replace('"x", "value"', '"global_batch_size", "value"').encode() for value in VALUES),
    b":::MLLOG \xff\xfe{}\n",
    b':::MLLOG {"key": "seed", "key": "run_stop", "time_ms": 1, "value": 1, "metadata": {}}\n',
    b":::MLLOG []\n",
    b":::MLLOG 1\n",
    b':::MLLOG {"key": ["x"], "time_ms": {}, "value": 1, "metadata": []}\n',
    b"\x00\x1b[2J\x9b31m:::MLLOG {\x1b}\n",
)

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
    """Write a file of 1 GiB in one line, and one line just below the size limit of a file."""
    append(1, b":::MLLOG {")(package)
    os.truncate(package / LOG.format(1), 1 << 30)
    append(2, b":::MLLOG " + b"[" * (49 << 20))(package)


def malformed_lines(lines: Sequence[bytes]) -> Callable[[Path], None]:
    """Append each line to a different log."""

    def change(package: Path) -> None:
        for number, line in enumerate(lines):
            append(number, line)(package)

    return change


def malformed_description(content: bytes) -> Callable[[Path], None]:
    """Write a description and leave one log, which is enough for the tools that read descriptions."""

    def change(package: Path) -> None:
        (package / SYSTEM).write_bytes(content)
        for number in range(1, 10):
            (package / LOG.format(number)).unlink()

    return change


def hostile_tree(package: Path) -> None:
    folder, secret = package / "results/laptop/bert", package.parent.with_name("secret.txt")
    secret.write_text("secret words")
    (folder / "result_10.txt").symlink_to(secret)
    (package / "loop").symlink_to(package)
    os.mkfifo(folder / "result_11.txt")
    (folder / "result_\x1b[31m\n.txt").write_text("x")
    (folder / "[red]result[").write_text("x")
    (package / "systems" / "\udcff.json").write_text("{}")
    (package / "results/laptop/[blink]x").mkdir()


def foreign_rules(package: Path) -> None:
    """Make a log name rules that the official checker would execute, which create the file `proof`."""
    proof = package / "proof"
    (package / "evil_common.yaml").write_text(f"- BEGIN:\n    CODE: \"open({str(proof)!r}, 'w').close()\"\n")
    log = package / LOG.format(0)
    named = json.dumps("../" * 30 + str(package)[1:] + "/evil")
    log.write_text(log.read_text().replace('"value": "closed"', f'"value": {named}'))


# The packages of a round by name, and the function that makes each hostile.
HARMED: dict[str, Callable[[Path], None]] = {
    "LONG": long_lines,
    "MANY": append(1, (EVENT % '"x"') * 20_000),
    "LINES": malformed_lines(LINES[:8]),
    "MORE_LINES": malformed_lines(LINES[8:]),
    **{f"DESCRIPTION_{number}": malformed_description(content) for number, content in enumerate(DESCRIPTIONS)},
    "TREE": hostile_tree,
    "RULES": foreign_rules,
}


@pytest.fixture(scope="module")
def checked_once() -> list[CheckCommand]:
    return []


@pytest.fixture
def checked(write_package: Any, tmp_path: Path, checked_once: list[CheckCommand]) -> CheckCommand:
    """One command on a round of all hostile packages; each test looks at one of them."""
    if not checked_once:
        (tmp_path / "round").mkdir()
        for name, harm in HARMED.items():
            harm(write_package().rename(tmp_path / "round" / name))
        checked_once.append(CheckCommand(tmp_path / "round", "--json"))
    return checked_once[0]


def test_a_file_above_the_size_limit_is_an_error(checked: CheckCommand) -> None:
    assert any("50 MiB" in error for error in checked.errors_of("LONG/" + LOG.format(1)))
    assert checked.seconds < 30


def test_a_line_above_the_limit_is_an_error(checked: CheckCommand) -> None:
    assert any("1,048,576 bytes" in error for error in checked.errors_of("LONG/" + LOG.format(2)))


def test_findings_of_many_faulty_lines_are_limited(checked: CheckCommand) -> None:
    assert checked.text.count("MANY/" + LOG.format(1)) < 50


@pytest.mark.exhaustive
def test_findings_of_very_many_faulty_lines_are_limited(write_package: Any) -> None:
    package = write_package()
    append(1, (EVENT % '"x"') * 60_000)(package)
    assert CheckCommand(package).text.count("result_1.txt") < 50


@pytest.mark.parametrize("name", ["LINES", "MORE_LINES"])
def test_malformed_lines_and_values_are_errors(checked: CheckCommand, name: str) -> None:
    assert [number for number in range(10) if checked.errors_of(f"{name}/{LOG.format(number)}")] == list(range(8))


@pytest.mark.parametrize("number", range(len(DESCRIPTIONS)))
def test_malformed_descriptions_are_errors(checked: CheckCommand, number: int) -> None:
    assert checked.errors_of(f"DESCRIPTION_{number}/{SYSTEM}")


def test_links_pipes_and_unprintable_names_are_errors(checked: CheckCommand) -> None:
    errors = "\n".join(checked.errors_of("TREE"))
    for name, text in (
        ("result_10.txt", "symbolic link to .*, out of the package"),
        ("loop", "symbolic link"),
        ("result_11.txt", "neither a file nor a folder"),
        (r"result_\\x1b\[31m\\n.txt", "control characters"),
        (r"\\udcff.json", "not UTF-8"),
    ):
        assert re.search(f"{name}: .*{text}", errors), errors
    assert "Unknown files" in checked.text
    assert "secret words" not in checked.text
    verdicts = {one["path"]: one["official"] for one in json.loads(checked.text)["files"]}
    assert {verdicts["TREE/" + LOG.format(number)] for number in range(10)} == {"passed"}


def test_the_report_prints_as_harmless_text(checked: CheckCommand) -> None:
    whole = json.loads(checked.text)
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


def test_no_file_named_by_a_log_is_executed(checked: CheckCommand) -> None:
    errors = checked.errors_of("RULES/" + LOG.format(0))
    assert any("names rules outside of the checker's folder" in error for error in errors)
    assert not (checked.path / "RULES" / "proof").exists()


@pytest.mark.parametrize("limit", [1_000, pytest.param(50_000, marks=pytest.mark.exhaustive)])
def test_a_folder_above_the_limit_of_files_is_an_error(write_package: Any, limit: int) -> None:
    """The actual limit is 50,000, which takes a minute to make, copy and remove."""
    assert Limits().files == 50_000
    package = write_package()
    for number in range(limit):
        os.close(os.open(package / "results/laptop/bert" / f"result_{number}.txt", os.O_CREAT | os.O_WRONLY))
    checked = CheckCommand(package, max_files=limit)
    assert checked.printed(f"more than {limit:,} files and folders")
    assert len(checked.text) < 3000


def test_archive_members_outside_the_package_are_not_written(write_package: Any, tmp_path: Path) -> None:
    package = write_package()
    shutil.rmtree(package / "systems")  # the logs are then checked one by one
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
        checked = CheckCommand(tmp_path / name)
        assert checked.printed("podium_slipped", "outside of the package")
        assert checked.printed("10 of 10 logs pass"), checked.text
    assert not Path("/tmp/podium_slipped").exists()


def test_a_line_of_one_gigabyte_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "result_0.txt"
    with path.open("wb") as file:
        file.write(b":::MLLOG {")
        file.truncate(1 << 30)
    started = time.monotonic()
    assert CheckCommand(path).printed("result_0.txt", "50 MiB")
    assert time.monotonic() - started < 60
