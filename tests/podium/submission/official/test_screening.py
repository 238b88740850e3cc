"""What the official tools are not given: lines and brackets that would hold them up."""

from pathlib import Path

import pytest

from podium.submission.official import screening
from podium.submission.official.screening import is_deep, screen_description, screen_log

EVENT = b':::MLLOG {"key": "x", "value": '


def line_and_words(path: Path, content: bytes) -> tuple[int | None, str] | None:
    path.write_bytes(content)
    found = screen_log(path, "result_0.txt")
    return None if found is None else (found.line, found.message)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe\r\r\n",
        EVENT + b"1}\n" * 5,
        b"x" * screening.MAX_LINE_BYTES + b"\n" + EVENT + b"2}",
        b"x" * screening.MAX_LINE_BYTES,
        b"a line\r" * 300_000,  # lone carriage returns end lines too
        b"a line\r\n" * 300_000,
        EVENT + b"[" * 99 + b"]" * 99,
        (EVENT + b"[],[],[]").ljust(screening.MAX_EVENT_BYTES, b" "),
        b"[" * 5000,  # no event
    ],
)
def test_logs_that_may_be_given(tmp_path: Path, content: bytes) -> None:
    assert line_and_words(tmp_path / "log", content) is None


@pytest.mark.parametrize(
    ("content", "line", "words"),
    [
        (b"a\nb\r\nc\r" + b"x" * (screening.MAX_LINE_BYTES + 1), 4, "1,048,576 bytes"),
        (b"x" * (screening.MAX_LINE_BYTES + 1) + b"\n", 1, "1,048,576 bytes"),
        (b"a\n" + EVENT.ljust(screening.MAX_EVENT_BYTES + 1, b"x"), 2, "16,385 bytes"),
        (b"a\n" + EVENT + b"[" * 101 + b"\n" + b"x\n", 2, "100 brackets"),
        (b"\n" * (1 << 20) + EVENT + b'{"a":[' * 51, (1 << 20) + 1, "100 brackets"),
    ],
)
def test_logs_that_may_not_be_given(tmp_path: Path, content: bytes, line: int, words: str) -> None:
    found = line_and_words(tmp_path / "log", content)
    assert found is not None
    assert found[0] == line and words in found[1] and "were not run" in found[1]


def test_a_long_line_is_not_read_to_its_end(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        file.truncate(1 << 40)
    found = screen_log(tmp_path / "log", "log")
    assert found is not None and found.line == 1


@pytest.mark.parametrize(
    ("text", "deep"),
    [
        (b"[" * 100, False),
        (b"[" * 101, True),
        (b"[]" * 5000, False),
        (b"]" * 1000 + b"[" * 100, False),
        (b"]" * 1000 + b"[" * 101, True),
        (b"{[" * 50 + b"]}" * 50 + b"{" * 100, False),
        (b"{[" * 50 + b"]" + b"{" * 2, True),
    ],
)
def test_depth(text: bytes, deep: bool) -> None:
    assert is_deep(text) is deep


def test_descriptions(tmp_path: Path) -> None:
    path = tmp_path / "S.json"
    for content, words in (
        (b'{"a": [[]]}', None),
        (b"[" * 5000, "100 brackets"),
        (b" " * (1 << 20) + b"{}", "1,048,578"),
    ):
        path.write_bytes(content)
        found = screen_description(path, "systems/S.json")
        assert (found is None) if words is None else (found is not None and words in found.message)
