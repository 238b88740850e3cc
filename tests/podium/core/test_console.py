"""Text printed to the console cannot control the terminal."""

import io
import json
from pathlib import Path

import pytest
from rich.text import Text

from podium.core import console
from podium.core.console import Console, print_json, print_text, text_table


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
