"""What a person is told cannot steer the terminal that shows it."""

import io
import json
from pathlib import Path

import pytest
from rich.text import Text

from podium.core import console
from podium.core.console import Console, print_json, print_text, text_table


@pytest.mark.parametrize(
    ("sentence", "shown"),
    [
        ("a/\x1b[31mb\x07: is no log", "a/\\x1b[31mb\\x07: is no log"),
        ("x\u202ey\u2028z\ud800\r", "x\\u202ey\\u2028z\\ud800\\r"),
        ("two\nlines, 8×A100 [red] „größer“ 日本", "two\nlines, 8×A100 [red] „größer“ 日本"),
    ],
)
def test_sentences(sentence: str, shown: str) -> None:
    with console.errors.capture() as capture:
        console.tell(sentence)
    assert capture.get().rstrip("\n").endswith(shown)


HARM = "a\x1b[31m\x9b2J\u202eb\x07"
SHOWN = r"a\x1b[31m\x9b2J\u202eb\x07"


def test_no_text_acts_on_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """In tables, in markup, in titles, and as plain lines."""
    table = text_table("one", HARM, title=HARM)
    table.add_row(HARM, Text(HARM))
    console = Console(width=400)
    console.print(table)
    console.print(HARM, f"[bold]{HARM}[/bold]")
    print_text(Path(HARM))
    shown = capsys.readouterr().out
    assert SHOWN in shown.splitlines()
    assert shown.count("x1b") >= 5  # a table folds what became longer
    assert all(character == "\n" or character.isprintable() for character in shown)


def test_json_is_the_same_document_and_can_be_printed(capsys: pytest.CaptureFixture[str]) -> None:
    document = {HARM: ["zwölf – \U000e0001", 1.5, None]}
    print_json(document)
    shown = capsys.readouterr().out
    assert "zwölf – " in shown
    assert json.loads(shown) == document
    assert all(character == "\n" or character.isprintable() for character in shown)


def test_a_terminal_still_gets_its_colours() -> None:
    written = io.StringIO()
    console = Console(file=written, force_terminal=True, color_system="standard", width=80)
    console.print("a", style="red")
    assert "\x1b[31ma" in written.getvalue()
