"""Exit codes of real processes: 130 after Ctrl-C, 143 after SIGTERM, in every command."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from podium.core.errors import (
    EXIT_CODES,
    Interrupted,
    StoppedAfterSaving,
    UsageError,
    WorkError,
    clear_stop_signal,
    record_stop_signal,
)
from podium.core.paths import CODE_FOLDER
from tests.conftest import copy_project

SECONDS = 60
CODES = {"SIGINT": 130, "SIGTERM": 143}
SHORT = ("--set", "launch.threads_per_process=1")
COMMANDS = {
    "run": ("run", "laptop", *SHORT),
    "bench": ("bench", "laptop", *SHORT),
    "tune": ("tune", "laptop", "--trials", "1", *SHORT),
    "doctor": ("doctor", "laptop", *SHORT),
    "data prepare": ("data", "prepare", "--text", "text", "--vocab", "vocab.txt", "--out", "out", "--processes", "1"),
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project, with a text that takes minutes to prepare."""
    home = tmp_path_factory.mktemp("podium")
    copy_project(CODE_FOLDER, home)
    (home / "text").write_text("a b c d\ne f g a\n\n" * 200_000, encoding="utf-8")
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefg"]
    (home / "vocab.txt").write_text("\n".join(vocabulary), encoding="utf-8")
    return home


def _stopped() -> Iterator[Any]:
    """Every command, and by default each signal with every second one."""
    for place, command in enumerate(COMMANDS):
        for number, name in enumerate(CODES):
            marks = pytest.mark.exhaustive if (place + number) % 2 else ()
            yield pytest.param(command, name, marks=marks, id=f"{command}-{name}")


@pytest.mark.parametrize(("command", "name"), [*_stopped()])
def test_stopped_command(project: Path, command: str, name: str) -> None:
    number, code = signal.Signals[name], CODES[name]
    process = subprocess.Popen(
        [sys.executable, "-m", "podium.cli", *COMMANDS[command], "--verbose"],
        cwd=project,
        env=os.environ | {"PYTHONPATH": str(project)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stderr is not None
    first = process.stderr.readline()  # the first line on what it does
    assert first.startswith("["), first
    process.send_signal(number)
    output, messages = process.communicate(timeout=SECONDS)
    assert process.returncode == code, messages
    assert output == "" and "podium: interrupted" in messages and "Traceback" not in messages


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGQUIT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)],
    ids=lambda value: getattr(value, "name", None),
)
def test_a_saved_checkpoint_does_not_change_the_exit_code(number: signal.Signals, code: int) -> None:
    record_stop_signal(number)
    try:
        assert Interrupted("interrupted").exit_code == StoppedAfterSaving("saved").exit_code == code
    finally:
        clear_stop_signal()


def test_ranks_that_are_stopped_from_outside_end_with_143() -> None:
    """The ranks alone got SIGTERM, as from Slurm: this process has no signal."""
    clear_stop_signal()
    assert StoppedAfterSaving("saved").exit_code == StoppedAfterSaving.exit_code == 143
    assert Interrupted("interrupted").exit_code == 130


def test_all_exit_codes_are_in_the_docs() -> None:
    text = (CODE_FOLDER / "docs" / "getting-started.md").read_text(encoding="utf-8")
    table = text[text.index("## Exit codes") : text.index("## What a run leaves")]
    assert [int(line.split("|")[1]) for line in table.splitlines() if line[:3].strip("| ").isdigit()] == [*EXIT_CODES]
    assert {WorkError.exit_code, UsageError.exit_code} <= set(EXIT_CODES)
