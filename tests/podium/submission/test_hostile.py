"""Packages made to harm whoever checks them: a sentence each, by the command itself, in bounded memory and time."""

import json
import os
import resource
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from podium.submission.archive import Limits

LOG = "results/laptop/bert/result_{}.txt"
SYSTEM = "systems/laptop.json"
MEMORY_BYTES = 2 << 30
SECONDS = 60  # of processor time, of all processes together
EVENT = (
    ':::MLLOG {"namespace": "", "time_ms": 1, "event_type": "POINT_IN_TIME", "key": "x", "value": %s, "metadata": {}}\n'
)


class Told:
    """What the command said of a path."""

    def __init__(self, path: Path, most_files: int = Limits().files) -> None:
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
            [sys.executable, "-c", code, "submit", "check", str(path)],
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


@pytest.fixture
def harmed(write_package: Any) -> Callable[[Callable[[Path], Any]], Told]:
    def harm(change: Callable[[Path], Any]) -> Told:
        package = write_package()
        change(package)
        return Told(package)

    return harm


def append(number: int, content: bytes | str) -> Callable[[Path], None]:
    def change(package: Path) -> None:
        with (package / LOG.format(number)).open("ab") as file:
            file.write(content.encode() if isinstance(content, str) else content)

    return change


def test_a_line_of_very_many_bytes(harmed: Any) -> None:
    def change(package: Path) -> None:
        with (package / LOG.format(1)).open("ab") as file:
            file.write(b":::MLLOG {")
            file.truncate(1 << 30)

    told = harmed(change)
    assert told.says("result_1.txt", "large_file") or told.says("result_1.txt", "1,024.", "50 MiB")
    assert told.seconds < 30


def test_a_long_line_in_a_file_of_an_allowed_size(harmed: Any) -> None:
    assert harmed(append(1, b":::MLLOG " + b"[" * (49 << 20))).says("result_1.txt", "1,048,576 bytes")


@pytest.mark.parametrize("lines", [20_000, pytest.param(60_000, marks=pytest.mark.exhaustive)])
def test_many_lines_that_are_each_allowed(harmed: Any, lines: int) -> None:
    told = harmed(append(1, (EVENT % '"x"') * lines))
    assert told.text.count("result_1.txt") < 50


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


@pytest.mark.parametrize("lines", [LINES[:8], LINES[8:]])
def test_lines_that_are_no_events_and_values_that_are_none(harmed: Any, lines: tuple[bytes, ...]) -> None:
    """Each in a log of its own."""

    def change(package: Path) -> None:
        for number, line in enumerate(lines):
            append(number, line)(package)

    told = harmed(change)
    assert [number for number in range(10) if told.says(f"result_{number}.txt")] == list(range(8))


def test_descriptions_that_are_none(write_package: Any, tmp_path: Path) -> None:
    contents = [
        b"[1, 2]",
        b"null",
        b'"text"',
        b"[" * 100_000,
        b"\xff",
        b"",
        b'{"a": NaN}',
        b'{"system_name": {"a": []}}',
    ]
    package = write_package()
    for number, content in enumerate(contents):
        other = shutil.copytree(package, tmp_path / "round" / f"ORG{number}")
        (other / SYSTEM).write_bytes(content)
    told = Told(tmp_path / "round")
    assert all(told.says(f"ORG{number}/{SYSTEM}") for number in range(len(contents)))


def test_everything_that_a_tree_can_hold(write_package: Any, tmp_path: Path) -> None:
    package = write_package()
    folder = package / "results/laptop/bert"
    (tmp_path / "secret.txt").write_text("secret words")
    (folder / "result_10.txt").symlink_to(tmp_path / "secret.txt")
    (package / "loop").symlink_to(package)
    os.mkfifo(folder / "result_11.txt")
    (folder / "result_\x1b[31m\n.txt").write_text("x")
    (folder / "[red]result[").write_text("x")
    (package / "systems" / "\udcff.json").write_text("{}")
    (package / "results/laptop/[blink]x").mkdir()
    told = Told(package)
    assert told.says("result_10.txt", "symbolic link", "out of the package")
    assert told.says("loop", "symbolic link")
    assert told.says("result_11.txt", "neither a file nor a folder")
    assert told.says("result_\\x1b[31m\\n.txt", "control characters")
    assert told.says("\\udcff.json", "not UTF-8")
    assert told.says("Unknown files")
    assert "secret words" not in told.text
    assert told.says("10 of 10 logs pass")


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


def test_a_log_that_would_have_the_official_checker_execute_a_file(write_package: Any, tmp_path: Path) -> None:
    package, proof = write_package(), tmp_path / "proof"
    rules = f"- BEGIN:\n    CODE: \"open({str(proof)!r}, 'w').close()\"\n"
    (package / "evil_common.yaml").write_text(rules)
    log = package / LOG.format(0)
    named = json.dumps("../" * 30 + str(package)[1:] + "/evil")
    log.write_text(log.read_text().replace('"value": "closed"', f'"value": {named}'))
    told = Told(package)
    assert told.says("result_0.txt", "names rules out of the checker's own folder")
    assert not proof.exists()


def test_a_gigabyte_that_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "result_0.txt"
    with path.open("wb") as file:
        file.write(b":::MLLOG {")
        file.truncate(1 << 30)
    started = time.monotonic()
    assert Told(path).says("result_0.txt", "50 MiB")
    assert time.monotonic() - started < 60
