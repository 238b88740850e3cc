"""Text printed to the console cannot control the terminal."""

import io
import json
import time
from pathlib import Path

import pytest
from rich.text import Text

from podium.core import console
from podium.core.console import Console, print_json, print_text, progress_bar, text_table, waiting


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("a/\x1b[31mb\x07: is no log", "a/\\x1b[31mb\\x07: is no log"),
        ("x\u202ey\u2028z\ud800\r", "x\\u202ey\\u2028z\\ud800\\r"),
        ("two\nlines, 8×A100 [red] „größer“ 日本", "two\nlines, 8×A100 [red] „größer“ 日本"),
    ],
)
def test_control_characters_in_messages_are_escaped(message: str, shown: str) -> None:
    with console.errors.capture() as capture:
        console.print_message(message)
    assert capture.get().rstrip("\n").endswith(shown)


CONTROL_TEXT = "a\x1b[31m\x9b2J\u202eb\x07"
ESCAPED_TEXT = r"a\x1b[31m\x9b2J\u202eb\x07"


def test_control_characters_are_escaped_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    """Tables, markup, titles and plain lines."""
    table = text_table("one", CONTROL_TEXT, title=CONTROL_TEXT)
    table.add_row(CONTROL_TEXT, Text(CONTROL_TEXT))
    console = Console(width=400)
    console.print(table)
    console.print(CONTROL_TEXT, f"[bold]{CONTROL_TEXT}[/bold]")
    print_text(Path(CONTROL_TEXT))
    shown = capsys.readouterr().out
    assert ESCAPED_TEXT in shown.splitlines()
    assert shown.count("x1b") >= 5  # a table folds the longer escaped text
    assert all(character == "\n" or character.isprintable() for character in shown)


def test_printed_json_is_unchanged_and_printable(capsys: pytest.CaptureFixture[str]) -> None:
    document = {CONTROL_TEXT: ["zwölf – \U000e0001", 1.5, None]}
    print_json(document)
    shown = capsys.readouterr().out
    assert "zwölf – " in shown
    assert json.loads(shown) == document
    assert all(character == "\n" or character.isprintable() for character in shown)


def test_styles_still_work_on_a_terminal() -> None:
    written = io.StringIO()
    console = Console(file=written, force_terminal=True, color_system="standard", width=80)
    console.print("a", style="red")
    assert "\x1b[31ma" in written.getvalue()


@pytest.fixture
def notices(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What is printed to standard error, which is no terminal, with notices after 20 ms and repeated after 50 ms."""
    text = io.StringIO()
    monkeypatch.setattr(console, "errors", Console(file=text, width=200))
    monkeypatch.setattr(console, "NOTICE_SECONDS", 0.02)
    monkeypatch.setattr(console, "REPEAT_SECONDS", 0.05)
    return text


def wait_for(notices: io.StringIO, text: str) -> None:
    deadline = time.monotonic() + 4
    while text not in notices.getvalue() and time.monotonic() < deadline:
        time.sleep(0.005)
    assert text in notices.getvalue()


def test_a_quick_operation_shows_nothing(notices: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "NOTICE_SECONDS", 60)
    with waiting("Detecting"), progress_bar() as bar:
        bar.add_task("Checking", total=3)
    assert notices.getvalue() == ""


def test_a_long_operation_is_announced_and_repeated_with_its_time(notices: io.StringIO) -> None:
    with waiting("Detecting \x1b[31m[hardware]"):
        wait_for(notices, "Detecting \\x1b[31m[hardware] …\n")
        wait_for(notices, "[hardware] … 0 s\n")
    before = notices.getvalue()
    time.sleep(0.15)
    assert notices.getvalue() == before


def test_what_was_announced_is_only_repeated(notices: io.StringIO) -> None:
    with waiting("Timing", announced=True):
        wait_for(notices, "Timing … 0 s\n")
    assert notices.getvalue().startswith("Timing … 0 s\n")


def test_a_bar_without_a_terminal_prints_the_share_done(notices: io.StringIO) -> None:
    with progress_bar() as bar:
        task = bar.add_task("Checking logs", total=None)
        wait_for(notices, "Checking logs …\n")
        bar.update(task, total=4)
        bar.advance(task, 1)
        wait_for(notices, "Checking logs … 25% 0 s\n")


def test_a_terminal_shows_the_operation(notices: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "errors", Console(file=notices, width=200, force_terminal=True))
    with waiting("Detecting"):
        wait_for(notices, "Detecting …")
